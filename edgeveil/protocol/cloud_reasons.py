"""Counts of an attempt's answers, reasons for pausing or ending a job, and advice on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from edgeveil.protocol.messages import DECLINE_CAUSES, Batch, Shortfall


def declined_text(declined: int, causes: Mapping[str, int]) -> str:
    """Return e.g. `10 declined (8 for budget, 2 for policy)`."""
    return f"{declined} declined{_causes_text(causes)}"


def _causes_text(causes: Mapping[str, int]) -> str:
    text = ", ".join(f"{count} for {cause}" for cause, count in causes.items())
    return f" ({text})" if text else ""


@dataclass(frozen=True)
class RoundAnswers:
    """Counts of an attempt's answers; with cover traffic `uploaded` includes dummies."""

    selected: int
    uploaded: int
    declined: int
    void: Mapping[str, int] = field(default_factory=dict)  # rejected segments by reason
    causes: Mapping[str, int] = field(default_factory=dict)  # declines by `DECLINE_CAUSES`
    offline: int | None = None  # selected or not, if the proxies know it

    @classmethod
    def of(
        cls, selected: int, sent: Iterable[Batch | Shortfall], void: Mapping[str, int] | None = None
    ) -> RoundAnswers:
        sent = list(sent)
        causes = Counter[str]()
        for one in sent:
            causes.update(dict(zip(DECLINE_CAUSES, one.causes, strict=False)))
        known = bool(sent) and all(one.offline >= 0 for one in sent)
        return cls(
            selected,
            sum(one.uploads for one in sent),
            sum(one.declined for one in sent),
            void or {},
            {cause: count for cause, count in causes.items() if count},
            sum(one.offline for one in sent) if known else None,
        )

    @property
    def absent(self) -> int:
        return max(0, self.selected - self.uploaded - self.declined)

    def ends_job(self, round: int) -> bool:
        """Return whether a job ends at `round`: all selected declined for lasting reasons."""
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
        text = (
            f"{self.selected} selected, {self.uploaded} uploaded"
            f", {declined_text(self.declined, self.causes)}"
            f", {self.absent} late or absent"
        )
        if self.offline is not None:
            text += f", {self.offline} offline in the fleet"
        if not self.void:
            return text
        why = ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in self.void.items())
        return f"{text}, {sum(self.void.values())} segments void: {why}"


SILENT = "the proxy did not answer in time"
OWN_LINK = "the cloud's link to its broker is down"
EDGE_LINK = "the proxy's link to the devices' broker is down"
OTHER_KEY = "the proxy signs with another key than the one that is pinned for it"
DISK = "the disk cannot be used"
MEMORY = "the machine's memory is used up"
USED_UP = "the machine's processes, open files or memory are used up"
STORE = "the cloud's store cannot be used"
STALE_ROSTER = "the proxy's roster is stale"
EARLIER = "the proxy or a device is of an earlier version, without checks of single masks"
BY_ITSELF = "the job then resumes by itself"
ANEW = "cancel it and submit it anew"
RESUME = "then: edgeveil job resume "
OTHERWISE = "fix the cause above, or see the cloud's log"

