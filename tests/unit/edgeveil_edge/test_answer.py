"""Priced, then sealed: what is sent is what the ledger holds, and nothing goes without it."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import edge_kit
import numpy as np
import pytest
from edge_kit import CENTRE, FIRST, JOB_ID, PLAN, Device, Loader, Round, job
from msgspec import structs

from edgeveil.errors import PrivacyError, ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.jobs.federated_evaluation import COUNTS
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.methods.noise_only import NOISE
from edgeveil.parts.round import Answer
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.laplace_mechanism import RECORD_BITS
from edgeveil.privacy.ledger import Receipt
from edgeveil.protocol.device_round import SealedAnswer
from edgeveil.protocol.messages import Group
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors, tensor_views
from edgeveil_edge import round_work as answers
from edgeveil_edge.compute import Computation, ComputedAnswer, Computer, JobTrial, TaughtJob
from edgeveil_edge.consent import consent
from edgeveil_edge.round_work import own_answers, released_in
from tests.kits.memory_peak import peak_bytes

HEX = JOB_ID.hex()


def test_a_round_that_departs_from_its_job_is_refused(device):
    manifest = Round(PLAN, FIRST, device.keys()).manifest
    head, softmax = manifest.groups
    package, least = RoundPackage("train", 1, True, b"", b""), PLAN.job.round.min_batch

    def check(**changed):
        changed = structs.replace(manifest, **changed)
        answers.check_package(RoundContext.of(PLAN, FIRST), changed, package)

    check(min_batch=least + 1)
    for changed in (
        *({"groups": some} for some in ((), (head,), (softmax, head))),
        {"groups": (head, softmax, Group("records", 64))},
        {"groups": (Group("records", head.padded_bytes), softmax)},
        {"groups": (Group(head.name, head.padded_bytes + 64), softmax)},
        {"shuffled": False},
        {"min_batch": least - 1},
    ):
        with pytest.raises(ProtocolError, match=r"wrong_(groups|shuffle|batch)"):
            check(**changed)


def released(device, sealed, values=4):
    consent(device.site, PLAN, sealed.manifest, device.ledger)
    answer = Answer({"centre": np.arange(values)}, PLAN.device.price(sealed.round))
    return answers.release(device.ledger, sealed.manifest, [answer])


def resealed(receipt, payload, sealed):
    context = RoundContext.of(PLAN, CENTRE)
    return answers.seal_release(receipt, payload, context, sealed.manifest, bytes(32))


def test_what_is_released_is_what_the_ledger_held_first(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    first = released(device, sealed)
    other = [Answer({"centre": np.arange(4) + 1}, PLAN.device.price(sealed.round))]
    assert answers.release(device.ledger, sealed.manifest, other) == first


def test_what_was_computed_at_another_price_than_the_job_says_is_not_sent(tmp_path):
    class Cheaper(Computer):
        def answer(self, one):
            found = super().answer(one)
            return replace(found, parts=tuple(replace(part, events=()) for part in found.parts))

    device = Device(tmp_path, compute=lambda site, own: Cheaper(site, own.split_key, Loader()))
    device.knows(PLAN).declines(PLAN, CENTRE)
    assert device.ledger.recall(HEX, CENTRE) is None
    assert device.ledger.spent().epsilon == 0


def test_nothing_is_sealed_without_the_ledgers_receipt_for_these_tensors(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    receipt, payload = released(device, sealed)
    assert isinstance(resealed(receipt, payload, sealed), SealedAnswer)
    with pytest.raises(PrivacyError, match="other tensors"):
        resealed(receipt, pack_tensors({"centre": np.zeros(4, np.int64)}), sealed)
    with pytest.raises(PrivacyError, match="only the ledger makes receipts"):
        Receipt("bench", HEX, CENTRE, (), receipt.payload_sha256, object())


def test_a_tensor_of_another_shape_is_never_sealed(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    with pytest.raises(ProtocolError, match="wrong_shape"):
        resealed(*released(device, sealed, values=5), sealed)


def test_the_softmax_is_noised_and_priced(tmp_path):
    class Certain:
        def summed_softmax(self, x, weights, row_s):
            return np.array([PLAN.job.data.nominal_evaluation_records << RECORD_BITS, 0, 0])

    computer, two = Computer(edge_kit.site(tmp_path), bytes(32)), edge_kit.records(2, 1)
    computer._inference = SimpleNamespace(session=lambda *_asked: Certain())
    model = pack_tensors(PLAN.cloud.model(PLAN.cloud.initial_state()))
    asked = TaughtJob(PLAN, b"", b""), PLAN.round(FIRST), RoundPackage("train", 1, True, b"", model)
    keys = (number.to_bytes(32, "big") for number in range(400))
    each = [Computation(*asked, {}, True, DerivedRandom(key)) for key in keys]
    draws = [computer.compute(one, "infer", two, two) for one in each]
    assert {draw.events for draw in draws} == {(PLAN.softmax_event(),)}
    vectors = np.stack([draw.segments[SOFTMAX] for draw in draws])
    # Laplace of scale 2/ε = 0.4: mean absolute deviation 0.4, over 1200 draws ± 0.012.
    assert np.abs(vectors - [1.0, 0.0, 0.0]).mean() == pytest.approx(0.4, abs=0.08)


class OtherHalf(Loader):
    """The device's data with other records in one half: a slot speaks for some of them alone."""

    def __init__(self, half):
        super().__init__()
        self.half = half

    def __call__(self, *asked):
        found = super().__call__(*asked)
        changed = found[self.half]
        changed.x[:] = 1 - changed.x
        changed.y[:] = (changed.y + 1) % 3
        return found


