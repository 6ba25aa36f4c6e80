"""Every message of the wire: frozen, compact (arrays, not maps), validated once by the codec.

Four messages travel: `Offer` announces a blob (and carries it when it is small), `Part` carries
a piece of one, `Need` asks for pieces again, `Note` is a small signed statement. What an offer
or a note says stands in a signed *header* or *body*, so identity and integrity never depend on
the broker.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

JobId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
DeviceId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9_.-]{1,64}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**31)]
Bytes = Annotated[int, Meta(ge=0, le=2**40)]
Seconds = Annotated[float, Meta(ge=0, le=10 * 86400)]


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A byte string by its SHA-256, cut into parts of `part_bytes` (the last may be shorter)."""

    digest: Digest
    size_bytes: Bytes
    part_bytes: Annotated[int, Meta(ge=1, le=2**28)]

    @property
    def parts(self) -> int:
        """How many parts there are; an empty blob has one empty part."""
        return max(1, -(-self.size_bytes // self.part_bytes))


class Signed(msgspec.Struct, frozen=True, array_like=True):
    """An encoded header or body with its Ed25519 signature. `signer` is a device id, or a role."""

    signer: Annotated[str, Meta(pattern=r"^(cloud|proxy|[0-9a-f]{16})\Z")]
    payload: Annotated[bytes, Meta(max_length=1 << 20)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


# --- what travels -------------------------------------------------------------------------


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer"):
    """A blob exists. `data` is the whole blob if it fits in this packet, else empty."""

    header: Signed
    data: bytes = b""


class Part(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Part `index` of the blob; `crc` is CRC-32 of `data` (the blob's digest is what counts)."""

    blob: Digest
    index: Count
    crc: Annotated[int, Meta(ge=0, lt=2**32)]
    data: bytes


class Need(msgspec.Struct, frozen=True, array_like=True, tag="need"):
    """Please send these parts (again). The length bounds the credit one request takes."""

    blob: Digest
    indices: Annotated[tuple[Count, ...], Meta(max_length=64)]


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    """A small signed statement."""

    body: Signed


Message = Offer | Part | Need | Note


# --- headers: what an offered blob is -------------------------------------------------------


class Exchanged(msgspec.Struct, frozen=True, array_like=True):
    """Which exchange of which job, and which attempt at it."""

    job_id: JobId
    round: Count
    attempt: Count

    @property
    def numbers(self) -> bytes:
        """Round and attempt as seals are bound to them, 4 bytes each, big-endian."""
        return self.round.to_bytes(4, "big") + self.attempt.to_bytes(4, "big")


class Group(msgspec.Struct, frozen=True, array_like=True):
    """One segment that a device may upload: its name and its public, padded plaintext size."""

    name: Name
    padded_bytes: Bytes


class Manifest(msgspec.Struct, frozen=True, array_like=True, tag="manifest"):
    """The cloud's broadcast: a job, a round's model or the final release, sealed.

    The blob is `stanza_bytes` of sealed content keys, then the AEAD stream of the package.
    `commitment` binds the content key and `package_digest` the plaintext, so that two devices
    cannot be shown different models under one ciphertext. `cloud_key` is the HPKE key of this
    round alone (zeros for a job or a release). `sequence` grows with every broadcast of a cloud:
    an old release cannot be put in place of a newer one. Unless `shuffled`, the proxy hands uploads
    over in the order in which they came.
    """

    kind: Literal["job", "round", "release"]
    at: Exchanged
    sequence: Annotated[int, Meta(ge=0, le=2**62)]
    job_digest: Digest
    phase: Name
    selected: Count
    min_batch: Count
    quorum: Count
    deadline_s: Seconds
    grace_s: Seconds
    groups: Annotated[tuple[Group, ...], Meta(max_length=1024)]
    stanza_bytes: Bytes
    package_digest: Digest
    package_bytes: Bytes
    commitment: Digest
    cloud_key: Key
    blob: Blob
    shuffled: bool = True


SEAL_OVERHEAD_BYTES = 48  # HPKE: an encapsulated key of 32 bytes and a tag of 16


class Upload(msgspec.Struct, frozen=True, array_like=True, tag="upload"):
    """A device's sealed segments: the blob holds the groups listed, in that order."""

    at: Exchanged
    groups: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=1024)]
    blob: Blob


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """The proxy's hand-over: `counts[g]` segments of group g, each group shuffled on its own.

    Of a manifest that is not `shuffled` they stand in the order in which uploads came.
    """

    at: Exchanged
    uploads: Count
    declined: Count
    counts: Annotated[tuple[Count, ...], Meta(max_length=1024)]
    blob: Blob


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """The round is closed: the blob lists the mark of every accepted segment, sorted."""

    at: Exchanged
    accepted: Count
    blob: Blob


class Roster(msgspec.Struct, frozen=True, array_like=True, tag="roster"):
    """The public sealing keys of all admitted devices, sorted, and nothing else about them."""

    epoch: Annotated[int, Meta(ge=0, le=2**62)]
    blob: Blob


Header = Manifest | Upload | Batch | Commit | Roster


# --- bodies: what a note says ----------------------------------------------------------------


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """The receiver holds the blob durably (`held`), or why it never will."""

    blob: Digest
    status: Literal["held", "duplicate", "closed", "refused"]
    reason: Annotated[str, Meta(max_length=64)] = ""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A device is there; said again until the proxy acknowledges it and sends what is open."""

    device: DeviceId


class Here(msgspec.Struct, frozen=True, array_like=True, tag="here"):
    """The signer has (again) come.

    The proxy's asks every device for a hello, spread over `spread_s`; the cloud's asks the proxy
    for the roster.
    """

    spread_s: Seconds


class Later(msgspec.Struct, frozen=True, array_like=True, tag="later"):
    """The proxy's answer to a hello while many come: this one again, after `delay_s`."""

    delay_s: Seconds


class Cover(msgspec.Struct, frozen=True, array_like=True, tag="cover"):
    """The proxy asks for cover traffic: every device answers every round, the unselected with
    dummies, each at a uniformly random moment of the second half of `window_s`.
    """

    window_s: Annotated[float, Meta(gt=0, le=10 * 86400)]


class Want(msgspec.Struct, frozen=True, array_like=True, tag="want"):
    """A device has a round of this job but not the job itself."""

    job_id: JobId


class Decline(msgspec.Struct, frozen=True, array_like=True, tag="decline"):
    """A selected device will not answer this round. The reason stays on its console."""

    at: Exchanged


class Shortfall(msgspec.Struct, frozen=True, array_like=True, tag="shortfall"):
    """The round ended below the floor: nothing is handed over. Counts only."""

    at: Exchanged
    uploads: Count
    declined: Count


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """The cloud ends a job; devices and proxy drop what they keep for it."""

    job_id: JobId
    status: Literal["completed", "failed", "cancelled"]


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """A device goes away in good order."""

    device: DeviceId


Body = Ack | Hello | Here | Later | Cover | Want | Decline | Shortfall | Close | Bye
