"""Checks after a chaos run; each is a pure function of the evidence.

A check yields the number of things it examined, and a string for each violation. Its docstring is
printed with its result."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from edgeveil.crypto.ring import NOISE_BITS, Ring
from edgeveil.errors import EdgeVeilError
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.parts.stage import NOISE
from edgeveil.protocol.tensors import unpack_tensors
from tests.chaos.faults import Fault
from tests.chaos.supervisor import ProcessEnd

_AWAY = ("broker", "cut", "delay")  # a first dial fails; once it was up, a process comes back
_BROKER_CODE = 3
_DIAL_S = 10.0  # a dial may last so long
_FIRST_DIAL_S = 20.0  # after a start, its own time on a busy machine included
_DISK_S = 15.0
_STARTING_S = 10.0  # before it has begun to listen to SIGTERM
_MANY_KILLS = 10  # of which some must hit a round under way
_PROMISED = ("held", "counted", "missing")


@dataclass(frozen=True)
class ChaosFacts:
    """Observations of the run itself; `touched`: number of things hit, by kind.

    `begun_at` is the zero of its clock, in seconds since 1970; faults lasted from `up_s` to
    `quiet_s`."""

    faults: Sequence[Fault] = ()
    up_s: float = 0.0
    quiet_s: float = 0.0
    begun_at: float = 0.0
    touched: Mapping[str, int] = field(default_factory=dict)
    ends: Sequence[ProcessEnd] = ()
    traces: Sequence[str] = ()
    late: Sequence[str] = ()
    stalled: dict[str, Any] | None = None


@dataclass(frozen=True)
class CheckOutcome:
    """`looked`: number of things that the check examined."""

    name: str
    about: str
    looked: int
    violations: list[str] = field(default_factory=list)

    @property
    def holds(self):
        return not self.violations


def jobs_complete(found, facts):
    """Every job completed."""
    if facts.stalled is not None:
        yield f"nothing moved any more at {facts.stalled.get('at_s', 0.0):.0f} s, see `stalled`"
    if not found.jobs:
        yield "no job was ever taken"
    for job in found.jobs:
        yield 1
        if job.status != "completed":
            yield f"{job.id} is {job.status}: {job.reason or 'no reason'}"


def rounds_intact(found, _facts):
    """Committed rounds have no gap, and as many uploads as allowed, of each cell too."""
    senders = _senders(found)
    for job in found.jobs:
        wanted = len(job.plan.all_rounds) if job.status == "completed" else len(job.commits)
        numbers = [commit.index for commit in job.commits]
        if numbers != list(range(1, wanted + 1)):
            yield f"{job.id} has the rounds {numbers}, not 1 to {wanted}"
        for commit in job.commits:
            yield 1
            low, high = job.plan.job.round.min_batch, len(found.devices)
            groups = len(job.plan.groups(job.plan.round(commit.index)))
            if not low <= commit.uploads <= high:
                yield f"{_at(job, commit.index)} has {commit.uploads} uploads, not {low} to {high}"
            if not commit.uploads <= len(commit.accepted) <= high * groups:
                yield f"{_at(job, commit.index)} lists {len(commit.accepted)} segments"
            yield from _parts_intact(job, commit, senders, low)
    for cell in found.cells if len(found.cells) > 1 else ():  # one left out has to come back
        if found.jobs and not any(cell in commit.cells for commit in found.jobs[-1].commits):
            yield f"{found.jobs[-1].id}, the last job, has no round with {cell}"


def _senders(found):
    return {
        mark: device
        for device in found.devices
        for receipt in device.receipts
        for mark in receipt.segment_hashes
    }


def _parts_intact(job, commit, senders, low):
    """Check that each cell's batch is an anonymity set of its own, and none else is counted."""
    known = {one.number: one.cell for mark in commit.accepted if (one := senders.get(mark))}
    devices = Counter(known.values())
    if not commit.cells:
        yield f"{_at(job, commit.index)} is made of no cell's batch"
    for cell in commit.cells:
        if devices[cell] < low:
            yield f"{_at(job, commit.index)} has {devices[cell]} uploads of {cell or 'the cell'}"
    for cell in sorted(devices.keys() - set(commit.cells)):
        yield f"{_at(job, commit.index)} counts uploads of {cell}, whose batch is no part of it"


def counted_once(found, _facts):
    """No update is counted twice, or without a device having priced and stored it."""
    places = {}
    for job in found.jobs:
        for commit in job.commits:
            for digest in commit.accepted:
                yield 1
                places.setdefault(digest, []).append(_at(job, commit.index))
    for where in places.values():
        if len(where) > 1:
            yield f"one segment is counted {len(where)} times: {', '.join(where)}"
    known = {h for device in found.devices for r in device.receipts for h in r.segment_hashes}
    for where in (where for digest, where in places.items() if digest not in known):
        yield f"{where[0]} counts a segment that no device stored"


