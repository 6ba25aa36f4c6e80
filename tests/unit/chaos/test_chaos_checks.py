"""Each check holds for a sound site and finds the one thing that is wrong with a spoiled one."""

from dataclasses import replace

import numpy as np
import pytest

from edgeveil.crypto.ring import Ring
from edgeveil.jobs import compile_job, load_plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.stage import NOISE
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_cloud.commit_round import combine_sums
from edgeveil_tools.local.job import Overrides, local_job
from tests.chaos.__main__ import CORRELATED_JOB, JOB
from tests.chaos.checks import ChaosFacts, check_all, outcome, rounds_during_faults, sums_right
from tests.chaos.evidence import DeletedHalf, MaskAnswer, UnmaskedChoice
from tests.chaos.faults import Fault
from tests.chaos.supervisor import ProcessEnd
from tests.kits import sound_site
from tests.kits.sound_site import DEVICES, ROUNDS, segments, sound, state_of, tensors


def with_job(found, **changes):
    return replace(found, jobs=(replace(found.jobs[0], **changes),))


def with_commit(found, at, **changes):
    commits = list(found.jobs[0].commits)
    commits[at] = replace(commits[at], **changes)
    return with_job(found, commits=tuple(commits))


def with_device(found, **changes):
    return replace(found, devices=(replace(found.devices[0], **changes), *found.devices[1:]))


def without_segment(found):
    lost = segments(0, 2)[0]
    accepted = tuple(h for h in found.jobs[0].commits[1].accepted if h != lost)
    rest = with_commit(found, 1, accepted=accepted, uploads=DEVICES - 1)
    return with_job(rest, state=state_of([1, 2, 3], only=2))


def repriced(found):
    wire = found.jobs[0].wire.hex()
    entry = found.devices[0].ledger[wire]
    twice = replace(entry.answers[3], events=entry.answers[3].events * 2)
    ledger = {wire: replace(entry, answers={**entry.answers, 3: twice})}
    return with_device(found, ledger=ledger)


def with_receipts(found, index, **changes):
    receipts = found.devices[0].receipts
    changed = [replace(one, **changes) if one.round == index else one for one in receipts]
    return with_device(found, receipts=tuple(changed))


def counted_again(found):
    first, second = found.jobs[0].commits[:2]
    return with_commit(found, 1, accepted=(*second.accepted[1:], first.accepted[0]))


FOUND = {
    "jobs complete": [
        lambda f: with_job(f, status="failed", reason="out of paper"),
        lambda f: replace(f, jobs=()),
    ],
    "rounds intact": [
        lambda f: with_job(f, commits=(f.jobs[0].commits[0], *f.jobs[0].commits[2:])),
        lambda f: with_commit(f, 0, uploads=1),
        lambda f: with_commit(f, 0, uploads=DEVICES + 1),
        lambda f: with_commit(f, 0, accepted=()),
    ],
    "counted once": [
        counted_again,
        lambda f: with_commit(f, 0, accepted=(*f.jobs[0].commits[0].accepted[1:], bytes(32))),
    ],
    "sums right": [
        lambda f: with_job(f, state=state_of([0, 1, 2], only=3)),  # one is listed and left out
        lambda f: with_job(f, state=b"no tensors"),
        lambda f: with_device(f, releases={}),
        lambda f: with_commit(f, 1, uploads=DEVICES - 1),
        lambda f: with_commit(f, 1, accepted=f.jobs[0].commits[1].accepted[1:]),
    ],
    "acknowledged counted": [
        without_segment,
        lambda f: with_receipts(f, 1, state="missing"),
    ],
    "ledgers exact": [
        repriced,
        lambda f: with_device(f, links=(*f.devices[0].links, f.devices[0].links[0])),
        lambda f: with_device(f, links=f.devices[0].links[1:]),
        lambda f: with_device(f, ledger={"00": next(iter(f.devices[0].ledger.values()))}),
        lambda f: with_device(f, faults=("the ledger was altered",)),
    ],
    "models same": [
        lambda f: with_job(f, faults=("its state holds a NaN",)),
        lambda f: with_device(f, release=None),
        lambda f: with_device(f, release=(f.jobs[0].wire.hex(), "another")),
        lambda f: with_job(f, release_digest=""),
    ],
    "unmasked once": [  # where nothing is masked
        lambda f: replace(f, unmasked=(UnmaskedChoice(f.jobs[0].wire, 1, 1, b"a"),)),
    ],
    "logs silent": [
        lambda f: replace(f, logs={"proxy": "token s3cret-word"}, secrets=("s3cret-word",)),
        lambda f: replace(f, logs={"proxy": "lost box-2"}),
        lambda f: replace(f, logs={"worker-1": "12:00:00 info box-2: says"}),
        lambda f: replace(f, logs={"cloud": "from 00aa11bb"}, device_ids=("00aa11bb",)),
    ],
}


