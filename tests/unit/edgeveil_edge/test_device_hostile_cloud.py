"""A cloud that signs what it likes: its packages cost an owner no more, and bring nothing down."""

import hashlib
import logging

import numpy as np
import pytest
from edge_kit import CENTRE, FIRST, JOB_ID, PLAN, QUADRATIC, Device, Round

from edgeveil.protocol.device_round import ComputeAnswer, NoAnswer, OpenPackage, SealedAnswer
from edgeveil.protocol.effects import WorkFailed
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from edgeveil.transport.runtime import perform

LOG = logging.getLogger("test")

CHANGES = {
    "not a number": lambda array: np.full_like(array, np.nan),
    "infinite": lambda array: np.full_like(array, np.inf),
    "as large as it gets": lambda array: np.full_like(array, np.finfo(array.dtype).max),
    "another shape": lambda array: np.zeros((*array.shape, 2), array.dtype),
    "a single number": lambda array: np.zeros((), array.dtype),
    "no records": lambda array: np.zeros((0, *array.shape[1:]), array.dtype),
    "another type": lambda array: np.zeros(array.shape, np.int8),
    "missing": lambda array: None,
}


def answered(device, sealed, package):
    """What the process makes of a package that its machine accepted."""
    device.host.perform(OpenPackage(sealed.manifest, sealed.blob))
    opened = device.host._rounds[JOB_ID]
    opened.tensors, opened.model = package.tensors, package.model
    return perform(device.host, ComputeAnswer(sealed.manifest, package), LOG)


def true_package(device, sealed):
    opened = device.host.perform(OpenPackage(sealed.manifest, sealed.blob))
    return device.host._rounds[JOB_ID].whole(opened.package)


def changed(raw, change):
    tensors = unpack_tensors(raw)
    made = {
        name: change(array) if array.dtype.kind == "f" else array for name, array in tensors.items()
    }
    return pack_tensors({name: array for name, array in made.items() if array is not None})


def check(device, sealed, outcome, price):
    """An answer has the honest form; anything else is a named refusal. Neither costs more.

    Its numbers may be none: the steps that follow the noise overflow where the cloud wants it.
    """
    if isinstance(outcome, SealedAnswer):
        for name, plain in sealed.tensors(outcome).items():
            spec = next(s for s in PLAN.segments(sealed.round) if s.name == name)
            assert not any(plain[spec.byte_count :])
    else:
        assert isinstance(outcome, NoAnswer | WorkFailed)
        said = outcome.why if isinstance(outcome, NoAnswer) else outcome.reason
        assert said and "internal error" not in said
    spent = device.ledger.spent().epsilon, device.ledger.spent(purpose="infer").epsilon
    assert spent[0] <= price[0] and spent[1] <= price[1]


@pytest.fixture(scope="module")
def price(tmp_path_factory):
    """What the honest rounds cost."""
    device = Device(tmp_path_factory.mktemp("honest")).knows(PLAN)
    for index in (CENTRE, QUADRATIC, FIRST):
        device.seals(PLAN, index)
    return device.ledger.spent().epsilon, device.ledger.spent(purpose="infer").epsilon


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    ("index", "which"),
    [(CENTRE, "tensors"), (QUADRATIC, "tensors"), (FIRST, "tensors"), (FIRST, "model")],
)
def test_hostile_tensors_change_neither_form_nor_price(tmp_path, price, index, change, which):
    device = Device(tmp_path).knows(PLAN)
    sealed = Round(PLAN, index, device.keys())
    true = true_package(device, sealed)
    raw = changed(getattr(true, which), change)
    parts = {"tensors": true.tensors, "model": true.model, which: raw}
    package = RoundPackage(true.phase, true.number, true.infer, parts["tensors"], parts["model"])
    check(device, sealed, answered(device, sealed, package), price)


@pytest.mark.parametrize("raw", [b"", b"{}", b"\xff" * 8 + b"{", hashlib.sha256(b"x").digest()])
@pytest.mark.parametrize("which", ["tensors", "model"])
def test_tensors_that_are_none_are_refused(tmp_path, price, raw, which):
    device = Device(tmp_path).knows(PLAN)
    sealed = Round(PLAN, FIRST, device.keys())
    true = true_package(device, sealed)
    parts = {"tensors": true.tensors, "model": true.model, which: raw}
    package = RoundPackage(true.phase, true.number, true.infer, parts["tensors"], parts["model"])
    outcome = answered(device, sealed, package)
    check(device, sealed, outcome, price)
    assert not isinstance(outcome, SealedAnswer)


def test_a_round_that_says_another_phase_or_number_is_refused(tmp_path, price):
    device = Device(tmp_path).knows(PLAN)
    sealed = Round(PLAN, FIRST, device.keys())
    true = true_package(device, sealed)
    for phase, number, infer in (
        ("centre", true.number, true.infer),
        (true.phase, 2**40, true.infer),
        (true.phase, -1, true.infer),
        (true.phase, true.number, not true.infer),
        ("../../etc", true.number, true.infer),
    ):
        package = RoundPackage(phase, number, infer, true.tensors, true.model)
        outcome = answered(device, sealed, package)
        assert outcome == WorkFailed("wrong_phase")
    assert device.ledger.spent().epsilon == 0
    assert device.store.job(JOB_ID) is not None
