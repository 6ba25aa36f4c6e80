"""What a device computes of its records: one question of the cloud, and the answer to it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

from edgeveil.jobs.plan import Plan
from edgeveil.parts.exchange import Answer, Exchange, Tensors
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.sampler import RandomBytes
from edgeveil.protocol.sealed import RoundPackage

Half = Literal["train", "infer"]  # of an answer


@dataclass(frozen=True)
class TaughtJob:
    """A job as it came: its plan, and the bytes that the plan was made from."""

    plan: Plan
    canonical: bytes
    graph: bytes


@dataclass(frozen=True)
class Computation:
    """One exchange's work. `own`: what the device adds from its ledger; the clock's `until_s` is
    when work on records must have ended, `allowed_s` how long it may take in all, and `closes_s`
    when nobody waits for an answer any more."""

    job: TaughtJob
    exchange: Exchange
    package: RoundPackage
    own: Tensors
    trains: bool
    noise: RandomBytes
    until_s: float = math.inf
    allowed_s: float = math.inf
    closes_s: float = math.inf

    def fresh_noise(self) -> RandomBytes:
        """Derived noise from its beginning, for one half of an answer; another stream as it is.

        Two halves never draw alike: what they draw for is part of what derived noise follows from.
        """
        noise = self.noise
        return DerivedRandom(noise.to_bytes()) if isinstance(noise, DerivedRandom) else noise


@dataclass(frozen=True)
class Computed:
    """The parts of an answer. `without` says why they were made as if there were no records."""

    parts: tuple[Answer, ...]
    without: str = ""


@dataclass(frozen=True)
class JobTrial:
    """What playing a job on made-up records came to: the seconds that its longest answer takes,
    or why this device cannot play it."""

    needed_s: float = 0.0
    refused: str = ""


class Compute(Protocol):
    """Where a device computes. Calls come one at a time."""

    def try_job(self, job: TaughtJob, *, trains: bool) -> JobTrial:
        """Play every kind of exchange on made-up records; never reads a record."""
        ...

    def answer(self, one: Computation) -> Computed:
        """The answer from this device's records, as if it had none where that takes too long.

        Raises DataError for records that cannot be read as a whole; PrivacyError, ProtocolError or
        DataError for a job or package that is not in order, before a record is read.
        """
        ...

    def read_ahead(self, share: float) -> None:
        """Read the device's records before a round asks for them, `share` of them for evaluation;
        whatever is wrong with them is told with the first answer."""
        ...

    def forget(self, job: TaughtJob) -> None:
        """The job has ended."""
        ...
