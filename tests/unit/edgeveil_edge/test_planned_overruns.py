"""A cloud cannot place a job's time budget so that one record more is one too many."""

import math
from dataclasses import replace

import numpy as np
import pytest

from edgeveil.data.records import Records
from edgeveil.evaluation.inference import InferenceSession
from edgeveil.jobs import compile_job
from edgeveil.jobs.job import LEAST_BUDGET_S, Round
from edgeveil.parts.own_records import at_most, device_records
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.protocol.device_round import WORK_SHARE, NoAnswer, OpenPackage, SealedAnswer
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_edge import compute
from edgeveil_edge.compute import Computer, TaughtJob, trial_seconds
from edgeveil_edge.round_work import MOST_OVERRUNS
from tests.unit.edgeveil_edge import edge_kit as kit

KEY = bytes(range(32))
ROLES = pytest.mark.parametrize("trains", [True, False])


def taught(budget_s=1.0, nominal=1, **changes):
    data = {"source": "bench", "classes": 3, "input_shape": (4,), "nominal_records": nominal}
    plan = compile_job(kit.job(data=data, round={"budget_s": budget_s}, **changes))
    return TaughtJob(plan, plan.job.canonical(), plan.graph())


def seconds(records):
    """A box of which we know what it takes: 1 ms a record, 20 ms in any case."""
    return 0.02 + 0.001 * records


@ROLES
@pytest.mark.parametrize("nominal", [1, 10_000])
def test_wherever_the_budget_is_placed_one_record_more_decides_nothing(
    tmp_path, monkeypatch, trains, nominal
):
    """For each n up to the owner's most: a budget in which n − 1 records fit and n do not."""

    def play(*_job, records, **_more):
        return seconds(records)

    monkeypatch.setattr(compute, "rehearse_device", play)
    most = 60
    site = kit.site(tmp_path, policy={"max_records": most})
    for n in range(1, most + 1):
        budget_s = (seconds(n) + seconds(n - 1)) / 2 / WORK_SHARE
        needed_s = trial_seconds(taught(budget_s, nominal), site, trains=trains)
        assert compute.TRIAL_MARGIN * needed_s > budget_s * WORK_SHARE  # declined
    # What is taken has room for all that the box may hold, also where it is half as fast.
    roomy_s = 2 * (seconds(most) + seconds(0)) / WORK_SHARE
    needed_s = trial_seconds(taught(roomy_s, nominal), site, trains=trains)
    assert compute.TRIAL_MARGIN * needed_s <= roomy_s * WORK_SHARE
    assert 2 * seconds(most) <= roomy_s * WORK_SHARE


COUNTED = {"federated_evaluation": {"epsilon": 1}, "unsupervised": {"eval_type": "NOT_EVAL"}}


@ROLES
@pytest.mark.parametrize(("changes", "kind"), [({}, "infer"), (COUNTED, "evaluate")])
def test_every_kind_of_round_is_tried_on_as_many_records_as_the_owner_allows(
    tmp_path, monkeypatch, changes, trains, kind
):
    """Whatever the job says of how many there are, and how they fall into halves."""
    job, seen = taught(10.0, nominal=2, **changes), {}
    method = "summed_softmax" if kind == "infer" else "single_outputs"

    def noted(kind, owner, method, at):
        real = getattr(owner, method)

        def call(*given, **more):
            seen[kind] = max(seen.get(kind, 0), len(given[at]))
            return real(*given, **more)

        monkeypatch.setattr(owner, method, call)

    noted(kind, InferenceSession, method, 1)
    noted("train", job.plan.device, "answer", 2)
    trial_seconds(job, kit.site(tmp_path, policy={"max_records": 77}), trains=trains)
    assert seen == dict.fromkeys(["train", kind] if trains else [kind], 77)


