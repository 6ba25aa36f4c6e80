"""What a device's machine asks of its host, what comes back, and what the device keeps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from edgeveil.protocol.messages import (
    Behind,
    Envelope,
    ExchangeId,
    Manifest,
    NewSealingKey,
    ReleaseStatement,
    Upload,
)
from edgeveil.protocol.sealed import JobPackage, Package, ReleasePackage

# --- work for the host, and its outcomes ---------------------------------------------------


@dataclass(frozen=True)
class OpenPackage:
    """Try the device's key on the stanzas; outcome `OpenedPackage` or `WorkFailed`."""

    manifest: Manifest
    blob: bytes


@dataclass(frozen=True)
class FindStanza:
    """Look for one that is for this device; outcome `StanzaLook` or `WorkFailed`."""

    manifest: Manifest
    stanzas: bytes


@dataclass(frozen=True)
class StanzaLook:
    """Whether there is one: the stream is of use here."""

    found: bool


@dataclass(frozen=True)
class OpenedPackage:
    """The package, or None where no stanza was for this device.

    `chance` in [0, 1), the job's `budget_s` (0: not known) and what its trial took fix the moment
    at which what follows leaves; all are there before any record is read for it.
    """

    package: Package | None
    chance: float = 0.0
    budget_s: float = 0.0
    needed_s: float = 0.0  # for an answer, on made-up records


@dataclass(frozen=True)
class InstallJob:
    """Keep a job and its graph; outcome `Installation` or `WorkFailed`."""

    manifest: Manifest
    package: JobPackage


@dataclass(frozen=True)
class Installation:
    """The job is known from now on, also after a restart."""


@dataclass(frozen=True)
class ComputeAnswer:
    """Consent, infer, train, price, seal; outcome `SealedAnswer` or `NoAnswer`.

    What has read records ends `allowed_s` after `begun_s` (the machine's time) at the latest; at
    `closes_s` nobody waits for an answer any more.
    `round_key` is the proxy's of this round, where segments are masked, and `proxy_memory` names
    its memory.
    """

    manifest: Manifest
    package: Package
    begun_s: float = 0.0
    allowed_s: float = math.inf
    closes_s: float = math.inf
    round_key: bytes = b""
    proxy_memory: bytes = b""

    @property
    def until_s(self) -> float:
        """The machine's time at which the work must have ended."""
        return self.begun_s + self.allowed_s


@dataclass(frozen=True)
class SealDummies:
    """Seal what an upload of this device would look like; outcome `SealedAnswer` or `NoAnswer`.

    For cover traffic. Nothing of the device is in it, so no ledger knows of it.
    """

    manifest: Manifest
    round_key: bytes = b""


@dataclass(frozen=True)
class SealedAnswer:
    """The priced, sealed segments, in the order of `groups`; each with its mark (`segment_mark`).

    `at_once`: no record had a part in it, so that it need not wait for its moment. `seed` is that
    of the masks, sealed to the proxy.
    """

    groups: tuple[int, ...]
    sizes: tuple[int, ...]
    data: bytes
    marks: tuple[bytes, ...]
    dummy: bool = False
    at_once: bool = False
    deposit: bytes = b""  # for the upload's header
    seed: bytes = b""


@dataclass(frozen=True)
class NoAnswer:
    """Nothing will be sent; `why` is for the owner's console only, `cause` (one of
    `DECLINE_CAUSES`) for the proxy too."""

    why: str
    cause: str = "fit"


@dataclass(frozen=True)
class InstallRelease:
    """Swap in the final model; outcome `Installation` or `WorkFailed`."""

    manifest: Manifest
    package: ReleasePackage


@dataclass(frozen=True)
class AdoptRelease:
    """The release in use was sealed anew, under another sequence; outcome as `InstallRelease`."""

    manifest: Manifest


@dataclass(frozen=True)
class CountElsewhere:
    """What a copy of this device answered counts here; outcome `Installation` or `WorkFailed`."""

    behind: Behind


@dataclass(frozen=True)
class SealReport:
    """Seal what became of a release; outcome `MadeReport` or `WorkFailed`. Reads no record."""

    manifest: Manifest


