"""What came of an attempt as counts, why a job pauses or ends, and what to do about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edgeveil.protocol.messages import DECLINE_CAUSES, Batch, Shortfall


def declined_text(declined: int, causes: Mapping[str, int]) -> str:
    """`10 declined (8 for budget, 2 for policy)`."""
    return f"{declined} declined{_causes_text(causes)}"


def _causes_text(causes: Mapping[str, int]) -> str:
    told = ", ".join(f"{count} for {cause}" for cause, count in causes.items())
    return f" ({told})" if told else ""


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
        cls, selected: int, told: Iterable[Batch | Shortfall], void: Mapping[str, int] | None = None
    ) -> RoundAnswers:
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
        return max(0, self.selected - self.uploaded - self.declined)

    def ends_job(self, round: int) -> bool:
        """Whether a job ends at its `round` because all selected declined: where no cause is
        one that asking again could change, or nothing was committed before and none passes."""
        everybody = not self.uploaded and self.declined >= self.selected
        lasting = sum(self.causes.get(cause, 0) for cause in ("policy", "budget"))
        first = round == 1 and self.causes.keys().isdisjoint(("conditions", "fault"))
        return everybody and (first or lasting >= self.declined)

    def to_dict(self) -> dict[str, object]:
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
BY_ITSELF = "it goes on by itself then"
ANEW = "cancel it and submit it anew"
RESUME = "then: edgeveil job resume "
OTHERWISE = "mend what stands here, or see the cloud's log"

_LATE = (
    "a job submitted anew may give them more time (round.deadline_s) or attempts (round.retries)"
)
_AWAY = f"look at the devices (the proxy's /status counts those online); {_LATE}"
_VOID = "see what the devices' consoles say"
_BEHIND = "a cloud whose store was begun anew may number behind: rotate its keys"
_PROXY = "look at the proxy's log"
# A part of the reason -> what to do; with BY_ITSELF, until when it waits. The first that is found.
_ADVICE = {
    "cache_full": "cancel or resume paused jobs, wait for others to end, or raise the proxy's "
    "limits.cache_bytes",
    "spool_full": "make room at the proxy, or raise its limits.spool_bytes",
    "spool_too_small": "raise limits.spool_bytes at the proxy, or learn a smaller model",
    "closed_job": f"the proxy has closed this job: {ANEW}",
    "_below_floor": f"lower the proxy's min_batch_floor and resume the job, or {ANEW} with more "
    "devices a round (round.min_batch) or fewer groups (aggregation.groups)",
    "replayed_": "the proxy holds a later number of the cloud's: if the cloud's clock is behind or "
    "its store was put back, set the clock; if a key leaked, replace it (edgeveil trust rotate DIR "
    "cloud-releases), or without a root see that nobody else speaks as the cloud at its broker; "
    "within a day the cloud's numbers, which follow the clock, are past it",
    "far_sequence": "the cloud's clock is a day ahead of the proxy's: set both clocks",
    "unknown_release_key": "the root names another key for releases than the cloud's: give the "
    "cloud the newest trust.json and the key of cloud-releases",
    "oversized_upload": "raise limits.upload_bytes at the proxy, or learn a smaller model",
    "oversized_": "raise limits.blob_bytes at the proxy, or learn a smaller model",
    "forked_manifest": "cloud and proxy disagree on what was sent: look at both logs",
    "refused the broadcast": _PROXY,
    SILENT: "see that the proxy runs (it does not start without the disk of its state folder) and "
    f"reaches its brokers; {BY_ITSELF}",
    OTHER_KEY: "mount the disk of the proxy's state folder, or put its key back from a backup; a "
    f"key that was replaced is to be pinned here, or named by the root; {BY_ITSELF}",
    OWN_LINK: f"see that the broker runs and can be reached from the cloud; {BY_ITSELF}",
    EDGE_LINK: f"see that the broker runs and can be reached from the proxy; {BY_ITSELF}",
    STALE_ROSTER: BY_ITSELF,  # the reason says what to look at
    EARLIER: "bring it up to this version, or revoke the device (the proxy's page names it as "
    f"refused for earlier_version); {BY_ITSELF}",
    STORE: f"make room on its disk, mend its rights, or start its database server; {BY_ITSELF}",
    USED_UP: f"end what takes them, or raise the cloud's limits for them; {BY_ITSELF}",
    MEMORY: f"give the cloud more memory, or end what takes it; {BY_ITSELF}",
    "limits.spool_bytes is": "raise limits.spool_bytes at the cloud and start it again",
    "0 uploaded, 0 declined": f"{_AWAY}; {_BEHIND}",
    "refused to check masks": _PROXY,
    "refused to unmask": "the proxy gives a round's masks once, for one choice of uploads, and its "
    f"spool or this store was lost or put back: {ANEW}",
    "below the minimum": _AWAY,
    "valid upload": f"{_VOID}; {_AWAY}",
    "no device answered": _AWAY,
    DISK: f"make room in the cloud's state_dir, or mend its rights; {BY_ITSELF}",
}
# A cause of declines -> what to do.
_BY_CAUSE = {
    "policy": "their owners' policy does not allow the job: edgeveil edge status names the key",
    "budget": "their owners' budgets do not hold the job's price beside what was spent: owners may "
    "raise the limit that edgeveil edge status names, or a job may ask for less ε",
    "conditions": "the boxes had no time (paused, busy, not what their owners ask for), or by "
    "their clocks the root's word has run out: wait, or see edgeveil edge status",
    "fit": "the boxes cannot play the job (other data, too slow, too little room, or "
    "privacy.max_participations is used up): edgeveil edge status says why; a longer "
    "round.budget_s helps those that are too slow",
    "fault": "something failed at the boxes (a full disk, a state that is behind, an error of the "
    "program): edgeveil edge status says what",
}
_COUNTS = re.compile(r"(\d+) late or absent(?:, (\d+) offline in the fleet)?")


def goes_on(reason: str) -> bool:
    """Whether a job that paused for this goes on by itself."""
    return any(part in reason for part, what in _ADVICE.items() if BY_ITSELF in what)


def pause_advice(reason: str) -> str:
    """The next steps in words; for a reason that none is known for, where to look."""
    steps = [what for cause, what in _BY_CAUSE.items() if f" for {cause}" in reason]
    counts = _COUNTS.search(reason)
    absent, offline = (int(counts[1]), int(counts[2] or 0)) if counts else (0, 0)
    if counts and counts[2]:
        if absent and offline:
            steps.append("devices are offline: the proxy's page lists them, and since when")
        if absent > offline:
            steps += [_LATE, *([_BEHIND] if "0 uploaded, 0 declined" in reason else [])]
    elif steps and absent:
        steps.append(_AWAY)
    if not steps:
        return next((what for part, what in _ADVICE.items() if part in reason), OTHERWISE)
    return "; ".join([*steps, *([_VOID] if "segments void" in reason else [])])


def all_declined(answers: RoundAnswers) -> str:
    """Why a job ends that every selected device declined, with the next steps."""
    told = f"all {answers.declined} selected devices declined{_causes_text(answers.causes)}"
    if not answers.causes:
        return f"{told}; each device's console, page and `edgeveil edge status` say why"
    return f"{told}; {pause_advice(told)}"


def resume_follows(advice: str) -> bool:
    """Whether a person resumes the job after this: it neither goes on by itself, nor ends."""
    return BY_ITSELF not in advice and ANEW not in advice