@ROLES
@pytest.mark.parametrize("most", [2, 20_000])
def test_a_run_has_the_same_time_however_many_records_the_owner_allows(
    tmp_path, monkeypatch, trains, most
):
    """So that dozens of slow ones still take half of it, and none is slow for the box's load."""
    found = []
    real = InferenceSession.single_outputs

    def noting(*given, **more):
        found.append(given[4] if len(given) > 4 else more.get("row_s", math.inf))
        return real(*given, **more)

    monkeypatch.setattr(InferenceSession, "single_outputs", noting)
    job = taught(nominal=2, federated_evaluation={"epsilon": 1})
    computer = Computer(kit.site(tmp_path, policy={"max_records": most}), KEY, kit.Loader())
    round = next(e for e in job.plan.all_rounds if e.phase == "evaluate")
    model = pack_tensors(job.plan.cloud.model(job.plan.cloud.initial_state()))
    package = RoundPackage(round.phase, round.number, False, pack_tensors({}), model)
    one = compute.Computation(job, round, package, {}, trains, DerivedRandom(KEY), allowed_s=8.0)
    computer.answer(one)  # here, where no process ends what is slow, as in a simulation
    assert set(found) == {math.inf}
    found.clear()
    computer.compute(one, "evaluate", *computer.halves(job.plan)[0])
    assert set(found) == {8.0 / 64}


def held(count, seed=1):
    rng = np.random.default_rng(seed)
    return Records(rng.random((count, 3)).astype(np.float32), np.arange(count) % 2)


def rows(*halves):
    return {row.tobytes() for half in halves for row in half.x}


@pytest.mark.parametrize("seed", range(5))
def test_of_more_records_than_the_owner_says_so_many_are_used(tmp_path, seed):
    """And one record more takes the place of one at most, as the page says."""
    many, most, path = held(60, seed), 40, tmp_path / "own.npz"
    data = {"name": "bench", "source": "npz", "path": path}

    def loaded(records):
        np.savez(path, x=records.x, y=records.y)
        return Computer(kit.site(tmp_path, data=data, policy={"max_records": most}), KEY).records(
            0.3
        )

    whole = loaded(many)
    assert len(rows(*whole)) == most
    for gone in range(0, 60, 7):
        fewer = loaded(many.at(np.delete(np.arange(60), gone)))
        left, come = rows(*whole) - rows(*fewer), rows(*fewer) - rows(*whole)
        assert len(left) == len(come) <= 1
        for before, after in zip(whole, fewer, strict=True):  # nobody changes halves
            assert not rows(before) & rows(*[one for one in fewer if one is not after])
    few = many.at(np.arange(most))
    assert rows(*loaded(few)) == rows(few)
    halves = device_records(kit.site(tmp_path, data=data).data, KEY, evaluation_share=0.3)
    assert at_most(*halves, 60, KEY) == halves


def test_no_answer_waits_for_reading_while_as_many_jobs_run_as_the_owner_allows(tmp_path):
    """Their schemas are the cloud's, and so is what reading by them takes."""
    loader = kit.Loader()
    computer = Computer(kit.site(tmp_path, policy={"max_jobs": 3}), KEY, loader)
    # The last one in place of the one that was not used for longest.
    for shares, reads in (((0.1, 0.2, 0.3) * 4, 3), ((0.4, 0.3, 0.2), 4)):
        for share in shares:
            computer.records(share)
        assert loader.reads == reads


class Slow(Computer):
    """A box whose answers take so long in its trials, and are late with records or not."""

    def __init__(self, site, identity, needed_s, late):
        self.loader, self.trials, self.needed_s, self.late = kit.Loader(), 0, needed_s, late
        self.slowdown = 1.0
        super().__init__(site, identity.split_key, self.loader)

    def try_job(self, job, *, trains):
        self.trials += 1
        return compute.JobTrial(self.needed_s)

    def answer(self, one):
        found = super().answer(one)
        found = replace(found, slowdown=self.slowdown)
        return replace(found, without="late", late=True) if self.late else found


def slow_device(folder, plan, needed_s, late=False):
    boxes = []

    def compute(site, identity):
        boxes.append(Slow(site, identity, needed_s, late))
        return boxes[0]

    return kit.Device(folder, compute=compute).knows(plan), boxes[0]