_LATE = (
    "a job submitted anew may give them more time (round.deadline_s) or attempts (round.retries)"
)
_AWAY = f"look at the devices (the proxy's /status counts those online); {_LATE}"
_VOID = "read the devices' consoles"
_BEHIND = "a cloud with a new store may use outdated numbers: rotate its keys"
_PROXY = "look at the proxy's log"
# Substring of a reason -> advice; with BY_ITSELF the job resumes by itself. The first match counts.
_ADVICE = {
    "cache_full": "cancel or resume paused jobs, wait for others to end, or raise the proxy's "
    "limits.cache_bytes",
    "spool_full": "free some disk space at the proxy, or raise its limits.spool_bytes",
    "spool_too_small": "raise limits.spool_bytes at the proxy, or learn a smaller model",
    "closed_job": f"the proxy has closed this job: {ANEW}",
    "_below_floor": f"lower the proxy's min_batch_floor and resume the job, or {ANEW} with more "
    "devices a round (round.min_batch) or fewer groups (aggregation.groups)",
    "replayed_": "the proxy has a later number of the cloud: if the cloud's clock is behind or "
    "its store was restored, set the clock; if a key leaked, replace it (edgeveil trust rotate DIR "
    "cloud-releases), or without a root check that nobody else sends as the cloud at its broker; "
    "within a day the cloud's numbers, which follow the clock, exceed it",
    "far_sequence": "the cloud's clock is a day ahead of the proxy's: set both clocks",
    "unknown_release_key": "the root names another key for releases than the cloud's: give the "
    "cloud the newest trust.json and the key of cloud-releases",
    "oversized_upload": "raise limits.upload_bytes at the proxy, or learn a smaller model",
    "oversized_": "raise limits.blob_bytes at the proxy, or learn a smaller model",
    "forked_manifest": "cloud and proxy disagree on the sent data: read both logs",
    "refused the broadcast": _PROXY,
    SILENT: "see that the proxy runs (it does not start without the disk of its state folder) and "
    f"reaches its brokers; {BY_ITSELF}",
    OTHER_KEY: "mount the disk of the proxy's state folder, or put its key back from a backup; a "
    f"key that was replaced is to be pinned here, or named by the root; {BY_ITSELF}",
    OWN_LINK: f"see that the broker runs and can be reached from the cloud; {BY_ITSELF}",
    EDGE_LINK: f"see that the broker runs and can be reached from the proxy; {BY_ITSELF}",
    STALE_ROSTER: BY_ITSELF,  # the reason names the cause
    EARLIER: "bring it up to this version, or revoke the device (the proxy's page names it as "
    f"refused for earlier_version); {BY_ITSELF}",
    STORE: f"free disk space, fix its permissions, or start its database server; {BY_ITSELF}",
    USED_UP: f"stop programs that use them, or raise the cloud's limits for them; {BY_ITSELF}",
    MEMORY: f"give the cloud more memory, or stop programs that use it; {BY_ITSELF}",
    "limits.spool_bytes is": "raise limits.spool_bytes at the cloud and start it again",
    "0 uploaded, 0 declined": f"{_AWAY}; {_BEHIND}",
    "refused to check masks": _PROXY,
    "refused to unmask": "the proxy gives a round's masks once, for one choice of uploads, and its "
    f"spool or this store was lost or restored: {ANEW}",
    "below the minimum": _AWAY,
    "valid upload": f"{_VOID}; {_AWAY}",
    "no device answered": _AWAY,
    DISK: f"free some space in the cloud's state_dir, or fix its permissions; {BY_ITSELF}",
}
# Cause of declines -> advice.
_BY_CAUSE = {
    "policy": "their owners' policy does not allow the job: edgeveil edge status names the key",
    "budget": "their owners' remaining budgets do not cover the job's price: owners may "
    "raise the limit that edgeveil edge status names, or a job may ask for less ε",
    "conditions": "the boxes had no time (paused, busy, outside their owners' conditions), or by "
    "their clocks the root's metadata has expired: wait, or see edgeveil edge status",
    "fit": "the boxes cannot run the job (other data, too slow, too little room, or "
    "privacy.max_participations is used up): edgeveil edge status prints the reason; a longer "
    "round.budget_s helps those that are too slow",
    "fault": "something failed at the boxes (a full disk, a state that is behind, an error of the "
    "program): edgeveil edge status prints it",
}
_COUNTS = re.compile(r"(\d+) late or absent(?:, (\d+) offline in the fleet)?")


def resumes_by_itself(reason: str) -> bool:
    """Return whether a job that paused for this reason resumes automatically."""
    return any(part in reason for part, what in _ADVICE.items() if BY_ITSELF in what)


def pause_advice(reason: str) -> str:
    """Return the next steps; for an unknown reason, where to look."""
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
    """Return why a job ends that every selected device declined, with the next steps."""
    text = f"all {answers.declined} selected devices declined{_causes_text(answers.causes)}"
    if not answers.causes:
        return f"{text}; the reason is in each device's console, page and `edgeveil edge status`"
    return f"{text}; {pause_advice(text)}"


def resume_follows(advice: str) -> bool:
    """Return whether an operator must resume the job: it neither resumes itself nor ends."""
    return BY_ITSELF not in advice and ANEW not in advice