def acknowledged_counted(found, _facts):
    """Every acknowledged upload is in its round's record, if its cell is; wrong masks never."""
    for job, device, receipt, commit in _promised(found):
        if device.cell not in commit.cells:
            continue
        yield 1
        if device.wrong_masks:
            if receipt.segment_hashes[0] in commit.accepted:
                at = f"{_at(job, receipt.round)}, attempt {receipt.attempt}"
                yield f"{at}: device {device.number}, whose masks are wrong, is counted"
            continue
        lost = len(set(receipt.segment_hashes) - set(commit.accepted))
        if lost or receipt.state == "missing":
            yield (
                f"{_at(job, receipt.round)}, attempt {receipt.attempt}: device {device.number} was"
                f" acknowledged ({receipt.state}), {lost} of its segments are not counted"
            )


def _promised(found):
    """Yield the uploads acknowledged by a proxy in the committed attempt."""
    commits = {
        (job.wire, commit.index, commit.attempt): (job, commit)
        for job in found.jobs
        for commit in job.commits
    }
    for device in found.devices:
        for receipt in device.receipts:
            key = (receipt.job_id, receipt.round, receipt.attempt)
            if receipt.state in _PROMISED and key in commits:
                job, commit = commits[key]
                yield job, device, receipt, commit


def faults_met(found, facts):
    """Rounds were committed during the faults."""
    count = rounds_during_faults(found, facts)
    yield count
    kills = sum(fault.kind == "kill" for fault in facts.faults)
    if not count and kills >= _MANY_KILLS:
        yield f"no round was committed during {kills} kills: this run proves nothing"


def rounds_during_faults(found, facts):
    """Return the number of rounds committed between the first fault and the quiet time."""
    times_s = [c.committed_s - facts.begun_at for job in found.jobs for c in job.commits]
    return sum(facts.up_s <= at_s <= facts.quiet_s for at_s in times_s)


def unmasked_once(found, _facts):
    """Each cell's part of a masked round was unmasked for one choice, in the committed attempt."""
    choices = defaultdict(set)
    for one in found.unmasked:
        choices[one.cell, one.job, one.round].add((one.attempt, one.question))
    for job in found.jobs:
        for commit in job.commits:
            asked = {commit.attempt} if job.plan.masked(job.plan.round(commit.index)) else set()
            for cell in found.cells:
                made = choices[cell, job.wire, commit.index]
                where = f"{_at(job, commit.index)}{f' of {cell}' if cell else ''}"
                yield 1
                if len(made) > 1:
                    yield f"{where} was unmasked for {len(made)} choices"
                attempts = {attempt for attempt, _ in made}
                late = not attempts and cell not in commit.cells  # its masks were not waited for
                if attempts != asked and not late:
                    yield f"{where} was not unmasked as attempt {commit.attempt} asks"


def noise_stays_split(found, _facts):
    """An answer on masks has no sum of correlated noise; a question has one answer."""
    jobs, answers = {job.wire: job for job in found.jobs}, defaultdict(set)
    for one in found.answers:
        job = jobs[one.job]
        round = job.plan.round(one.round)
        answers[one.question].add(one.digest)
        if job.plan.correlated(round) is None:
            continue
        yield 1
        *updates, _noise = job.plan.masked(round)
        size = 1 + sum(Ring(group.count, group.bits).byte_count for group in updates)
        if one.size != size:
            yield f"{_at(job, one.round)} was answered by {one.size} bytes, not {size}"
    for question, digests in answers.items():
        if len(digests) > 1:
            yield f"question {question[:8]} had {len(digests)} answers"


def halves_used_up(found, _facts):
    """A proxy keeps its half of a round's noise until a later one is opened, or the job ends."""
    names = {job.wire: job for job in found.jobs}
    for one in found.deleted:
        yield 1
        job = names[one.job]
        early = one.opened is not None and one.opened <= one.round
        if early or (one.opened is None and job.status not in ("completed", "failed")):
            yield f"{_at(job, one.round)}: its half was deleted before its use"
    for job, round in found.left:
        if names[job].status != "running":
            yield f"{_at(names[job], round)}: its half is still at the proxy"


