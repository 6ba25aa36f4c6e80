"""What the cloud's machine asks of its host, and what comes back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edgeveil.protocol.messages import (
    DECLINE_CAUSES,
    Batch,
    CheckMasks,
    Commit,
    ExchangeId,
    Manifest,
    Misfits,
    Shortfall,
    Unmask,
)
from edgeveil.protocol.transfer import GrantPut

ONE_CELL = ("",)  # of a fleet without named cells


@dataclass(frozen=True)
class StartJob:
    """Run this job from `exchange` (1 for a new one), `attempt` being the first one not yet used.

    `exchange` is `exchanges + 1` where all are committed and only the release is missing.
    """

    job_id: bytes
    exchange: int
    attempt: int
    exchanges: int
    retries: int


@dataclass(frozen=True)
class CancelJob:
    """End this job now."""

    job_id: bytes


@dataclass(frozen=True)
class RepeatEnd:
    """This job ended before the process did: say so again, as nobody may have heard it."""

    job_id: bytes
    status: str


@dataclass(frozen=True)
class SealJob:
    """Seal the job and its graph to all enrolled keys of these cells.

    Outcome `CellBroadcasts`, `Obstacle` or `WorkFailed`.
    """

    job_id: bytes
    cells: tuple[str, ...] = ONE_CELL


@dataclass(frozen=True)
class SealRound:
    """Select among the devices of these cells, make the keys of the round, seal the model.

    Outcome `CellBroadcasts`, `Obstacle` or `WorkFailed`; `AskUnmask` where the exchange came as far
    as that before, as it is asked no second time.
    """

    job_id: bytes
    exchange: int
    attempt: int
    cells: tuple[str, ...] = field(default=ONE_CELL, compare=False)


@dataclass(frozen=True)
class SealRelease:
    """Seal the final model, to a canary's keys or to all enrolled ones, as the job says.

    Outcome `CellBroadcasts`, `Obstacle` or `WorkFailed`.
    """

    job_id: bytes
    cells: tuple[str, ...] = ONE_CELL


@dataclass(frozen=True)
class PublishRelease:
    """Bring the release of this job, which has ended, to all enrolled devices of these cells."""

    job_id: bytes
    cells: tuple[str, ...] = ONE_CELL


@dataclass(frozen=True)
class SealPublication:
    """Seal a release to all enrolled keys of these cells; outcome `CellBroadcasts`, `Obstacle` or
    `WorkFailed`."""

    job_id: bytes
    cells: tuple[str, ...] = ONE_CELL


@dataclass(frozen=True)
class ReleaseHeld:
    """The proxy of this cell holds the release broadcast of this sequence."""

    sequence: int
    cell: str = ""


@dataclass(frozen=True)
class CountReports:
    """Open devices' reports on a release and count each once; outcome `ReportsCounted`.

    `note` is the digest of what handed them over, in this cell.
    """

    at: ExchangeId
    sealed: tuple[bytes, ...]
    note: bytes
    cell: str = ""


@dataclass(frozen=True)
class ReportsCounted:
    """The counts are durable."""


@dataclass(frozen=True)
class Broadcast:
    """A manifest without signature and its blob."""

    manifest: Manifest
    data: bytes


@dataclass(frozen=True)
class CellBroadcasts:
    """What each cell is sent; a cell that is not named has no device for it."""

    by_cell: Mapping[str, Broadcast]


@dataclass(frozen=True)
class Absorb:
    """Check, open, validate, aggregate, evaluate, commit the batches whose parts were stored, one
    of each cell.

    Outcome `RoundCommit`, `TooFewUploads`, `Obstacle` or `WorkFailed`; for a round under masks
    `AskChecks`, or `AskUnmask` where its masks are not checked one by one. The host commits in one
    transaction and does nothing the second time.
    """

    batches: Mapping[str, Batch]

    @property
    def at(self) -> ExchangeId:
        """The attempt that they belong to."""
        return next(iter(self.batches.values())).at


@dataclass(frozen=True)
class OpenArrived:
    """Open what is there of a round's stream and was not opened yet, and add it up. Nothing
    follows from the outcome: what is not done then `Absorb` does.

    `batch` has no counts while all that is there is its stream.
    """

    batch: Batch
    cell: str = ""


@dataclass(frozen=True)
class AskChecks:
    """The uploads were opened and added up under their masks; before any counts, the proxy of each
    of these cells is asked for the check of each mask."""

    checks: Mapping[str, CheckMasks]


@dataclass(frozen=True)
class TakeChecks:
    """Compare the masks' checks with what the uploads say, and leave out those that do not fit. A
    cell that was asked and whose checks are not here is left out.

    Outcome `AskUnmask`, `TooFewUploads`, `Obstacle` or `WorkFailed`.
    """

    at: ExchangeId
    checks: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class AskUnmask:
    """The uploads that count were added up under their masks, and that is durable; the proxy of
    each cell has the masks of its own. `at` is the attempt that it came to; `misfits` are uploads
    that no honest device sends, by cell.
    """

    unmasks: Mapping[str, Unmask]
    misfits: Mapping[str, Misfits] = field(default_factory=dict)

    @property
    def at(self) -> ExchangeId:
        """The same of all."""
        return next(iter(self.unmasks.values())).at


@dataclass(frozen=True)
class TakeMasks:
    """Take these sums of masks away, check the sums, aggregate, evaluate, commit. What was kept
    of a cell whose masks are not here is of no use any more.

    Outcome `RoundCommit`, `Obstacle` or `WorkFailed`: wrong sums end the job, as a round is
    unmasked but once.
    """

    at: ExchangeId
    masks: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class RoundCommit:
    """The round is committed; the record names the accepted ciphertexts of all cells by hash."""

    commit: Commit
    data: bytes


def declined_text(declined: int, causes: Mapping[str, int]) -> str:
    """`10 declined (8 for budget, 2 for policy)`."""
    return f"{declined} declined{_causes_text(causes)}"


def _causes_text(causes: Mapping[str, int]) -> str:
    told = ", ".join(f"{count} for {cause}" for cause, count in causes.items())
    return f" ({told})" if told else ""


_LASTING = ("policy", "budget")  # causes of declines that the next attempt would meet again
_PASSING = {"conditions", "fault"}  # that a later attempt may not meet


@dataclass(frozen=True)
class RoundAnswers:
    """What came of an attempt, as counts: `void` are segments that did not count, by their reason.

    With cover traffic the uploads include the dummies, whose segments are `not_for_this_round`.
    """

    selected: int
    uploaded: int
    declined: int
    void: Mapping[str, int] = field(default_factory=dict)
    causes: Mapping[str, int] = field(default_factory=dict)  # of declines, by `DECLINE_CAUSES`
    offline: int | None = None  # of the devices asked or not, where the proxies know it

    @classmethod
    def of(
        cls,
        selected: int,
        told: Iterable[Batch | Shortfall],
        void: Mapping[str, int] | None = None,
    ) -> RoundAnswers:
        """Sum up what the proxies of all cells told of one attempt."""
        told = list(told)
        causes = Counter[str]()
        for one in told:
            causes.update(dict(zip(DECLINE_CAUSES, one.causes, strict=False)))
        known = bool(told) and all(one.offline >= 0 for one in told)
        return cls(
            selected,
            sum(one.uploads for one in told),
            sum(one.declined for one in told),
            void or {},
            {cause: count for cause, count in causes.items() if count},
            sum(one.offline for one in told) if known else None,
        )

    @property
    def absent(self) -> int:
        """Devices that were selected and said nothing before the round was over."""
        return max(0, self.selected - self.uploaded - self.declined)

    def ends_job(self, exchange: int) -> bool:
        """Whether a job ends at its `exchange` because all selected declined: where no cause is
        one that asking again could change, or nothing was committed before and none passes."""
        everybody = not self.uploaded and self.declined >= self.selected
        lasting = sum(self.causes.get(cause, 0) for cause in _LASTING)
        first = exchange == 1 and _PASSING.isdisjoint(self.causes)
        return everybody and (first or lasting >= self.declined)

    def to_dict(self) -> dict[str, object]:
        """For events."""
        return {
            "selected": self.selected,
            "uploaded": self.uploaded,
            "declined": self.declined,
            "absent": self.absent,
            "void": dict(self.void),
            **({"causes": dict(self.causes)} if self.causes else {}),
            **({"offline": self.offline} if self.offline is not None else {}),
        }

    def __str__(self) -> str:
        told = (
            f"{self.selected} selected, {self.uploaded} uploaded"
            f", {declined_text(self.declined, self.causes)}"
            f", {self.absent} late or absent"
        )
        if self.offline is not None:
            told += f", {self.offline} offline in the fleet"
        if not self.void:
            return told
        why = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in self.void.items())
        return f"{told}, {sum(self.void.values())} segments void: {why}"


@dataclass(frozen=True)
class TooFewUploads:
    """Too few valid segments were in the batch: the round is repeated."""

    reason: str
    answers: RoundAnswers | None = None
    misfits: Mapping[str, Misfits] = field(default_factory=dict)


@dataclass(frozen=True)
class Obstacle:
    """Something that may change stands in the way (devices, disk, database): the job pauses."""

    reason: str


@dataclass(frozen=True)
class TakeBatch:
    """What the proxy put into the store, as `name`, goes where the parts of a batch go.

    Outcome `PutTaken` or `WorkFailed`; either way it is gone from the store.
    """

    batch: Batch
    name: str
    cell: str = ""


@dataclass(frozen=True)
class BatchPart:
    """Bytes of the batch with this digest, or with a stream of this name. They need not survive
    the process: a cloud that starts again asks for the round anew. Another digest takes the place
    of the job's batch before it.
    """

    digest: bytes
    offset: int
    data: bytes = field(repr=False)
    job_id: bytes = b""
    cell: str = ""


@dataclass(frozen=True)
class BatchDropped:
    """The batch under way of this job in this cell is not needed any more."""

    job_id: bytes = b""
    cell: str = ""


@dataclass(frozen=True)
class RosterMark:
    """Which roster was taken last: of which registry, and its number there."""

    lineage: str
    epoch: int


@dataclass(frozen=True)
class RosterKept:
    """The enrolled public keys, 32 bytes each; stale from `expires_s` (since 1970; 0: never) on."""

    epoch: int
    keys: bytes
    lineage: str = ""
    expires_s: float = 0.0
    knows: int = 0  # what all these devices know, as `Hello` says it
    cell: str = ""


@dataclass(frozen=True)
class RosterRefused:
    """A roster was refused: until one is taken, nobody knows who was admitted and revoked."""

    reason: str
    lineage: str
    cell: str = ""
    expires_s: float = 0.0


@dataclass(frozen=True)
class JobStatus:
    """A job came to an end, or to a stand (`paused`)."""

    job_id: bytes
    status: str
    reason: str = ""
    answers: RoundAnswers | None = None


@dataclass(frozen=True)
class CloudSettings:
    """Bounds and waits of the cloud."""

    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20  # a roster
    spool_bytes: int = 1 << 30  # the batches of all jobs
    resend_s: float = 3.0
    repair_s: float = 1.0
    proxy_margin_s: float = 30.0  # beyond a round's own deadline, before the proxy counts as lost
    close_cap_s: float = 60.0  # between two announcements of a job's end
    push_bytes: int = 16 << 20  # larger broadcasts are pulled, with bounded credit
    beside_bytes: int = 0  # of blobs from this size on the proxy is told where they lie; 0: of none
    beside_s: float = 3600.0  # for so long a URL is good


def timer_name(what: str, job_id: bytes = b"", cell: str = "") -> str:
    """What a timer of the cloud's machine is called, with the job and the cell that it is of."""
    if cell:
        return f"{what}/{job_id.hex()}/{cell}"
    return f"{what}/{job_id.hex()}" if job_id else what


