"""Jobs whose uploads are summed under masks: the sums are exact, and nobody sees more than them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from edgeveil.config.policy import Policy
from edgeveil.evaluation.figures import GUESSING
from edgeveil.jobs import compile_job
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.parts.methods.fm import UNIT
from edgeveil.parts.update import Pipeline
from edgeveil.privacy.laplace_mechanism import SOFTMAX_BITS
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_rounds import SumMasks, SummedMasks
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil.transport.memory import LATENCY_S
from edgeveil_cloud.commit_round import RoundCommitter
from edgeveil_cloud.stored_jobs import state_after
from edgeveil_edge import round_work
from tests.kits.fleet import PACKET_BYTES, Fleet, committed, small_job
from tests.sim.test_pause import Mute

pytestmark = pytest.mark.slow

DEVICES = 5
LIMITS = {"deadline_s": 10.0, "min_batch": 3, "grace_s": 1.0, "retries": 1}


def job(**changes):
    plain = {
        "aggregation": {"name": "fedavg", "secure": True},
        "selection": {"devices": DEVICES},
        "train": {"method": "fm", "rounds": 2},
        "round": LIMITS,
    }
    return small_job(**{**plain, **changes})


@dataclass
class Books:
    """What devices priced and released, by the marks of their segments, and what was committed."""

    released: dict[bytes, Mapping[str, np.ndarray]] = field(default_factory=dict)
    sums: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)  # by round
    sets: dict[int, dict[str, list[np.ndarray]]] = field(default_factory=dict)
    counted: dict[int, set[bytes]] = field(default_factory=dict)

    def expected(self, round, name):
        payloads = {id(p): p for mark, p in self.released.items() if mark in self.counted[round]}
        return sum(p[name] for p in payloads.values() if name in p)


@pytest.fixture
def books(monkeypatch):
    kept = Books()
    seal, commit = round_work.seal_release, RoundCommitter._commit

    def sealed(receipt, payload, *more):
        answer = seal(receipt, payload, *more)
        assert receipt.covers(payload)
        tensors = unpack_tensors(payload)
        kept.released |= dict.fromkeys(answer.marks, tensors)
        return answer

    def noted(self, entry, context, batch, valid, *more):
        index = context.round.index
        kept.counted[index] = set(valid.accepted)
        masked = {spec.name for spec in context.segments if spec.bits}
        kept.sums[index] = {name: sum(valid.arrays[name]) for name in masked}
        kept.sets[index] = {name: list(valid.arrays[name]) for name in masked}
        return commit(self, entry, context, batch, valid, *more)

    monkeypatch.setattr(round_work, "seal_release", sealed)
    monkeypatch.setattr(RoundCommitter, "_commit", noted)
    yield kept


def check_exact(fleet, books, done):
    records = fleet.store.rounds(done)
    assert [record.index for record in records] == sorted(books.sums)
    for record in records:
        assert books.sums[record.index]
        for name, total in books.sums[record.index].items():
            assert np.array_equal(total, books.expected(record.index, name))


def state(fleet, done):
    entry = fleet.store.job(done)
    return state_after(fleet.store.last_commit(done), fleet.cloud.host.jobs.plan(entry))


def said(fleet, kind):
    found = []
    for _, _, frame in fleet.net.wire or []:
        message = m.decode(frame, PACKET_BYTES)
        if isinstance(message, m.Offer):
            found.append(m.decode_header(message.header))
        elif isinstance(message, m.Note):
            found.append(m.decode_body(message.body))
    return [one for one in found if isinstance(one, kind)]


def completed(fleet, done, books=None):
    assert fleet.finish(done) == "completed", fleet.store.job(done).reason
    if books is not None:
        check_exact(fleet, books, done)
    return fleet.store.rounds(done)


def played(folder, what, devices=DEVICES, **options):
    fleet = Fleet(folder, devices, **options)
    fleet.net.wire = []
    return fleet, fleet.submit(what)


def forget(fleet, node):
    node.timers.clear()
    fleet.net._queue = [entry for entry in fleet.net._queue if entry[2] is not node]


def restart_proxy(fleet):
    fleet.start_proxy()
    fleet.net.connect(fleet.proxy.runner)
    fleet.net.post(fleet.proxy.runner, fx.Command("started"))


def test_the_sums_are_exact_and_the_model_is_that_of_a_job_without_masks(tmp_path, books):
    fleet, done = played(tmp_path / "masked", job())
    completed(fleet, done, books)
    assert all(record.uploads == DEVICES for record in fleet.store.rounds(done))
    plain, other = played(tmp_path / "plain", job(aggregation={"name": "fedavg"}))
    assert plain.finish(other) == "completed"
    assert not said(plain, m.MaskSums)
    assert not said(plain, m.RoundKey)
    ours, theirs = state(fleet, done), state(plain, other)
    assert ours.keys() == theirs.keys()
    # Weights are whole steps, and float32 rounds what single devices upload: one step of each.
    step = {"iterate": 1.0, "tail": float(ours["tail_count"][0]) / UNIT}
    for name in ours:
        atol = step.get(name, 0.0) + 1e-6
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, atol=atol, err_msg=name)
    assert np.abs(ours["iterate"]).max() > 1000  # it has learned something


OWNER = Policy(max_collusion_epsilon_per_job=50, allowed_methods=("sgd",))
UPDATES = {
    "features": (),
    "model": {"name": "mlp", "hidden": (8,), "input_scale": 16.0},
    "train": {"method": "sgd", "rounds": 2, "learning_rate": 0.1},
    "update": ({"name": "gradient_gaussian"},),
}


@pytest.mark.parametrize("privacy", [{}, {"noise": "shared", "honest_share": 1.0}])
def test_updates_of_a_model_are_summed_exactly_with_their_noise(tmp_path, books, privacy):
    what = job(**UPDATES, privacy={"epsilon": 8.0, "delta": 1e-5, **privacy})
    fleet, done = played(tmp_path, what, policy=OWNER)
    completed(fleet, done, books)
    moved = state(fleet, done)
    assert all(len(names) == 4 for names in books.sums.values())  # weights and biases
    begun = fleet.cloud.host.jobs.plan(fleet.store.job(done)).cloud.initial_state()
    total = {name: sum(books.sums[at][name] for at in books.sums) for name in moved}
    grid = Pipeline(compile_job(what).context).grid
    for name, weights in moved.items():
        change = total[name] / DEVICES * 2.0**-grid.grid_bits
        np.testing.assert_allclose(weights - begun[name], change, rtol=1e-5, atol=1e-6)


def test_the_median_of_groups_is_taken_of_exact_sums_of_each(tmp_path, books):
    rule = {"name": "median", "secure": True, "groups": 3}
    limits = {**LIMITS, "min_batch": 9}
    what = job(aggregation=rule, selection={"devices": 9}, round=limits)
    fleet, done = played(tmp_path, what, devices=9)
    completed(fleet, done, books)
    released = {id(p): p for p in books.released.values()}
    for sets in books.sets.values():
        for name, totals in sets.items():
            assert len(totals) == 3
            parts = [one[name] for one in released.values() if name in one]
            trios = [sum(three) for three in combinations(parts, 3)]  # of all rounds of a name
            for total in totals:
                assert any(np.array_equal(total, trio) for trio in trios)


def test_a_proxy_that_gives_wrong_masks_ends_the_job_and_nothing_is_committed(tmp_path):
    fleet, done = played(tmp_path, job())
    honest = fleet.proxy.host.perform

    def off_by_one(task):
        found = honest(task)
        if isinstance(task, SumMasks) and not task.key and isinstance(found, SummedMasks):
            data = bytearray(found.data)
            data[0] ^= 1  # the lowest bit of the first number
            return SummedMasks(bytes(data))
        return found

    fleet.proxy.host.perform = off_by_one
    assert fleet.finish(done) == "failed"
    assert "do not match the uploads" in fleet.store.job(done).reason
    assert fleet.store.rounds(done) == ()


def test_devices_that_drop_out_are_not_in_the_sum(tmp_path, books):
    fleet, done = played(tmp_path, job(selection={"devices": 6}), devices=6)
    for box in fleet.devices[:2]:
        box.runner.machine = Mute(box.runner.machine)
    completed(fleet, done, books)
    assert [record.uploads for record in fleet.store.rounds(done)] == [4] * 4


def test_too_few_for_a_sum_are_asked_again_and_never_unmasked(tmp_path):
    fleet, done = played(tmp_path, job())
    for box in fleet.devices[:3]:
        box.runner.machine = Mute(box.runner.machine)
    assert fleet.finish(done) == "paused"
    assert not said(fleet, m.Unmask)
    assert fleet.store.rounds(done) == ()


def test_cover_traffic_is_masked_like_answers_and_does_not_count(tmp_path, books):
    covered = {"cover_traffic": True, "cover_window_s": 4.0}
    fleet, done = played(tmp_path, job(), devices=8, proxy=covered)
    completed(fleet, done, books)
    assert all(record.uploads == DEVICES for record in fleet.store.rounds(done))
    sizes = defaultdict(set)
    senders = defaultdict(set)
    for sender, _, frame in fleet.net.wire or []:
        message = m.decode(frame, PACKET_BYTES)
        header = m.decode_header(message.header) if isinstance(message, m.Offer) else None
        if isinstance(header, m.Upload):
            assert len(header.seed) == 80
            sizes[header.at.round, header.groups].add((len(frame), header.blob.size_bytes))
            senders[header.at.round].add(sender)
    assert all(len(one) == 1 for one in sizes.values()), "the covering ones look another way"
    assert all(len(one) == 8 for one in senders.values())


def test_a_question_that_the_proxy_did_not_hear_in_time_is_answered_after_a_resume(tmp_path, books):
    fleet, deaf = Fleet(tmp_path, DEVICES), [True]

    def faults(_sender, to, frame):
        message = m.decode(frame, PACKET_BYTES)
        body = m.decode_body(message.body) if isinstance(message, m.Note) else None
        return [] if isinstance(body, m.Unmask) and deaf[0] else [LATENCY_S]

    fleet.net.faults, fleet.net.wire = faults, []
    done = fleet.submit(job())
    assert fleet.finish(done) == "paused"
    assert fleet.store.kept_sums(done, 1) is not None
    fleet.net.run(lambda: False, fleet.net.now_s + 60.0)
    deaf[0] = False
    fleet.resume(done)
    completed(fleet, done, books)
    assert [record.attempt for record in fleet.store.rounds(done)] == [1] * 4


@pytest.mark.parametrize(
    ("fate", "status", "reason"),
    [
        ("put back", "paused", "the proxy refused the broadcast: unmasked_already"),
        ("lost", "paused", f"{DEVICES} selected, 0 uploaded, {DEVICES} declined"),
    ],
)
def test_a_proxy_that_forgot_what_it_unmasked_unmasks_nothing_more_of_the_job(
    tmp_path, fate, status, reason
):
    """Restored, it refuses what it knows of; of what it cannot know devices keep it."""
    fleet, done = played(tmp_path, job())
    fleet.net.run(lambda: len(fleet.store.rounds(done)) == 2)
    asked = len(said(fleet, m.Unmask))
    forget(fleet, fleet.proxy.runner)
    if fate == "put back":
        fleet.proxy.spool.put_back()
    fleet.proxy.spool.close()
    if fate == "lost":
        for file in tmp_path.rglob("spool.sqlite*"):
            file.unlink()
    restart_proxy(fleet)
    assert fleet.finish(done) == status
    assert reason in fleet.store.job(done).reason
    assert len(said(fleet, m.Unmask)) == asked
    assert len(fleet.store.rounds(done)) == 2


# --- as they come ---

STREAMED = {"min_batch_floor": 1, "limits": {"lot_bytes": 1}}


@pytest.mark.parametrize(
    ("devices", "covered"),
    [(DEVICES, {}), (8, {"cover_traffic": True, "cover_window_s": 4.0})],
)
def test_uploads_that_go_on_as_they_come_are_summed_exactly(tmp_path, books, devices, covered):
    proxy = {**STREAMED, **covered}
    fleet, done = played(tmp_path, job(), devices, packet_bytes=4096, proxy=proxy)
    records = completed(fleet, done, books)
    assert all(record.uploads == DEVICES for record in records)
    assert all(record.attempt == 1 for record in records)
    early = {(arrived.at, arrived.blob.digest) for arrived in said(fleet, m.Arrived)}
    assert early
    assert early <= {(batch.at, batch.stream) for batch in said(fleet, m.Batch)}
    asked = [question.at for question in said(fleet, m.Unmask)]
    assert len(set(asked)) == len(records)


def test_the_cloud_learns_the_exact_mean_of_inferences_and_none_of_them(tmp_path, books):
    """Devices infer in the last of four rounds; noise is local, so masks change no price."""
    asked = {"every_rounds": 2, "eval_type": "MEAN_SOFTMAX"}
    fleet, done = played(tmp_path, job(unsupervised=asked))
    *_, last = completed(fleet, done, books)
    (told,) = [e["mean_softmax"] for e in committed(fleet, done) if e["mean_softmax"]]
    released = {id(p): p for mark, p in books.released.items() if mark in books.counted[last.index]}
    rows = [p[SOFTMAX] for p in released.values()]
    assert len(rows) == told["uploads"] == DEVICES
    assert len({row.tobytes() for row in rows}) == DEVICES  # each has its own records and noise
    totals = [sum(map(int, column)) for column in zip(*rows, strict=True)]
    exact = [float(Fraction(total, DEVICES << SOFTMAX_BITS)) for total in totals]
    assert told["mean"] == pytest.approx(exact, rel=1e-15, abs=0)
    assert {k: v for k, v in last.scores.items() if k != GUESSING} == told
    rounds = [header for header in said(fleet, m.Manifest) if header.kind == "round"]
    assert {SOFTMAX in [group.name for group in header.groups] for header in rounds} == {
        True,
        False,
    }
    for header in rounds:
        assert [one.group for one in header.masked] == list(range(len(header.groups)))
    unmasked = {(question.at.round, question.chosen) for question in said(fleet, m.Unmask)}
    assert len(unmasked) == len(books.sums)
    for box in fleet.devices:
        assert box.ledger.spent(purpose="infer").epsilon == pytest.approx(20)
