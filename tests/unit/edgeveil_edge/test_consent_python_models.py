"""A job whose model is Python code: it runs only where the owner allows it."""

import pytest
import torch
from edge_kit import Device, Loader, Round, job

from edgeveil.config.policy import Policy
from edgeveil.errors import UsageError
from edgeveil.jobs import compile_job
from edgeveil.parts.models import python_model
from edgeveil.plugins import code_digest
from edgeveil.protocol.device_round import NoAnswer, SealedAnswer

POLICY = {
    "min_devices": 3,
    "allowed_methods": ("sgd",),
    "accept_unproven": True,
    "accept_unprotected": True,
}


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)


FUNCTION = f"{__name__}:Net"


def allowing(digest, function=FUNCTION):
    return {**POLICY, "allowed_python_models": ({"function": function, "sha256": digest},)}


def plan():
    return compile_job(
        job(
            features=(),
            model={
                "name": "python",
                "function": FUNCTION,
                "weights": (("weight", (3, 4)), ("bias", (3,))),
            },
            train={"method": "sgd", "rounds": 1},
            privacy={"epsilon": 4.0, "delta": 1e-5, "accept_unproven": True},
            unsupervised={"every_rounds": 0},
        )
    )


def test_without_the_owners_word_neither_code_nor_records_are_read(tmp_path, monkeypatch):
    asked = plan()
    device = Device(tmp_path, Loader(AssertionError("the data were read")), policy=POLICY)
    sealed = Round(asked, 1, device.knows(asked).keys())

    def never(function):
        raise AssertionError("the code ran")

    monkeypatch.setattr(python_model, "loaded", never)
    answer = device.answer(sealed)
    assert isinstance(answer, NoAnswer)
    assert answer.why.startswith("policy.allowed_python_models: ")


def test_with_it_the_device_trains(tmp_path):
    asked = plan()
    device = Device(tmp_path, policy=allowing(code_digest(FUNCTION))).knows(asked)
    sealed = Round(asked, 1, device.keys())
    answer = device.answer(sealed)
    assert isinstance(answer, SealedAnswer), answer
    assert set(sealed.tensors(answer)) == {"module.weight", "module.bias"}


@pytest.mark.parametrize(
    "policy, why",
    [
        (allowing("0" * 64), "other files here than the owner allows"),
        (allowing(code_digest(FUNCTION), f"{__name__}:plan"), "which may not run here"),
    ],
)
def test_another_function_or_other_files_do_not_run(tmp_path, policy, why):
    asked = plan()
    device = Device(tmp_path, Loader(AssertionError("the data were read")), policy=policy)
    answer = device.answer(Round(asked, 1, device.knows(asked).keys()))
    assert isinstance(answer, NoAnswer) and why in answer.why


def test_the_digest_is_of_the_package_s_files_and_runs_none_of_them(tmp_path, monkeypatch):
    package = tmp_path / "owners_nets"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it ran')")
    (package / "net.py").write_text("class Net: ...")
    monkeypatch.syspath_prepend(tmp_path)
    found = code_digest("owners_nets.net:Net")
    code_digest.cache_clear()
    (package / "helper.py").write_text("")
    assert code_digest("owners_nets.net:Net") != found, "what it imports counts too"
    for function in ("no_such_package:Net", "sys:exit"):
        with pytest.raises(UsageError, match="files of its own"):
            code_digest(function)


def test_a_file_of_the_version_before_is_read_and_its_wide_word_refused():
    assert Policy.model_validate({"allow_python_models": False}) == Policy()
    with pytest.raises(ValueError, match="allowed_python_models"):
        Policy.model_validate({"allow_python_models": True})