def timer_of(name: str) -> tuple[str, bytes, str]:
    """(what, job, cell) of a timer's name."""
    what, _, of_it = name.partition("/")
    job, _, cell = of_it.partition("/")
    return what, bytes.fromhex(job), cell


def job_of(task: object) -> bytes | None:
    """The job that a task of the cloud's is about."""
    match task:
        case SealJob(job_id) | SealRelease(job_id) | SealPublication(job_id) | SealRound(job_id):
            return job_id
        case OpenArrived(batch) | TakeBatch(batch):
            return batch.at.job_id
        case Absorb(at=at) | TakeChecks(at) | TakeMasks(at) | CountReports(at):
            return at.job_id
        case GrantPut(job_id=job_id):
            return job_id
    return None


# --- what to do before a paused job is resumed ----------------------------------------------


SILENT = "the proxy did not answer in time"
OWN_LINK = "the cloud's link to its broker is down"
EDGE_LINK = "the proxy's link to the devices' broker is down"
OTHER_KEY = "the proxy signs with another key than the one that is pinned for it"
DISK = "the disk cannot be used"
MEMORY = "the machine's memory is used up"
USED_UP = "the machine's processes, open files or memory are used up"
STORE = "the cloud's store cannot be used"
STALE_ROSTER = "the proxy's roster is stale"
EARLIER = "the proxy or a device is of an earlier version, which knows no checks of single masks"
_PASSES = (
    *(SILENT, OWN_LINK, EDGE_LINK, OTHER_KEY),
    *(DISK, MEMORY, USED_UP, STORE, STALE_ROSTER, EARLIER),
)
BY_ITSELF = "it goes on by itself then"


