"""What the proxy keeps, what it may look up, and its bounds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from edgeveil.crypto.keys import CheckKey, MaskSeed, OpeningKey, VerifyKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import (
    FAR_NUMBER,
    Ack,
    Batch,
    Blob,
    BroadcastHeader,
    Cover,
    Envelope,
    ExchangeId,
    JobDeposit,
    Note,
    PeerKeys,
    Signer,
)
from edgeveil.protocol.sealed import MaskedVector
from edgeveil.protocol.transfer import Data


class DeviceRegistry(Protocol):
    """The identities that this proxy's operator admitted."""

    def verify_key(self, device: str) -> VerifyKey | None:
        """The identity key of an admitted device, or None."""
        ...

    def roster(self) -> tuple[int, bytes]:
        """Epoch and the sealing keys of all admitted devices, sorted, 32 bytes each."""
        ...

    def admitted(self) -> Collection[str]:
        """The ids of all admitted devices."""
        ...

    @property
    def lineage(self) -> str:
        """What tells this registry from one that was rebuilt: 32 hexadecimal digits."""
        ...

    def roster_expires_s(self) -> float:
        """Until when a roster of this moment counts, in seconds since 1970."""
        ...


class TrustDocuments(Protocol):
    """The root's metadata that this party holds."""

    def after(self, root_version: int, version: int) -> tuple[tuple[bytes, ...], bytes]:
        """The roots above `root_version`, and the delegations where they are newer, else empty."""
        ...


@dataclass(frozen=True)
class SealingKeyChanged:
    """An admitted device has a new sealing key; an older `number` than the known one is no news."""

    device: str
    sealing: bytes
    number: int


@dataclass(frozen=True)
class KeptBroadcast:
    """A broadcast that late devices may still ask for; `key` opens the seeds of a masked round."""

    signed: Envelope
    header: BroadcastHeader
    data: Data
    key: OpeningKey | None = None


@dataclass(frozen=True)
class BroadcastPart:
    """Some of a broadcast's bytes, to be put at `offset`; durable with its `KeepBroadcast`."""

    digest: bytes
    offset: int
    data: bytes


@dataclass(frozen=True)
class BroadcastDropped:
    """A broadcast that was under way, or kept by its work alone, is of no use any more."""

    digest: bytes


@dataclass(frozen=True)
class ReleaseReplaced:
    """A kept release gave its place to a newer one of its data set, or to what needed its room."""

    digest: bytes


@dataclass(frozen=True)
class HeldUpload:
    """A device's complete upload: which groups, its digest, and its place in the round's file.

    Once the batch is made, `digest` is empty and `slot` is -1. `seed` is that of its masks, if it
    has masked groups.
    """

    groups: tuple[int, ...]
    digest: bytes
    slot: int
    seed: MaskSeed | None = None


@dataclass(frozen=True)
class UploadPart:
    """Some of an upload's bytes, to be put at `offset` of its round's file.

    Durable with the `UploadKept` that follows, if one does.
    """

    at: ExchangeId
    offset: int
    data: bytes


@dataclass(frozen=True)
class UploadKept:
    """A complete upload, durable before it is acknowledged."""

    at: ExchangeId
    device: str
    held: HeldUpload
    number: int = 0  # as the device counts its answers
    deposit: bytes = b""


@dataclass(frozen=True)
class AnswersFrom:
    """From this number on the proxy knows what a device answers."""

    device: str
    number: int


@dataclass(frozen=True)
class DeviceKnows:
    """What a device knows, as its hello says: less than this version where it is of an earlier."""

    device: str
    knows: int


@dataclass(frozen=True)
class FindAnswered:
    """What jobs has this identity answered after answer number `since`; at most so many.

    Outcome `Answered`. `hello` is the digest of the one that asks by what it says.
    """

    device: str
    hello: bytes
    since: int
    known: int  # number of its newest answer
    most: int


@dataclass(frozen=True)
class Answered:
    """Those jobs, the earliest first, up to answer `number`; `whole`: there were no others."""

    number: int
    jobs: tuple[JobDeposit, ...]
    whole: bool