def turns_kept(found, _facts):
    """With correlated noise a device's answers are `min_separation` apart, and few enough."""
    for job in found.jobs:
        if job.plan.context.correlation is None:
            continue
        asked = job.plan.context.correlation
        for device in found.devices:
            rounds = sorted(round for name, round in device.links if name == job.wire.hex())
            numbers = [job.plan.round(round).number for round in rounds]
            yield len(numbers)
            near = any(b - a < asked.min_separation for a, b in pairwise(numbers))
            if near or len(numbers) > asked.participations:
                yield f"{job.id}: device {device.number} answered the rounds {numbers}"


def ledgers_exact(found, _facts):
    """Each release is priced once, as the job requires; nothing is stored or sent unpriced."""
    jobs = {job.wire.hex(): job for job in found.jobs}
    for device in found.devices:
        for fault in device.faults:
            yield f"device {device.number}: {fault}"
        for (job, round), times in Counter(device.links).items():
            yield 1
            if times > 1:
                yield f"device {device.number} released {job[:8]} round {round} {times} times"
        for receipt in device.receipts:
            if (receipt.job_id.hex(), receipt.round) not in device.links:
                where = f"{receipt.job_id.hex()[:8]} round {receipt.round}"
                yield f"device {device.number} stored an upload of {where} without a price"
        for name, entry in device.ledger.items():
            if name not in jobs:
                yield f"device {device.number} has a job that the cloud does not know"
                continue
            for round, answer in entry.answers.items():
                plan = jobs[name].plan
                wanted = Counter(plan.price(plan.round(round), trains=device.trains))
                if Counter(answer.events) != wanted:
                    where = _at(jobs[name], round)
                    yield f"device {device.number} priced {where} as {list(answer.events)}"


def models_same(found, _facts):
    """States and releases are whole and finite; the last release is the same everywhere."""
    for job in found.jobs:
        yield 1
        for fault in job.faults:
            yield f"{job.id}: {fault}"
        if job.status == "completed" and not job.release_digest:
            yield f"{job.id} is completed and has no release"
    released = [job for job in found.jobs if job.release_digest]
    if not released:
        return
    wanted = (released[-1].wire.hex(), released[-1].release_digest)
    for device in found.devices:
        yield 1
        if device.release is None or device.release[1] != wanted[1]:
            yield f"device {device.number} does not hold the release of {released[-1].id}"


def processes_sound(_found, facts):
    """No process ended but by a kill, a fault that excuses it, or the clean stop."""
    for end in facts.ends:
        yield 1
        if not _excused(end, facts):
            yield f"{end.name} ended at {end.at_s:.1f} s with code {end.code}: {end.said[:200]}"
    yield from facts.traces
    for name in facts.late:
        yield f"{name} did not stop when asked to"


def logs_silent(found, _facts):
    """No log contains a password, a token or a device's name."""
    names = [f"box-{device.number}" for device in found.devices]
    for log, text in sorted(found.logs.items()):
        lines = text.splitlines()
        yield len(lines)
        if any(secret in text for secret in found.secrets):
            yield f"{log} holds a password or a token"
        # What an owner reads on the box's own console begins with its name.
        own = tuple(f"{name}: " for name in names) if log.startswith("worker") else ()
        if any(
            name in line for line in lines if not line.startswith(own or "\0") for name in names
        ):
            yield f"{log} names a device"
        if log in ("cloud", "broker-cloud") and any(one in text for one in found.device_ids):
            yield f"{log} holds a device's id"


def _excused(end, facts):
    if end.how == "killed":
        return True
    if end.how == "stopped":
        return end.code == 0 or (end.code < 0 and end.ran_s < _STARTING_S)
    return end.code > 0 and any(
        _excuses(fault, end, end.at_s - facts.up_s - fault.at_s) for fault in facts.faults
    )


def _excuses(fault, end, after_s):
    if fault.kind == "disk":
        return fault.target == end.name and 0 <= after_s <= fault.lasts_s + _DISK_S
    return (
        fault.kind in _AWAY
        and end.code == _BROKER_CODE
        and any(end.name == name or end.name.startswith(f"{name}-") for name in fault.cut_off)
        and end.ran_s <= _FIRST_DIAL_S
        and 0 <= after_s <= fault.lasts_s + _DIAL_S
    )


def _at(job, index):
    return f"{job.id} round {index}"


# --- the cloud's state, computed again from the devices' ledgers ---

# Of floats: far above the rounding of a sum, far below what one device's noise moves.
_RELATIVE, _ABSOLUTE = 1e-5, 1e-7
_STEPS = 1e-5  # far above the steps of a sum, far below a share of its noise