def goes_on(reason: str) -> bool:
    """Whether a job that paused for this goes on by itself, once link, machine, store or roster is
    back."""
    return any(one in reason for one in _PASSES)


_LATE = (
    "a job submitted anew may give them more time (round.deadline_s) or attempts (round.retries)"
)
_AWAY = f"look at the devices (the proxy's /status counts those online); {_LATE}"
_OFFLINE = "devices are offline: the proxy's page lists them, and when each was seen last"
_VOID = "see what the devices' consoles say"
_BEHIND = "a cloud whose store was begun anew may number behind: rotate its keys"
_COUNTS = re.compile(r"(\d+) late or absent(?:, (\d+) offline in the fleet)?")
_PROXY = "look at the proxy's log"
ANEW = "cancel it and submit it anew"
# A part of the reason -> what to do, then resume it; with ANEW, that. The first that is found.
_ADVICE = (
    ("cache_full", "wait for other jobs to end, or raise limits.cache_bytes at the proxy"),
    ("spool_full", "make room at the proxy, or raise its limits.spool_bytes"),
    ("spool_too_small", "raise limits.spool_bytes at the proxy, or learn a smaller model"),
    ("closed_job", f"the proxy has closed this job: {ANEW}"),
    (
        "selected_below_floor",
        "the proxy's min_batch_floor is above what the job selects: lower it and resume the job, "
        f"or {ANEW} with more devices a round",
    ),
    (
        "sets_below_floor",
        "the proxy's min_batch_floor is above what a group has: lower it and resume the job, or "
        f"{ANEW} with fewer groups (aggregation.groups) or a larger round.min_batch",
    ),
    (
        "replayed_",
        "the proxy holds what the cloud signs with a number above the cloud's own: if its clock is "
        "behind or its store was put back, set the clock; if a key leaked, replace it (edgeveil "
        "trust rotate DIR cloud-releases), or without a root see that nobody else speaks as the "
        "cloud at its broker, and wait: within a day the cloud's numbers, which follow the clock, "
        "are past it",
    ),
    (
        "far_sequence",
        "the cloud's numbers follow its clock, and are a day ahead of the proxy's: set both clocks",
    ),
    (
        "unknown_release_key",
        "the cloud does not sign releases with the key that the root names: give it the newest "
        "trust.json and the key of cloud-releases",
    ),
    ("oversized_upload", "raise limits.upload_bytes at the proxy, or learn a smaller model"),
    ("oversized_", "raise limits.blob_bytes at the proxy, or learn a smaller model"),
    ("forked_manifest", "cloud and proxy disagree on what was sent: look at both logs"),
    ("refused the broadcast", _PROXY),
    (
        SILENT,
        "see that the proxy runs (it does not start where the disk of its state folder, and so its "
        f"key, is not there) and reaches its brokers; {BY_ITSELF}",
    ),
    (
        OTHER_KEY,
        "mount the disk of the proxy's state folder, or put its key back from a backup; a key that "
        f"was replaced is to be pinned here, or named by the root; {BY_ITSELF}",
    ),
    (OWN_LINK, f"see that the broker runs and can be reached from the cloud; {BY_ITSELF}"),
    (EDGE_LINK, f"see that the broker runs and can be reached from the proxy; {BY_ITSELF}"),
    (STALE_ROSTER, BY_ITSELF),  # the reason says what to look at
    (
        EARLIER,
        "bring it up to this version, or revoke the device (the proxy's page names it as refused "
        f"for earlier_version); {BY_ITSELF}",
    ),
    (
        STORE,
        f"make room on its disk, mend its rights, or bring its database server back; {BY_ITSELF}",
    ),
    (USED_UP, f"end what takes them, or raise the cloud's limits for them; {BY_ITSELF}"),
    (MEMORY, f"give the cloud more memory, or end what takes it; {BY_ITSELF}"),
    ("limits.spool_bytes is", "raise limits.spool_bytes at the cloud and start it again"),
    (
        "0 uploaded, 0 declined",
        f"{_AWAY}; {_BEHIND}",
    ),
    ("refused to check masks", _PROXY),
    (
        "refused to unmask",
        "the proxy gives a round's masks once, for one choice of uploads, and its spool or this "
        f"store was lost or put back: {ANEW}",
    ),
    ("below the minimum", _AWAY),
    ("valid upload", f"{_VOID}; {_AWAY}"),
    ("no device answered", _AWAY),
    (DISK, f"make room in the cloud's state_dir, or mend its rights; {BY_ITSELF}"),
)
# A cause of declines, as `RoundAnswers` names it -> what to do.
_BY_CAUSE = {
    "policy": (
        "their owners' policy does not allow the job: each box names the key (edgeveil edge status)"
    ),
    "budget": (
        "their owners' budgets do not hold the job's price beside what was spent: owners may raise "
        "the limit that edgeveil edge status names, or a job may ask for less ε"
    ),
    "conditions": (
        "the boxes had no time (paused, busy, not what their owners ask for), or by their clocks "
        "the root's word has run out: wait, or see edgeveil edge status"
    ),
    "fit": (
        "the boxes cannot play the job (other data, too slow, too little room, or answered as "
        "often as privacy.max_participations lets them): each names why (edgeveil edge status); a "
        "longer round.budget_s helps those that are too slow"
    ),
    "fault": (
        "something failed at the boxes (a full disk, a state that is behind, an error of the "
        "program): each names what (edgeveil edge status)"
    ),
}
RESUME = "then: edgeveil job resume "
OTHERWISE = "mend what stands here, or see the cloud's log"