@dataclass(frozen=True)
class BatchKept:
    """A shuffled batch; the uploads it came from are forgotten in the same transaction.

    `seeds` are those of the masks, in the order of the batch. `pieces`, if any, are its bytes in
    the round's file, (place, size) one after the other; else it has a file of its own.
    """

    at: ExchangeId
    signed: Envelope
    batch: Batch
    data: Data
    seeds: tuple[MaskSeed, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class BatchDelivered:
    """The cloud holds the batch."""

    at: ExchangeId


@dataclass(frozen=True)
class RoundUnmasked:
    """This exchange is unmasked for the choice that `question` names, of this attempt, and for no
    other; durable before a sum of masks leaves. With the job's end the whole job takes its place.
    """

    at: ExchangeId
    question: bytes


@dataclass(frozen=True)
class UploadsDropped:
    """A round was short: who answered stays known, and it opens no more; no ciphertext stays."""

    at: ExchangeId


@dataclass(frozen=True)
class RoundDropped:
    """Everything of this round but its manifest may go; it opens no more, after a restart too."""

    at: ExchangeId


@dataclass(frozen=True)
class ReleaseStated:
    """The cloud's newest statement on releases; the blobs of those that it withdrew may go."""

    note: Note
    gone: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JobEnded:
    """Everything of this job but its release may go; `note` tells devices that come later."""

    job_id: bytes
    note: Note


# --- work for the host, and its outcomes ---------------------------------------------------


@dataclass(frozen=True)
class KeepBroadcast:
    """Check the digest of what came, make it durable; outcome `KeptBroadcast` or `WorkFailed`."""

    signed: Envelope
    header: BroadcastHeader


@dataclass(frozen=True)
class ShuffleRound:
    """Write every group's segments in an order of its own.

    Outcome `ShuffledBatch` or `WorkFailed`.

    With `keep_order` they stay in the order of `uploads`, which is that in which they came.
    `uploads` are (slot, groups): a slot of the round's file is `slot_bytes` long and holds the
    segments of these groups one after the other, `segment_bytes[g]` each. A group with fewer
    segments than `floor` is left out: its few senders would stand alone. The groups `together`, of
    which an upload has all or none, share one order. `streamed`: they stand in the round's stream,
    or follow there, and that comes first.
    """

    at: ExchangeId
    segment_bytes: tuple[int, ...]
    slot_bytes: int
    floor: int
    uploads: tuple[tuple[int, tuple[int, ...]], ...]
    keep_order: bool = False
    together: frozenset[int] = frozenset()
    streamed: bool = False


@dataclass(frozen=True)
class ShuffledBatch:
    """The batch: `counts[g]` segments of group g, on the disk.

    `order`: those of the groups that stay together, as indices of the task's uploads. `pieces` as
    `BatchKept` has them; `stream` is the name of what it begins with, if it has one.
    """

    counts: tuple[int, ...]
    digest: bytes
    data: Data
    order: tuple[int, ...] = ()
    pieces: tuple[tuple[int, int], ...] = ()
    stream: bytes = b""


@dataclass(frozen=True)
class StreamUploads:
    """Put the masked segments of these uploads behind those that stand in the round's stream
    already, in random order unless `keep_order`. Outcome `StreamedUploads` or `WorkFailed`.

    `uploads` are (index, slot, groups), the index that which they have in `ShuffleRound`.
    """

    at: ExchangeId
    segment_bytes: tuple[int, ...]
    slot_bytes: int
    uploads: tuple[tuple[int, int, tuple[int, ...]], ...]
    together: frozenset[int]
    keep_order: bool = False


@dataclass(frozen=True)
class StreamedUploads:
    """The stream so far. Its `name` is random, and another one after a restart."""

    name: bytes
    data: Data


@dataclass(frozen=True)
class SumMasks:
    """Add up the masks of each set of seeds. Outcome `SummedMasks` or `WorkFailed`."""

    at: ExchangeId
    question: bytes
    vectors: tuple[MaskedVector, ...]
    sets: tuple[tuple[MaskSeed, ...], ...]


@dataclass(frozen=True)
class SummedMasks:
    """The sums, or the checks, as `MaskSums` has them."""

    data: bytes


@dataclass(frozen=True)
class CheckSeeds:
    """Compute the check of each seed's masks, by factors that are disclosed. Outcome `SummedMasks`,
    as `MaskSums` has them, or `WorkFailed`."""

    at: ExchangeId
    question: bytes
    vectors: tuple[MaskedVector, ...]
    seeds: tuple[MaskSeed, ...]
    key: CheckKey


@dataclass(frozen=True)
class TakePut:
    """What a device put into the store, as `name`, goes to `offset` of its round's file, durably.

    Outcome `PutTaken` or `WorkFailed`; either way it is gone from the store.
    """

    at: ExchangeId
    device: str
    blob: Blob
    name: str
    offset: int


# --- what the process tells -----------------------------------------------------------------


@dataclass(frozen=True)
class SetAside:
    """A `Command`: this device's messages are dropped for a while, so no round waits for it."""

    device: str


# --- what the proxy keeps ------------------------------------------------------------------


@dataclass
class ProxyMemory:
    """What survives a restart; the host loads it, the machine changes it with `Persist` effects."""

    kept: dict[bytes, KeptBroadcast] = field(default_factory=dict)  # by blob digest, oldest first
    uploads: list[UploadKept] = field(default_factory=list)
    batches: dict[ExchangeId, BatchKept] = field(default_factory=dict)
    delivered: set[ExchangeId] = field(default_factory=set)
    ended: dict[bytes, Note] = field(default_factory=dict)
    statement: Note | None = None  # on releases
    answered: dict[str, int] = field(default_factory=dict)  # by device, its newest answer's number
    earlier: dict[str, int] = field(
        default_factory=dict
    )  # by device of an earlier version, `knows`
    unmasked: dict[tuple[bytes, int], RoundUnmasked] = field(default_factory=dict)  # by exchange
    summed: set[bytes] = field(default_factory=set)  # jobs never to be unmasked (again)
    name: bytes = b""  # another one where all this was lost, or put back from a backup

    def round_key(self, at: ExchangeId) -> OpeningKey | None:
        """What opens the seeds of a round that is kept."""
        keys = (kept.key for kept in self.kept.values() if kept.header.at == at)
        return next((key for key in keys if key is not None), None)


@dataclass(frozen=True)
class ProxySettings:
    """Bounds and waits of one proxy."""

    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20
    push_bytes: int = 16 << 20  # larger blobs are pulled, with bounded credit
    need_repeat_s: float = 10.0  # a part sent to a device is not sent to it again so soon
    want_repeat_s: float = 0.25  # nor is a job, which is much for a small question
    upload_bytes: int = 64 << 20
    spool_bytes: int = 1 << 30
    cache_bytes: int = 1 << 30
    credit_bytes: int = 16 << 20
    credit_patience_s: float = 5.0  # a grant that brings nothing for so long is taken back
    hellos_per_s: float = 500.0
    min_batch_floor: int = 3
    lot_bytes: int = 1 << 20  # of masked uploads that go on together while their round is open
    repair_s: float = 1.0
    resend_s: float = 3.0
    waits_cap_s: float = 300.0  # to which the waits between repeated shortfalls grow
    ended_kept: int = 16
    releases_kept: int = 16  # the newest of so many data sets, as far as the cache has room
    hello_spread_s: float = 0.5  # over which devices come when the proxy (re)starts, at least
    cover_window_s: float = 0.0  # 0: no cover traffic
    roster_again_s: float = 6 * 3600.0  # a roster is signed anew long before it is stale
    stalled_rounds: int = 3  # left unanswered in a row, before a device is waited for no more
    beside_bytes: int = 0  # of blobs from this size on devices are told where they lie; 0: of none
    beside_s: float = 3600.0  # for so long a URL is good
    blob_urls: tuple[str, ...] = ()  # prefixes of URLs of the cloud's store


@dataclass
class ProxyContext:
    """What the parts of the proxy's machine share."""

    signer: Signer
    keys: PeerKeys
    registry: DeviceRegistry
    memory: ProxyMemory
    settings: ProxySettings
    online: set[str] = field(default_factory=set)
    all_came: bool = False  # `online` is complete: devices had their time to say hello
    reading_trust: int = 0  # metadata of the root that came and is not read yet

    @property
    def offline(self) -> set[str] | None:
        """Admitted devices that are not connected; None while they may be about to come."""
        return set(self.registry.admitted()) - self.online if self.all_came else None

    @property
    def offline_count(self) -> int:
        """Number of them, or -1, as messages have it."""
        return -1 if (offline := self.offline) is None else len(offline)

    def is_far(self, number: int) -> bool:
        """Whether a number of the cloud's, in ms since 1970, is a day ahead of this clock.

        Then a leaked key, or a clock that is wrong, gave it. A roster ends a day from now.
        """
        day_on = int(self.registry.roster_expires_s() * 1000)
        return number >= FAR_NUMBER or 0 < day_on < number

    def ack(self, digest: bytes, status: str, reason: str = "") -> Note:
        """A signed acknowledgement; `status` is one of `Ack`'s."""
        return self.signer.note(Ack(digest, status, reason))  # type: ignore[arg-type]

    def cover(self, to: fx.Address) -> list[fx.Effect]:
        """The wish for cover traffic, if this proxy has it.

        Nothing is said where it has none: such a note could be played again by a broker.
        """
        return [fx.Send(to, self._cover)] if self._cover else []

    @cached_property
    def _cover(self) -> Note | None:
        window_s = self.settings.cover_window_s
        return self.signer.note(Cover(window_s)) if window_s > 0 else None
