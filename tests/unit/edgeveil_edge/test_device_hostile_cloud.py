"""A cloud that signs what it likes: its packages cost an owner no more, and bring nothing down."""

import hashlib
import logging

import numpy as np
import pytest
from edge_kit import CENTRE, FIRST, JOB_ID, PLAN, QUADRATIC, Device, Round
from msgspec import structs

from edgeveil.protocol.device_round import ComputeAnswer, NoAnswer, OpenPackage, SealedAnswer
from edgeveil.protocol.effects import WorkFailed
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from edgeveil.transport.runtime import perform

LOG = logging.getLogger("test")


def whole(change):
    """Of a tensor file: this change to each of its arrays of real numbers; None leaves it out."""

    def changed(raw):
        tensors = unpack_tensors(raw)
        made = {n: change(a) if a.dtype.kind == "f" else a for n, a in tensors.items()}
        return pack_tensors({name: array for name, array in made.items() if array is not None})

    return changed


CHANGES = {
    "not a number": whole(lambda array: np.full_like(array, np.nan)),
    "infinite": whole(lambda array: np.full_like(array, np.inf)),
    "as large as it gets": whole(lambda array: np.full_like(array, np.finfo(array.dtype).max)),
    "another shape": whole(lambda array: np.zeros((*array.shape, 2), array.dtype)),
    "a single number": whole(lambda array: np.zeros((), array.dtype)),
    "no records": whole(lambda array: np.zeros((0, *array.shape[1:]), array.dtype)),
    "another type": whole(lambda array: np.zeros(array.shape, np.int8)),
    "missing": whole(lambda array: None),
    "no tensors": lambda _raw: b"{}",
    "no bytes": lambda _raw: b"",
    "bytes of nothing": lambda _raw: hashlib.sha256(b"x").digest(),
    "a length past the end": lambda _raw: b"\xff" * 8 + b"{",
}


def answered(device, sealed, package):
    """What the process makes of a package that its machine accepted."""
    device.host.perform(OpenPackage(sealed.manifest, sealed.blob))
    opened = device.host._rounds[JOB_ID]
    opened.tensors, opened.model = package.tensors, package.model
    return perform(device.host, ComputeAnswer(sealed.manifest, package), LOG)


@pytest.fixture(scope="module")
def price(tmp_path_factory):
    device = Device(tmp_path_factory.mktemp("honest")).knows(PLAN)
    for index in (CENTRE, QUADRATIC, FIRST):
        device.seals(PLAN, index)
    return device.ledger.spent().epsilon, device.ledger.spent(purpose="infer").epsilon


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("index", "which"),
    [(CENTRE, "tensors"), (QUADRATIC, "tensors"), (FIRST, "tensors"), (FIRST, "model")],
)
def test_hostile_tensors_change_neither_form_nor_price(device, price, index, change, which):
    """An answer has the honest form; anything else is a named refusal. Neither costs more.

    Its numbers may be none: the steps that follow the noise overflow where the cloud wants it.
    """
    sealed = Round(PLAN, index, device.keys())
    opened = device.host.perform(OpenPackage(sealed.manifest, sealed.blob))
    true = device.host._rounds[JOB_ID].whole(opened.package)
    package = structs.replace(true, **{which: CHANGES[change](getattr(true, which))})
    outcome = answered(device, sealed, package)
    if isinstance(outcome, SealedAnswer):
        assert "no tensors" not in change and not change.startswith(("bytes", "a length"))
        for name, plain in sealed.tensors(outcome).items():
            spec = next(s for s in PLAN.segments(sealed.round) if s.name == name)
            assert not any(plain[spec.byte_count :])
    else:
        assert isinstance(outcome, NoAnswer | WorkFailed)
        said = outcome.why if isinstance(outcome, NoAnswer) else outcome.reason
        assert said and "internal error" not in said
    spent = device.ledger.spent().epsilon, device.ledger.spent(purpose="infer").epsilon
    assert spent[0] <= price[0] and spent[1] <= price[1]


def test_a_round_that_says_another_phase_or_number_is_refused(device):
    sealed = Round(PLAN, FIRST, device.keys())
    true = device.host.perform(OpenPackage(sealed.manifest, sealed.blob)).package
    for change in (
        *({"phase": other} for other in ("centre", "../../etc")),
        *({"number": other} for other in (2**40, -1)),
        {"infer": not true.infer},
    ):
        package = structs.replace(true, **change)
        assert answered(device, sealed, package) == WorkFailed("wrong_phase")
    assert device.ledger.spent().epsilon == 0
    assert device.store.job(JOB_ID) is not None