def pause_advice(reason: str) -> str:
    """The next steps in words; for a reason that none is known for, where to look."""
    steps = _by_answers(reason)
    return "; ".join(steps) or next((what for part, what in _ADVICE if part in reason), OTHERWISE)


def _by_answers(reason: str) -> list[str]:
    """Steps for each cause that `RoundAnswers` names in the reason: declines, offline, late, void.

    [] where it names none, or an earlier version wrote it.
    """
    steps = [what for cause, what in _BY_CAUSE.items() if f" for {cause}" in reason]
    counts = _COUNTS.search(reason)
    absent, offline = (int(counts[1]), int(counts[2] or 0)) if counts else (0, 0)
    if counts and counts[2]:
        steps += [_OFFLINE] * (min(absent, offline) > 0) + [_LATE] * (absent > offline)
        steps += [_BEHIND] * ("0 uploaded, 0 declined" in reason and absent > offline)
    elif steps and absent:
        steps.append(_AWAY)
    return steps + [_VOID] * (bool(steps) and "segments void" in reason)


def all_declined(answers: RoundAnswers) -> str:
    """Why a job ends that every selected device declined, with the next steps."""
    causes = _causes_text(answers.causes)
    told = f"all {answers.declined} selected devices declined{causes}"
    if not answers.causes:
        return f"{told}; each device's console, page and `edgeveil edge status` say why"
    return f"{told}; {pause_advice(told)}"


def resume_follows(advice: str) -> bool:
    """Whether a person resumes the job after this: it neither goes on by itself, nor ends."""
    return BY_ITSELF not in advice and ANEW not in advice