def uploads_of(found, job):
    """Return the tensor behind each mark, from the ledgers of the devices that sealed it.

    Raises EdgeVeilError or ValueError if a ledger's tensors do not match the receipt."""
    uploads = {}
    for device in found.devices:
        for receipt in device.receipts:
            payload = device.releases.get((job.wire.hex(), receipt.round))
            if receipt.job_id != job.wire or payload is None:
                continue
            tensors = unpack_tensors(payload)
            specs = job.plan.segments(job.plan.round(receipt.round))
            names = [spec.name for spec in specs if spec.name in tensors]
            for mark, name in zip(receipt.segment_hashes, names, strict=True):
                uploads[mark] = (name, tensors[name])
    return uploads


def sums_right(found, _facts):
    """The cloud's state is that of the mean of the uploads it lists; under masks, bit for bit,
    and with correlated noise less a share of the noise of the round before, within a step."""
    for job in found.jobs:
        try:
            yield from _job(job, uploads_of(found, job))
        except (EdgeVeilError, ValueError) as error:
            yield f"{job.id} cannot be computed again: {error}"


def _job(job, uploads):
    state, before = job.plan.cloud.initial_state(), None
    for commit in job.commits:
        where = f"{job.id} round {commit.index}"
        round = job.plan.round(commit.index)
        unknown = sum(mark not in uploads for mark in commit.accepted)
        if unknown:
            yield f"{where} lists {unknown} segments whose tensors no ledger holds"
            return
        groups = _groups(job.plan, round, commit, uploads)
        least = min(map(len, groups.values()), default=0)
        if commit.uploads != least or not least:
            yield f"{where} has {commit.uploads} uploads and lists {least}"
            return
        if job.plan.correlated(round) is None:
            mean = {name: _mean(arrays) for name, arrays in groups.items()}
        else:
            mean, before = _less_a_share(job.plan, groups, before)
        state = job.plan.cloud.absorb(state, round, mean, commit.uploads)
        yield 1
    if job.commits:
        held = unpack_tensors(job.state) if job.state else {}
        for name in sorted(state.keys() | held.keys()):
            same = np.array_equal if job.plan.context.summed else _close
            if job.plan.context.correlation is not None:
                same = partial(_close, absolute=_STEPS)
            if name not in held or name not in state or not same(held[name], state[name]):
                yield f"{job.id}: '{name}' of the state is not that of the uploads listed"


def _groups(plan, round, commit, uploads):
    """Return the training segments that a commit lists, by name, with empty names too."""
    found = defaultdict(list)
    for spec in plan.cloud.segments(round):
        found[spec.name] = []
    for mark in commit.accepted:
        name, array = uploads[mark]
        if name != SOFTMAX:
            found[name].append(array)
    return found


def _mean(arrays):
    """Return the exact sum of integers divided once, as in the cloud after unmasking."""
    whole = np.stack(arrays)
    exact = np.int64 if np.issubdtype(whole.dtype, np.integer) else np.float64
    total = np.asarray(np.sum(whole, axis=0, dtype=exact), np.float64)
    return total / len(arrays)


def _less_a_share(plan, groups, before):
    """Return the means less a share of the noise sum `before`, and the noise sum of these."""
    sums = {name: np.sum(np.stack(arrays), axis=0) for name, arrays in groups.items()}
    noise, start = sums.pop(NOISE), 0
    if before is not None:
        share = before * (plan.context.correlation.coefficient / (1 << NOISE_BITS))
        for name, total in sums.items():
            sums[name] = total - share[start : start + total.size].reshape(total.shape)
            start += total.size
    return {name: total / plan.context.devices for name, total in sums.items()}, noise


def _close(held, wanted, absolute=_ABSOLUTE):
    return held.shape == wanted.shape and np.allclose(
        held.astype(np.float64), wanted.astype(np.float64), _RELATIVE, absolute
    )


# --- all of them ---

CHECKS = (
    jobs_complete,
    rounds_intact,
    counted_once,
    unmasked_once,
    noise_stays_split,
    halves_used_up,
    turns_kept,
    sums_right,
    acknowledged_counted,
    ledgers_exact,
    models_same,
    faults_met,
    processes_sound,
    logs_silent,
)


KEPT = (rounds_intact, counted_once, acknowledged_counted, ledgers_exact, models_same)
"""Of those what holds of a site whose brokers or store went away."""


def check_all(found, facts):
    return [outcome(check, check(found, facts)) for check in CHECKS]


def all_hold(found, *kept):
    """Assert that each of these checks examined something and found no violation."""
    for check in kept:
        seen = outcome(check, check(found, ChaosFacts()))
        assert seen.looked and not seen.violations, seen


def outcome(check, found):
    yielded = list(found)
    violations = [item for item in yielded if isinstance(item, str)]
    looked = sum(item for item in yielded if isinstance(item, int))
    about = (check.__doc__ or "").strip()
    return CheckOutcome(check.__name__.replace("_", " "), about, looked, violations)