OF_CORRELATED_NOISE = {"noise stays split", "halves used up", "turns kept"}


def violated(found, facts=None):
    return {one.name for one in check_all(found, facts or ChaosFacts()) if not one.holds}


def test_a_sound_site_violates_nothing_and_every_check_has_looked():
    ends = [ProcessEnd("cloud", 9.0, 9.0, 0, "stopped")]
    checked = check_all(sound(), ChaosFacts(ends=ends, quiet_s=99.0))
    assert [one.violations for one in checked if one.violations] == []
    assert {one.name for one in checked if not one.looked} == OF_CORRELATED_NOISE
    # An upload that was not acknowledged, or of an attempt that was given up, may be lost.
    assert violated(with_receipts(without_segment(sound()), 2, state="dropped")) == set()
    given_up = with_receipts(without_segment(sound()), 2, attempt=2)
    assert "acknowledged counted" not in violated(given_up)


@pytest.mark.parametrize(
    ("name", "spoil"), [(name, spoil) for name, spoils in FOUND.items() for spoil in spoils]
)
def test_what_is_wrong_is_found_by_its_check(name, spoil):
    assert name in violated(spoil(sound()))


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("jobs complete", ChaosFacts(stalled={"at_s": 300.0})),
        ("processes sound", ChaosFacts(traces=["cloud: Traceback"])),
        ("processes sound", ChaosFacts(late=["worker-2"])),
    ],
)
def test_what_the_run_itself_has_seen_is_found(name, facts):
    assert violated(sound(), facts) == {name}


# --- cells ---

CELLS = ("north", "south")
NORTH = range(0, 2 * DEVICES, 2)


def without_south(found):
    """The second round is made of the north's batch alone; whoever is in the south paid for it."""
    accepted = marks_of(NORTH, 2)
    rest = with_commit(found, 1, accepted=accepted, uploads=DEVICES, cells=CELLS[:1])
    devices = list(rest.devices)
    for at, one in enumerate(devices):
        if one.cell == "south":
            receipts = (replace(r, state="missing") if r.round == 2 else r for r in one.receipts)
            devices[at] = replace(one, receipts=tuple(receipts))
    state = state_of(NORTH, only=2, devices=2 * DEVICES)
    return replace(with_job(rest, state=state), devices=tuple(devices))


def marks_of(devices, index):
    return tuple(mark for device in devices for mark in segments(device, index))


def never_back(found):
    """The last job has no round with the south."""
    commits = [replace(one, cells=CELLS[:1]) for one in found.jobs[0].commits]
    return with_job(found, commits=tuple(commits))