SUMS = {"upload": "sums", "epsilon": 1.0, "every_rounds": 1}
SLOTS = {"every_rounds": 1, "upload": "per_sample", "samples_per_device": 5}
HALVES = {
    "softmax and counts": compile_job(job(federated_evaluation={"epsilon": 1})),
    "softmax in slots": compile_job(job(unsupervised=SLOTS)),
    "cluster sums": compile_job(job(unsupervised=SUMS, encrypt={})),
}


@pytest.fixture
def told_apart(monkeypatch):
    weights = np.eye(5, 3, dtype=np.int32) << 13
    monkeypatch.setattr(
        edge_kit, "trained", lambda plan: {**plan.cloud.initial_state(), "iterate": weights}
    )


def changed_segments(folder, plan, half):
    """Whether other records of a half change the segments: those of evaluation, and the others.

    The two devices are copies of each other: noise is the same where the exact sums are.
    """
    box = folder / "box"
    first = Device(box).knows(plan)
    first.ledger.close()
    first.store.close()
    shutil.copytree(box, folder / "copy")
    devices = Device(box).knows(plan), Device(folder / "copy", OtherHalf(half)).knows(plan)
    kinds = {e.phase: e for e in reversed(plan.all_rounds)}
    found = {}
    for round in sorted(kinds.values(), key=lambda e: e.index):
        sealed = Round(plan, round.index, devices[0].keys())
        ours, theirs = (sealed.tensors(device.answer(sealed)) for device in devices)
        assert list(ours) == list(theirs)
        for spec in plan.segments(round):
            size = spec.byte_count
            found[spec.name] = ours[spec.name][:size] != theirs[spec.name][:size]
    evaluated = [found.pop(one) for one in (SOFTMAX, COUNTS) if one in found]
    assert evaluated and found
    return evaluated, list(found.values())


@pytest.mark.usefixtures("told_apart")
@pytest.mark.parametrize("name", HALVES)
def test_training_records_change_nothing_of_what_evaluation_records_give(tmp_path, name):
    evaluated, trained = changed_segments(tmp_path, HALVES[name], half=0)
    assert not any(evaluated) and all(trained)  # records that do count


@pytest.mark.usefixtures("told_apart")
@pytest.mark.parametrize("name", HALVES)
def test_evaluation_records_change_nothing_of_what_training_records_give(tmp_path, name):
    evaluated, trained = changed_segments(tmp_path, HALVES[name], half=1)
    assert all(evaluated) and not any(trained)


PCA = ({"name": "identity"}, {"name": "ldp_pca", "keep": 0.5})
PCA_PLAN = compile_job(job(features=PCA))


@pytest.fixture
def box(tmp_path):
    return Device(tmp_path).knows(PCA_PLAN)


def test_every_later_answer_builds_on_the_covariance_that_was_released(box):
    sealed = Round(PCA_PLAN, 1, box.keys())
    sent = np.frombuffer(sealed.tensors(box.answer(sealed))["covariance"][:40], np.float32)
    for index in (2, 3, 4):
        box = box.restarted()
        own = own_answers(RoundContext.of(PCA_PLAN, index), released_in(box.ledger, HEX))
        np.testing.assert_array_equal(own["covariance"], sent)
        box.seals(PCA_PLAN, index)


def test_a_device_that_did_not_answer_then_declines_before_it_reads(box):
    answer = box.declines(PCA_PLAN, 2)
    assert "'covariance'" in answer.why
    assert (box.load.reads, box.ledger.spent().epsilon) == (0, 0)


VALUES = 1 << 20
MODEL_BYTES = 4 * VALUES


def plan(values=VALUES):
    data = {"source": "bench", "classes": 2, "input_shape": (1,), "nominal_records": 1}
    train = {"method": "noise_only", "rounds": 2, "values": values, "package_values": values}
    return compile_job(job(data=data, train=train, unsupervised={"every_rounds": 0}))


class FromAnotherProcess(Computer):
    """Answers as a computing process does: with arrays that lie in its message."""

    def answer(self, one):
        (spec,) = one.job.plan.cloud.segments(one.round)
        packed = pack_tensors({NOISE: np.ones(spec.shape, spec.dtype)})
        return ComputedAnswer((Answer(tensor_views(packed), ()),))

    def try_job(self, job, *, trains):
        return JobTrial()


@pytest.mark.parametrize("values", [VALUES, VALUES + 3])  # of a segment's size, and to be padded
def test_an_answer_is_made_with_three_models_beside_the_broadcast(tmp_path, values):
    large = plan(values)
    policy = {"min_devices": 3, "allowed_methods": ("noise_only",)}
    device = Device(
        tmp_path,
        compute=lambda site, own: FromAnotherProcess(site, own.split_key, Loader()),
        policy=policy,
    ).knows(large)
    sealed = Round(large, 1, device.keys())
    found = []
    peak = peak_bytes(lambda: found.append(device.answer(sealed)))
    assert isinstance(found[0], SealedAnswer)
    assert found[0].sizes == (sealed.manifest.groups[0].padded_bytes + 48,)
    assert peak < 3.2 * MODEL_BYTES
