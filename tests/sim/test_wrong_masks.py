"""Selected devices whose masks, checks or rings are wrong end no secure job, and have names."""

import os

import numpy as np
import pytest

from edgeveil.crypto.keys import CheckKey, MaskSeed
from edgeveil.crypto.ring import Ring
from edgeveil.protocol import effects as fx
from edgeveil.protocol import sealed as sl
from edgeveil.protocol.device_round import ComputeAnswer, SealedAnswer
from edgeveil.protocol.messages import CheckMasks, Unmask
from edgeveil.protocol.proxy_rounds import MISFIT
from edgeveil.protocol.tensors import masked_segment
from tests.kits.fleet import Fleet, committed
from tests.sim import test_secure_sums as sums
from tests.sim.hostile import Attacker
from tests.sim.test_secure_sums import LIMITS, STREAMED, books, check_exact, completed, said

__all__ = ["books"]
pytestmark = pytest.mark.slow

HONEST = 4


class WrongMasks(Attacker):
    def __init__(self, fleet, box, how):
        super().__init__(fleet, box, lambda _manifest, _group: b"")
        self.how, self.round_key = how, b""

    def perform(self, task):
        if isinstance(task, ComputeAnswer):
            self.round_key = task.round_key
        return super().perform(task)

    def sealed(self, manifest):
        seed, check = MaskSeed.generate(), sl.RoundCheck.of_manifest(manifest, self.membership)
        vectors = sl.masked_vectors(manifest.at, manifest.groups, manifest.masked)
        made = {one.group: one for one in vectors}
        segments = []
        for index, group in enumerate(manifest.groups):
            raw = self._vector(made[index], seed, check) if index in made else b""
            raw = raw[: group.padded_bytes]
            segments.append(sl.seal_segment(manifest, group, self.membership, raw))
        told = MaskSeed.generate() if self.how == "another seed" else seed
        sealed = sl.seal_seed(told, manifest, self.signer.name, self.round_key)
        marks = tuple(sl.segment_mark(self.membership, one) for one in segments)
        every, sizes = tuple(range(len(segments))), tuple(map(len, segments))
        return SealedAnswer(every, sizes, b"".join(segments), marks, seed=sealed)

    def _vector(self, of, seed, check):
        numbers = np.ones(of.ring.count, np.int64)
        match self.how:
            case "another check":
                check = sl.RoundCheck(CheckKey.generate(), check.disclosed)
            case "a wider ring" | "a narrower ring":
                bits = of.ring.bits + (7 if self.how == "a wider ring" else -7)
                of = sl.MaskedVector(of.at, of.group, of.name, Ring(of.ring.count, bits))
            case "garbage":
                numbers = numbers << (of.ring.bits - 1)
        return masked_segment(of, numbers, seed, check)


def attacked(folder, how, bad, rounds=2, changes=None, honest=HONEST, **options):
    devices = honest + bad
    fleet = Fleet(folder, devices, **options)
    fleet.net.wire = []
    who = [WrongMasks(fleet, box, how) for box in fleet.devices[:bad]]
    what = sums.job(
        selection={"devices": devices},
        train={"method": "fm", "rounds": rounds},
        unsupervised={"eval_type": "NOT_EVAL"},
        **(changes or {}),
    )
    return fleet, fleet.submit(what), [fx.DeviceAddress(one.signer.name) for one in who]


def check_unharmed(fleet, done, named, counted=HONEST):
    records = completed(fleet, done)
    assert {(record.attempt, record.uploads) for record in records} == {(1, counted)}
    blamed = fleet.proxy.runner.blamed
    assert set(blamed) == {(who, MISFIT) for who in named}
    assert min(blamed.values()) >= len(records) / 2
    assert not fleet.proxy.conduct.cooling_down


ROUNDS = int(os.environ.get("EDGEVEIL_ROUNDS", "8"))  # `make long` plays 200
WRONG = ("another seed", "another check", "a wider ring", "a narrower ring")


@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_upload_costs_nobody_the_round(tmp_path, books, how, bad):
    fleet, done, named = attacked(tmp_path, how, bad)
    check_unharmed(fleet, done, named)
    check_exact(fleet, books, done)
    asked = [check.at for check in said(fleet, CheckMasks)]
    assert set(asked) == {one.at for one in said(fleet, Unmask)}


@pytest.mark.parametrize(
    "options",
    [
        {"packet_bytes": 4096, "proxy": STREAMED},
        {"proxy": {"cover_traffic": True, "cover_window_s": 4.0}},
    ],
    ids=["streamed", "cover"],
)
def test_it_is_left_out_of_streams_and_under_cover(tmp_path, books, options):
    fleet, done, named = attacked(tmp_path, "another seed", 2, **options)
    check_unharmed(fleet, done, named)
    check_exact(fleet, books, done)


def test_it_is_left_out_of_its_group_alone(tmp_path, books):
    changes = {
        "aggregation": {"name": "median", "secure": True, "groups": 3},
        "round": {**LIMITS, "min_batch": 9},
    }
    fleet, done, named = attacked(tmp_path, "another seed", 2, changes=changes, honest=13)
    check_unharmed(fleet, done, named, 13)
    check_exact(fleet, books, done)


@pytest.mark.parametrize("bad", [1, 2])
def test_no_round_of_many_is_lost_to_one_or_two_of_them(tmp_path, bad):
    fleet, done, named = attacked(tmp_path, "another seed", bad, rounds=ROUNDS)
    check_unharmed(fleet, done, named)
    assert len(fleet.store.rounds(done)) == ROUNDS + 2


# --- what fits, and is beyond all bounds ---


def test_a_sum_beyond_its_bound_is_discarded_and_the_job_goes_on(tmp_path):
    fleet, done, _ = attacked(tmp_path, "garbage", 1)
    completed(fleet, done)
    events = committed(fleet, done)
    assert len(events) == 4
    for event in events:
        assert event["uploads"] == 0
        assert event["discarded"]["uploads"] == HONEST + 1
        assert "ε = " in event["discarded"]["price"]["training"]
    assert all(np.all(np.isfinite(array)) for array in sums.state(fleet, done).values())
    assert not fleet.proxy.runner.blamed  # nothing says whose it was


# --- restarts ---


def test_a_proxy_that_starts_anew_between_batch_and_checks_answers_the_same(tmp_path, books):
    """It has forgotten whose uploads these are; the next round's it knows."""
    fleet, done, named = attacked(tmp_path, "another seed", 1)
    fleet.net.run(lambda: bool(said(fleet, CheckMasks)))
    sums.forget(fleet, fleet.proxy.runner)
    sums.restart_proxy(fleet)
    records = completed(fleet, done, books)
    assert {(record.attempt, record.uploads) for record in records} == {(1, HONEST)}
    assert fleet.proxy.runner.blamed[named[0], MISFIT] == len(records) - 1
    assert len({check.key for check in said(fleet, CheckMasks)}) == len(records)