IN_CELLS = {
    "acknowledged counted": [
        lambda f: with_commit(f, 1, accepted=marks_of(NORTH[1:], 2), uploads=DEVICES - 1),
        # It came in time, and only its devices' receipts say that nothing of it counts.
        lambda f: with_commit(f, 1, cells=CELLS),
    ],
    "rounds intact": [
        lambda f: with_commit(f, 1, cells=CELLS),
        lambda f: with_commit(f, 1, cells=()),
        lambda f: with_commit(f, 0, cells=CELLS[:1]),  # and counts both
        # One cell's batch is below the floor, made up for by the other's.
        lambda f: with_commit(f, 0, accepted=marks_of((*NORTH, 1, 3), 1)),
        never_back,
    ],
}


@pytest.mark.parametrize(
    ("name", "spoil"), [(name, spoil) for name, spoils in IN_CELLS.items() for spoil in spoils]
)
def test_a_round_may_be_made_without_a_cell_and_what_is_wrong_in_one_is_found(name, spoil):
    found = without_south(sound(CELLS))
    assert violated(found) == set()
    assert name in violated(spoil(found))


@pytest.fixture
def masked(monkeypatch):
    job, _ = local_job(JOB, Overrides(settings=(("aggregation.secure", True),)))
    monkeypatch.setattr(sound_site, "PLAN", compile_job(job))


@pytest.mark.usefixtures("masked")
def test_each_cell_unmasks_its_own_part_once():
    found = without_south(sound(CELLS))
    (of_it,) = found.jobs
    masked = [one for one in of_it.commits if of_it.plan.masked(of_it.plan.round(one.index))]
    choices = tuple(
        UnmaskedChoice(of_it.wire, one.index, 1, b"q", cell) for one in masked for cell in one.cells
    )
    unmasked = replace(found, unmasked=choices)
    assert violated(unmasked) == set()
    late = UnmaskedChoice(of_it.wire, 2, 1, b"q", "south")  # its masks came too late
    assert violated(replace(unmasked, unmasked=(*choices, late))) == set()
    for wrong in (
        choices[1:],
        (*choices, replace(choices[0], question=b"r")),
        (*choices, late, replace(late, question=b"r")),
        (*choices, replace(late, attempt=2)),
    ):
        assert violated(replace(unmasked, unmasked=wrong)) == {"unmasked once"}


@pytest.mark.usefixtures("masked")
def test_under_masks_the_state_is_that_of_the_exact_integer_sums():
    found, centre = sound(), 1
    assert {one.dtype for one in tensors(0, centre).values()} == {np.dtype(np.int64)}
    assert outcome(sums_right, sums_right(found, None)).holds
    changed = tensors(0, centre)
    (name,) = changed
    changed[name][np.abs(changed[name]).argmax()] += 1 << 10  # 2^-18 of the largest
    releases = {**found.devices[0].releases}
    releases[found.jobs[0].wire.hex(), centre] = pack_tensors(changed)
    other = with_device(found, releases=releases)
    assert not outcome(sums_right, sums_right(other, None)).holds


def less_a_share(plan, coefficient):
    """The state of a cloud that takes back so much of each round's noise, rounded down."""
    state, before = plan.cloud.initial_state(), 0
    for index in ROUNDS:
        found = [tensors(device, index) for device in range(DEVICES)]
        sums = {name: sum(one[name] for one in found) for name in found[0]}
        noise = sums.pop(NOISE)
        flat = np.concatenate([total.ravel() for total in sums.values()])
        flat += np.broadcast_to(-coefficient * before >> 8, flat.shape)
        parts = np.split(flat, np.cumsum([total.size for total in sums.values()])[:-1])
        sums = {n: part.reshape(sums[n].shape) for n, part in zip(sums, parts, strict=True)}
        state = combine_sums(RoundContext.of(plan, index), state, [(DEVICES, sums)])
        before = noise
    return pack_tensors(state)


