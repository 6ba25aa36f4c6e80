"""What the links of a ledger add up to: per data set, each job with what it released."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from edgeveil.privacy.accountant import weakest
from edgeveil.privacy.event_codec import event_from_dict, to_dict
from edgeveil.privacy.events import Event
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.policy import TRAIN, JobRequest, Quote, price, total

Kind = Literal["opened", "released", "closed"]


@dataclass(frozen=True)
class Change:
    """One change of one data set's account; `body` is the text that its kind needs.

    `opened`: the job's request. `released`: the events and the digest of the stored tensors, for
    one `exchange`. `closed`: nothing.
    """

    dataset: str
    kind: Kind
    job: str
    exchange: int = 0
    body: str = ""


@dataclass(frozen=True)
class Release:
    """The events of one exchange, and which link (counted from 1) holds them."""

    number: int
    events: tuple[Event, ...]
    payload_sha256: bytes

    @staticmethod
    def body(events: Sequence[Event], payload_sha256: bytes) -> str:
        """The text of a link of kind `released`."""
        listed = [to_dict(event) for event in events]
        return json.dumps({"events": listed, "payload_sha256": payload_sha256.hex()})

    @classmethod
    def from_body(cls, number: int, body: str) -> Release:
        """The release of a link."""
        plain = json.loads(body)
        events = tuple(event_from_dict(event) for event in plain["events"])
        return cls(number, events, bytes.fromhex(plain["payload_sha256"]))


@dataclass
class JobEntry:
    """A job as this device knows it: what it reserved, and by exchange what it released."""

    request: JobRequest
    is_open: bool = True
    releases: dict[int, Release] = field(default_factory=dict)

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything released so far."""
        return tuple(event for release in self.releases.values() for event in release.events)

    @property
    def counting(self) -> JobRequest:
        """What the job holds against the limits: all it reserved while open, then `counted`."""
        if self.is_open:
            return self.request
        return JobRequest(self.request.job_id, self.request.delta, self.counted)

    @property
    def counted(self) -> tuple[Event, ...]:
        """What was spent for good: see `JobRequest.counted`."""
        return self.request.counted(self.events)

    @property
    def spent(self) -> Quote:
        """The two guarantees of what was spent."""
        return price(self.counted, self.request.delta)


@dataclass
class Account:
    """All jobs of one data set, in the order in which they came."""

    jobs: dict[str, JobEntry] = field(default_factory=dict)

    def spent(self, job_id: str | None = None, purpose: str = TRAIN) -> Guarantee:
        """What was spent: by one job, or (None) over the data set's life.

        A job counts its whole reserved price from its first release that is not pure ε on
        (`JobRequest.counted`). `purpose` is `train` or `infer`. Over several jobs ε and δ add up,
        each job priced at its own δ. After any claimed or unprotected release, lifetime totals
        are not proven.
        """
        chosen = [self.jobs[job] for job in self.jobs if job_id in (None, job)]
        quotes = [entry.spent for entry in chosen]
        result = total([q.training if purpose == TRAIN else q.inference for q in quotes])
        if job_id is not None:
            return result
        taint = weakest(event.status for entry in chosen for event in entry.events)
        status = weakest([result.status, taint])
        return replace(result, status=status)


class Book:
    """The accounts of all data sets in one file, from so many `links`."""

    def __init__(self) -> None:
        self.links = 0
        self.accounts: dict[str, Account] = {}

    def account(self, dataset: str) -> Account:
        """The account of a data set, empty if it has released nothing."""
        return self.accounts.setdefault(dataset, Account())

    def apply(self, number: int, change: Change) -> None:
        """Take in link `number`, whose origin has been checked."""
        jobs = self.account(change.dataset).jobs
        if change.kind == "opened":
            jobs[change.job] = JobEntry(JobRequest.from_json(change.body))
        elif change.kind == "released":
            jobs[change.job].releases[change.exchange] = Release.from_body(number, change.body)
        else:
            jobs[change.job].is_open = False
        self.links = number