@pytest.mark.parametrize(("share", "answers"), [(0.45, True), (0.55, False), (0.9, False)])
def test_a_job_whose_answer_fits_once_and_not_twice_is_declined(tmp_path, share, answers):
    """Before a record is read: a box that is slowed to half must still be in time."""
    plan = compile_job(kit.job(round={"budget_s": 8.0}))
    device, slow = slow_device(tmp_path, plan, share * 8.0 * WORK_SHARE)
    found = device.answer(kit.Round(plan, 1, device.keys()))
    assert isinstance(found, SealedAnswer if answers else NoAnswer)
    assert bool(slow.loader.reads) is answers
    assert bool(device.ledger.spent().epsilon) is answers


@pytest.mark.parametrize("mode", ["sync", "buffered"])
@pytest.mark.parametrize(
    ("trial_s", "slowdown", "overruns", "steps"),
    [
        *((0.001, 1, 0, 1), (0.11, 1, 0, 1), (0.12, 1, 0, 2), (0.50, 1, 0, 4), (0.52, 1, 0, 8)),
        *((60.0, 1, 0, 40), (0.0, 1, 0, 40), (0.10, 2, 0, 2), (0.10, 8, 0, 8), (0.10, 99, 0, 40)),
        *((0.001, 1, 1, 2), (0.001, 1, 3, 8), (0.50, 1, 2, 16), (0.50, 1, 9, 40)),
    ],
)
def test_a_time_budget_follows_trial_and_load_and_doubles_with_each_overrun(
    mode, trial_s, slowdown, overruns, steps
):
    trial = compute.JobTrial(trial_s, overruns=overruns, slowdown=slowdown)
    longest = Round(mode=mode, deadline_s=400 * LEAST_BUDGET_S)
    assert trial.budget_s(longest) == pytest.approx(steps * LEAST_BUDGET_S)
    assert trial.budget_s(Round(mode=mode, deadline_s=200, budget_s=7)) == 7.0


def test_a_time_budget_follows_the_load_of_answers_without_records(tmp_path):
    plan = compile_job(kit.job(train={"method": "fm", "rounds": 12}, round={"deadline_s": 60.0}))
    device, slow = slow_device(tmp_path, plan, 0.085)
    budgets_s = []
    for index, slow.slowdown in enumerate((1.0, 8.0, *[1.0] * 6), start=1):
        one = kit.Round(plan, index, device.keys())
        budgets_s.append(device.host.perform(OpenPackage(one.manifest, one.blob)).budget_s)
        assert isinstance(device.answer(one), SealedAnswer)
    steps = [1, 1, 8, 8, 8, 8, 4, 4]  # a load counts an eighth less in each later round
    assert budgets_s == pytest.approx([LEAST_BUDGET_S * one for one in steps])


@pytest.mark.parametrize(("deadline_s", "doublings"), [(2.0, 0), (60.0, 5)])
def test_overruns_first_lengthen_the_budget_and_in_the_end_decline_the_job(
    tmp_path, deadline_s, doublings
):
    rounds = {"method": "fm", "rounds": 12}
    plan = compile_job(kit.job(train=rounds, round={"deadline_s": deadline_s}))
    device, slow = slow_device(tmp_path, plan, 0.01, late=True)
    longest_s, index = plan.job.round.time_budget_s, 0
    for index in range(1, max(MOST_OVERRUNS, doublings + 1) + 1):
        one = kit.Round(plan, index, device.keys())
        opened = device.host.perform(OpenPackage(one.manifest, one.blob))
        assert opened.budget_s == min(longest_s, LEAST_BUDGET_S * 2 ** (index - 1))
        assert isinstance(device.answer(one), SealedAnswer)
    for later in (index + 1, index + 2):
        assert f"{index} answers were late" in device.declines(plan, later).why
    assert slow.trials == 1
    device.restarted().declines(plan, index + 3)