def test_what_correlated_noise_promises_is_checked(monkeypatch):
    plan = load_plan(CORRELATED_JOB)
    monkeypatch.setattr(sound_site, "PLAN", plan)
    monkeypatch.setattr(sound_site, "LARGEST", 1 << 24)
    coefficient = plan.context.correlation.coefficient
    found = with_job(sound(), state=less_a_share(plan, coefficient))
    wire, hexed = found.jobs[0].wire, found.jobs[0].wire.hex()
    *updates, noise = (Ring(one.count, one.bits).byte_count for one in plan.masked(plan.round(1)))
    answer = MaskAnswer(wire, 1, "q", "d", 1 + sum(updates))
    answers, deleted = (answer, answer), (DeletedHalf(wire, 1, 2), DeletedHalf(wire, 2, None))
    links = tuple(((hexed, 1), (hexed, 3)) for _ in found.devices)
    devices = tuple(replace(d, links=own) for d, own in zip(found.devices, links, strict=True))
    found = replace(found, answers=answers, deleted=deleted, devices=devices)
    looked = OF_CORRELATED_NOISE | {"sums right"}
    assert violated(found) & looked == set()
    for name, wrong in (
        ("noise stays split", {"answers": (replace(answer, size=answer.size + noise),)}),
        ("noise stays split", {"answers": (answer, replace(answer, digest="e"))}),
        ("halves used up", {"deleted": (DeletedHalf(wire, 2, 2),)}),
        ("halves used up", {"left": ((wire, 3),)}),
        ("turns kept", {"devices": with_device(found, links=((hexed, 3), (hexed, 4))).devices}),
    ):
        assert violated(replace(found, **wrong)) & looked == {name}
    for other in (0, coefficient - 1):
        spoilt = with_job(found, state=less_a_share(plan, other))
        assert violated(spoilt) & looked == {"sums right"}


FAULTS = [
    Fault(10.0, "disk", "proxy", 3.0),
    Fault(10.0, "cut", "proxy-edge", 1.0),
    Fault(50.0, "broker", "cloud", 2.0),
    Fault(50.0, "corrupt", "devices-edge", 60.0),
    Fault(90.0, "delay", "devices-edge", 4.0),
]
UP_S = 5.0


@pytest.mark.parametrize(
    ("end", "sound_end"),
    [
        (ProcessEnd("proxy", 30.0, 9.0, -9, "killed"), True),
        (ProcessEnd("proxy", 30.0, 9.0, -9, "by itself"), False),
        (ProcessEnd("proxy", 60.0, 9.0, 0, "stopped"), True),
        (ProcessEnd("proxy", 60.0, 40.0, -15, "stopped"), False),
        (ProcessEnd("proxy", 17.0, 99.0, 1, "by itself"), True),  # its disk is full
        (ProcessEnd("proxy", 40.0, 9.0, 1, "by itself"), False),  # not any more
        (ProcessEnd("cloud", 17.0, 9.0, 3, "by itself"), False),  # another's link was cut
        (ProcessEnd("cloud", 58.0, 4.0, 3, "by itself"), True),
        (ProcessEnd("cloud", 58.0, 40.0, 3, "by itself"), False),  # it was up, and should come back
        (ProcessEnd("cloud", 68.0, 4.0, 3, "by itself"), False),  # long after it
        (ProcessEnd("worker-1", 58.0, 4.0, 3, "by itself"), False),  # spoiled packets end nobody
        (ProcessEnd("worker-2", 97.0, 4.0, 3, "by itself"), True),
    ],
)
def test_which_ends_of_a_process_are_excused(end, sound_end):
    found = violated(sound(), ChaosFacts(faults=FAULTS, up_s=UP_S, ends=[end]))
    assert found == (set() if sound_end else {"processes sound"})


def test_a_run_whose_faults_hit_no_round_proves_nothing():
    few, many = ([Fault(1.0, "kill", "cloud")] * count for count in (9, 10))
    late = ChaosFacts(faults=many, up_s=float(len(ROUNDS) + 1), quiet_s=99.0, touched={"kill": 10})
    assert violated(sound(), late) == {"faults met"}
    assert violated(sound(), replace(late, faults=few)) == set()
    assert rounds_during_faults(sound(), replace(late, up_s=2.0)) == len(ROUNDS) - 1
