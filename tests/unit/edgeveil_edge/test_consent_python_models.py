"""A job whose model is Python code: it runs only where the owner allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from edge_kit import Device, Loader, Round, job

from edgeveil.jobs import compile_job
from edgeveil.jobs.plan import Plan
from edgeveil.parts.models import python_model
from edgeveil.protocol.device_tasks import NoAnswer, SealedAnswer

POLICY = {
    "min_devices": 3,
    "allowed_methods": ("sgd",),
    "accept_unproven": True,
    "accept_unprotected": True,
}


class Net(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)


def plan() -> Plan:
    return compile_job(
        job(
            features=(),
            model={
                "name": "python",
                "function": f"{__name__}:Net",
                "weights": (("weight", (3, 4)), ("bias", (3,))),
            },
            train={"method": "sgd", "rounds": 1},
            privacy={"epsilon": 4.0, "delta": 1e-5, "accept_unproven": True},
            unsupervised={"every_rounds": 0},
        )
    )


def test_without_the_owners_word_neither_code_nor_records_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = plan()
    device = Device(tmp_path, Loader(AssertionError("the data were read")), policy=POLICY)
    sealed = Round(asked, 1, device.knows(asked).keys())

    def never(function: str) -> torch.nn.Module:
        raise AssertionError("the code ran")

    monkeypatch.setattr(python_model, "loaded", never)
    answer = device.answer(sealed)
    assert isinstance(answer, NoAnswer)
    assert answer.why.startswith("policy.allow_python_models: ")


def test_with_it_the_device_trains(tmp_path: Path) -> None:
    asked = plan()
    device = Device(tmp_path, policy={**POLICY, "allow_python_models": True}).knows(asked)
    sealed = Round(asked, 1, device.keys())
    answer = device.answer(sealed)
    assert isinstance(answer, SealedAnswer), answer
    assert set(sealed.tensors(answer)) == {"module.weight", "module.bias"}