@dataclass(frozen=True)
class MadeReport:
    """A report, or a dummy that looks like one."""

    sealed: bytes


@dataclass(frozen=True)
class ApplyStatement:
    """Keep what the cloud says of releases, and leave one that it withdraws.

    Outcome `StatementApplied` or `WorkFailed`.
    """

    statement: ReleaseStatement


@dataclass(frozen=True)
class StatementApplied:
    """It is durable; `left`: the release that was in use was withdrawn."""

    left: bool


# --- what the device keeps ------------------------------------------------------------------


@dataclass(frozen=True)
class ManifestMark:
    """The newest manifest of a job, so that an older or a second one is refused.

    `settled`: the device is done with this attempt, and does not take it up again.
    """

    at: ExchangeId
    manifest_digest: bytes
    settled: bool = False


@dataclass(frozen=True)
class OutboxPut:
    """A sealed upload to be sent until the round closes. A dummy has no receipt."""

    at: ExchangeId
    header: Envelope
    upload: Upload
    marks: tuple[bytes, ...]  # of the sealed segments, in order
    data: bytes
    dummy: bool = False
    held: bool = False  # the proxy acknowledged it


@dataclass(frozen=True)
class OutboxHeld:
    """The proxy acknowledged the upload."""

    at: ExchangeId


Outcome = Literal["counted", "partial", "missing", "refused", "dropped"]


@dataclass(frozen=True)
class OutboxDrop:
    """The upload is not needed any more, its attempt is settled, and what became of it.

    `counted`, `partial` and `missing` by the commit record: all of its segments stand there, some,
    or none.
    """

    at: ExchangeId
    outcome: Outcome


@dataclass(frozen=True)
class LateRecord:
    """The commit record of a round whose upload had to make room for the next one's."""

    at: ExchangeId
    outcome: Outcome


@dataclass(frozen=True)
class JobClosed:
    """Keep only that this job has ended, as the cloud said or because it was `forgotten`."""

    job_id: bytes
    status: str


@dataclass(frozen=True)
class CloudEpoch:
    """Keys of the cloud's were replaced: numbers and marks of the time before count no more."""

    epoch: int


@dataclass(frozen=True)
class SealingKeyTold:
    """The proxy knows the newest sealing key."""


@dataclass(frozen=True)
class ReportDue:
    """The cloud is to be told what became of this release."""

    manifest: Manifest


@dataclass(frozen=True)
class ReportSettled:
    """The report on the release of this sequence need not be said any more."""

    sequence: int


@dataclass
class DeviceMemory:
    """What survives a restart; the host loads it and applies the `Persist` items to it."""

    seen: dict[bytes, ManifestMark] = field(default_factory=dict)
    jobs: dict[bytes, None] = field(default_factory=dict)  # known, the oldest first
    closed: dict[bytes, None] = field(default_factory=dict)  # the oldest first
    release_sequence: int = -1
    release_package: bytes = b""  # digest of the package in use
    statement: int = -1  # the number of the newest one on releases
    report_due: Manifest | None = None
    reported: int = -1  # the sequence of the release that was reported on last
    epoch: int = 0  # of the cloud's keys, in which these numbers were said
    uploads: dict[bytes, OutboxPut] = field(default_factory=dict)  # by job
    new_sealing: NewSealingKey | None = None  # that the proxy is to be told of
    answered: int = -1  # the number of the newest answer, dummies among them; -1: none is counted


CLOSED_KEPT = 1000  # ends of jobs that a device remembers; its ledger remembers all it took part in


@dataclass(frozen=True)
class DeviceSettings:
    """Bounds and waits of one device."""

    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20
    fetch_bytes: int = 512 << 20
    jobs: int = 32
    repair_s: float = 1.0
    resend_s: float = 5.0
    waits_cap_s: float = 30.0
    require_cover: bool = False  # the owner's word: without cover traffic nothing is answered
    blob_urls: tuple[str, ...] = ()  # prefixes of URLs that blobs may be had from, or put to
