"""The cloud in rounds of correlated noise: each sum is less a share of the noise before."""

from itertools import accumulate

import numpy as np
import pytest
from round_kit import job
from test_cloud_host import Desk, public_keys
from test_secure_rounds import SecureDesk, seed, vectors_of

from edgeveil.crypto.keys import CheckKey
from edgeveil.errors import JobFailed, ProtocolError
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.stage import NOISE
from edgeveil.protocol import cloud_job as ct
from edgeveil.protocol.cloud import RosterKept
from edgeveil.protocol.messages import KNOWS_CHECKS
from edgeveil.protocol.sealed import RoundCheck
from edgeveil.protocol.tensors import correlated_mask_sums
from edgeveil_cloud.commit_round import NOISE_HALF, noise_half, within_bounds
from edgeveil_cloud.store import Store
from edgeveil_cloud.stored_jobs import state_after

DEVICES = range(3)


def correlated():
    return job(
        features=(),
        model={"name": "mlp", "hidden": (3,)},
        train={"method": "sgd", "rounds": 8},
        update=({"name": "gradient_gaussian"},),
        privacy={
            "epsilon": 8.0,
            "delta": 1e-5,
            "noise": "correlated",
            "honest_share": 1.0,
            "min_separation": 1,
            "max_participations": 1,
        },
        aggregation={"name": "fedavg", "secure": True},
        selection={"devices": 3},
        encrypt={},
        unsupervised={"eval_type": "NOT_EVAL"},
    )


class CorrelatedDesk(SecureDesk):
    """A cloud's host, and a proxy that keeps its half of each round's noise."""

    def __init__(self):
        Desk.__init__(self, Store(), correlated())
        self.host.store(RosterKept(2, b"".join(public_keys(4)), knows=KNOWS_CHECKS))
        self.largest, self.halves = 2**20, {0: b""}

    def numbers(self, manifest, device):
        rng = np.random.default_rng((device, manifest.at.round))
        size = self.largest
        return {v.group: rng.integers(size // 2, size, v.ring.count) for v in vectors_of(manifest)}

    def totals(self, manifest):
        """The exact sums of the updates with their noise, one after the other, and of the noise."""
        found = [self.numbers(manifest, device) for device in DEVICES]
        *updates, noise = (sum(one[v.group] for one in found) for v in vectors_of(manifest))
        return np.concatenate(updates), noise

    def asks(self, index):
        """The manifest of a round, and the request to the proxy."""
        broadcast, asked = self.asked(index)
        return broadcast.manifest, self.perform(self.checks(broadcast, asked, DEVICES)).unmasks[""]

    def answer(self, manifest, unmask, *, lost=False):
        number = manifest.correlated.number
        before = self.halves[number - 1] if unmask.before and not lost else b""
        check = RoundCheck(CheckKey(unmask.key), disclosed=True)
        of = vectors_of(manifest), list(map(seed, DEVICES)), manifest.correlated.coefficient
        answer, self.halves[number] = correlated_mask_sums(*of, before, check)
        return answer

    def opened(self, manifest, answer):
        """The round's sums, as far as this answer opens them."""
        context, number = RoundContext.of(self.plan(), manifest.at.round), manifest.at.round
        kept, half = self.kept(number), noise_half(self.state(), number - 1, "")
        ((_, sums),) = kept.sums(context, answer, self.secret(manifest.at), half)
        assert NOISE not in sums
        return np.concatenate([sums[spec.name].ravel() for spec in context.segments[:-1]])

    def take(self, manifest, answer):
        return self.perform(ct.TakeMasks(manifest.at, {"": answer}))

    def state(self):
        return state_after(self.store.last_commit(self.id), self.plan())

    def half_names(self):
        return [name for name in self.state() if name.startswith(NOISE_HALF)]


@pytest.fixture
def desk():
    return CorrelatedDesk()


def test_a_sum_is_less_its_share_of_the_noise_before_within_one_step(desk):
    before = None
    for index in (1, 2, 3):
        manifest, unmask = desk.asks(index)
        answer = desk.answer(manifest, unmask)
        update, noise = desk.totals(manifest)
        share = 0 if before is None else manifest.correlated.coefficient / 256 * before
        off = desk.opened(manifest, answer) - (update - share)
        assert np.abs(off).max() <= (before is not None)
        desk.restart()  # killed after the request
        assert isinstance(desk.take(manifest, answer), ct.RoundCommit)
        assert desk.half_names() == [f"{NOISE_HALF}{index}/"]
        before = noise
    assert manifest.correlated.coefficient > 100


def test_the_noise_of_a_larger_round_before_is_no_garbage(desk):
    context = RoundContext.of(desk.plan(), 2)
    for (uploads, factor), fits in {(1, 1.0): True, (1, 2.5): True, (3, 3.1): False}.items():
        value = {s.name: np.full(s.shape, int(factor * s.largest)) for s in context.segments}
        assert within_bounds(context, (uploads, value)) is fits


def test_a_half_that_the_proxy_lost_leaves_its_share_out(desk):
    first, unmask = desk.asks(1)
    desk.take(first, desk.answer(first, unmask))
    manifest, unmask = desk.asks(2)
    assert len(unmask.before) == 32
    answer = desk.answer(manifest, unmask, lost=True)
    assert np.array_equal(desk.opened(manifest, answer), desk.totals(manifest)[0])
    assert isinstance(desk.take(manifest, answer), ct.RoundCommit)


def test_a_half_that_the_cloud_has_not_is_not_asked_for(desk):
    """A sum beyond its bound is garbage, and so is its noise."""
    plan = desk.plan()
    (largest,) = {spec.largest for spec in plan.segments(plan.round(1))}
    desk.largest = 2 * largest
    manifest, unmask = desk.asks(1)
    desk.take(manifest, desk.answer(manifest, unmask))
    assert [record.uploads for record in desk.store.rounds(desk.id)] == [0]
    assert desk.half_names() == []
    desk.largest = 2**20
    manifest, unmask = desk.asks(2)
    assert unmask.before == b""
    answer = desk.answer(manifest, unmask)
    assert np.array_equal(desk.opened(manifest, answer), desk.totals(manifest)[0])
    assert isinstance(desk.take(manifest, answer), ct.RoundCommit)
    assert desk.half_names() == [f"{NOISE_HALF}2/"]


def test_a_wrong_answer_is_refused(desk):
    manifest, unmask = desk.asks(1)
    good = desk.answer(manifest, unmask)
    for wrong in (b"\1" + good[1:], b"\2" + good[1:], b""):
        with pytest.raises(ProtocolError, match="wrong_mask_sums"):
            desk.opened(manifest, wrong)
    desk.take(manifest, good)
    manifest, unmask = desk.asks(2)
    good, lost = desk.answer(manifest, unmask), desk.answer(manifest, unmask, lost=True)
    ends = list(accumulate(one.ring.byte_count for one in vectors_of(manifest)[:-1]))
    changed = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in (1, *ends)]
    for wrong in (b"\0" + good[1:], b"\1" + lost[1:], good[:-1], good + b"\0", *changed):
        with pytest.raises(ProtocolError, match="wrong_mask_sums"):
            desk.opened(manifest, wrong)
    desk.opened(manifest, good)
    with pytest.raises(JobFailed):
        desk.take(manifest, changed[0])
