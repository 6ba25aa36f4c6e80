"""What the cloud's machine asks of its host, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeveil.protocol.effects import Failed as Failed
from edgeveil.protocol.messages import Batch, Commit, Manifest


@dataclass(frozen=True)
class Start:
    """Run this job from `round` (1 for a new one), `attempt` being the first one not yet used.

    `round` is `rounds + 1` where every round is committed and only the release is missing.
    """

    job_id: bytes
    round: int
    attempt: int
    rounds: int
    retries: int


@dataclass(frozen=True)
class Cancel:
    """End this job now."""

    job_id: bytes


@dataclass(frozen=True)
class Ended:
    """This job ended before the process did: say so again, as nobody may have heard it."""

    job_id: bytes
    status: str


@dataclass(frozen=True)
class SealJob:
    """Seal the job and its graph to all enrolled keys; outcome `Broadcast`, `Blocked`, `Failed`."""

    job_id: bytes


@dataclass(frozen=True)
class SealRound:
    """Select, make the round's key, seal the model; outcome `Broadcast`, `Blocked`, `Failed`."""

    job_id: bytes
    round: int
    attempt: int


@dataclass(frozen=True)
class SealRelease:
    """Seal the final model to all enrolled keys; outcome `Broadcast`, `Blocked`, `Failed`."""

    job_id: bytes


@dataclass(frozen=True)
class Broadcast:
    """A manifest without signature and its blob."""

    manifest: Manifest
    data: bytes


@dataclass(frozen=True)
class Absorb:
    """Check, open, validate, aggregate, evaluate, commit the batch whose parts were stored.

    Outcome `Absorbed`, `TooFew`, `Blocked` or `Failed`. The host commits in one transaction and
    does nothing the second time.
    """

    batch: Batch


@dataclass(frozen=True)
class Absorbed:
    """The round is committed; the record names the accepted ciphertexts by hash."""

    commit: Commit
    data: bytes


@dataclass(frozen=True)
class TooFew:
    """Too few valid segments were in the batch: the round is repeated."""

    reason: str


@dataclass(frozen=True)
class Blocked:
    """Something that may change stands in the way (devices, disk, database): the job pauses."""

    reason: str


@dataclass(frozen=True)
class BatchPart:
    """Bytes of the batch with this digest. They need not survive the process: a cloud that starts
    again asks for the round anew. Another digest takes the place of the batch before it.
    """

    digest: bytes
    offset: int
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class BatchDropped:
    """The batch under way is not needed any more."""


@dataclass(frozen=True)
class RosterKept:
    """The enrolled public keys, 32 bytes each."""

    epoch: int
    keys: bytes


@dataclass(frozen=True)
class JobStatus:
    """A job came to an end, or to a stand (`paused`)."""

    job_id: bytes
    status: str
    reason: str = ""


@dataclass(frozen=True)
class CloudSettings:
    """Bounds and waits of the cloud."""

    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20  # a roster
    spool_bytes: int = 1 << 30  # a batch
    resend_s: float = 3.0
    repair_s: float = 1.0
    proxy_margin_s: float = 30.0  # beyond a round's own deadline, before the proxy counts as lost
    close_cap_s: float = 60.0  # between two announcements of a job's end
    push_bytes: int = 16 << 20  # larger broadcasts are pulled, with bounded credit
