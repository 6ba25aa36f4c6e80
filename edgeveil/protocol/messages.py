"""Every message of the wire, its bytes, and who says so.

Five messages travel. Offers and notes have a *header* or *body* in a signed `Envelope`, so identity
and integrity never depend on the broker. All validation of form happens here, once: a frame is one
version byte and a msgpack array, its size is checked before anything is parsed, and an array or
string header longer than the frame is refused before memory is taken."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from edgeveil.crypto.keys import DEPOSIT_BYTES, KEY_BYTES, SigningKey, VerifyKey, sign, verify
from edgeveil.crypto.labels import BODY, DATA_SET, HEADER, RELEASE_AHEAD, context
from edgeveil.errors import ProtocolError

JobId = Annotated[bytes, Meta(min_length=16, max_length=16)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
DeviceId = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
SEGMENT_NAME = r"^[a-z0-9_.-]{1,64}\Z"
Name = Annotated[str, Meta(pattern=SEGMENT_NAME)]
Count = Annotated[int, Meta(ge=0, le=2**31)]
Bytes = Annotated[int, Meta(ge=0, le=2**40)]
Seconds = Annotated[float, Meta(ge=0, le=10 * 86400)]
Answers = Annotated[int, Meta(ge=-1, le=2**62)]
Deposit = Annotated[bytes, Meta(max_length=DEPOSIT_BYTES)]


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """A byte string by its SHA-256, cut into parts of `part_bytes` (the last may be shorter)."""

    digest: Digest
    size_bytes: Bytes
    part_bytes: Annotated[int, Meta(ge=1, le=2**28)]

    @property
    def parts(self) -> int:
        return max(1, -(-self.size_bytes // self.part_bytes))  # an empty blob has one empty part


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """An encoded header or body with its Ed25519 signature. `signer` is a device id, or a role."""

    signer: Annotated[str, Meta(pattern=r"^(cloud|proxy|[0-9a-f]{16})\Z")]
    payload: Annotated[bytes, Meta(max_length=1 << 20)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer"):
    """A blob exists. `data` is the whole blob if it fits in this packet, else empty. `beside`: its
    sender can hand it over beside the broker, and sends no part unasked."""

    header: Envelope
    data: bytes = b""
    beside: bool = False


class BlobPart(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Part `index` of the blob; `crc` is CRC-32 of `data` (the blob's digest is what counts)."""

    blob: Digest
    index: Count
    crc: Annotated[int, Meta(ge=0, lt=2**32)]
    data: bytes


class Need(msgspec.Struct, frozen=True, array_like=True, tag="need"):
    """Please send these parts (again); or, with `beside`, say where the blob lies (`BlobAt`)."""

    blob: Digest
    indices: Annotated[tuple[Count, ...], Meta(max_length=64)]
    beside: bool = False


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    """A small signed statement."""

    body: Envelope


class TrustMetadata(msgspec.Struct, frozen=True, array_like=True, tag="trust"):
    """Root documents in their order, and the newest delegations (may be empty), as TUF metadata:
    signed by the root's keys, so who hands them on cannot change them."""

    roots: Annotated[tuple[bytes, ...], Meta(max_length=64)]
    delegations: bytes


Message = Offer | BlobPart | Need | Note | TrustMetadata


class RoundId(msgspec.Struct, frozen=True, array_like=True):
    """A round of a job, counted from 1 (rounds of preparation too), and the attempt at it."""

    job_id: JobId
    round: Count
    attempt: Count

    @property
    def numbers(self) -> bytes:
        """Round and attempt as seals are bound to them, 4 bytes each, big-endian."""
        return self.round.to_bytes(4, "big") + self.attempt.to_bytes(4, "big")


def short_name(job_id: bytes) -> str:
    """What log lines call a job whose name the process does not know."""
    return job_id.hex()[:12]


class Group(msgspec.Struct, frozen=True, array_like=True):
    """One segment that a device may upload: its name and its public, padded plaintext size."""

    name: Name
    padded_bytes: Bytes


class MaskedGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group, by its index, whose segments are vectors of `count` integers mod 2^`bits` under
    masks. Who uploads one masked group uploads them all."""

    group: Count
    count: Annotated[int, Meta(ge=1, le=2**31)]
    bits: Annotated[int, Meta(ge=8, le=56)]


MOST_SETS = 64  # of uploads, in one round
DATA_SET_TAG_BYTES = 16
NEW_KEY_EVERY_S = 60.0  # of one device a proxy takes a new sealing key, made by hand
DECLINE_CAUSES = ("policy", "budget", "conditions", "fit", "fault")
MOST_CAUSES = 16  # counted in one message: room for causes of later versions


class Manifest(msgspec.Struct, frozen=True, array_like=True, tag="manifest"):
    """The cloud's broadcast: a job, a round's model or the final release, sealed.

    The blob is `stanza_bytes` of sealed content keys, then the ciphertext of the package.
    `commitment` binds the content key and `package_digest` the plaintext, so that two devices
    cannot be shown different models under one ciphertext. `cloud_key` is the HPKE key of this round
    alone (zeros for a job or a release). `sequence` grows with every broadcast of a cloud. Unless
    `shuffled`, the proxy hands uploads over in the order in which they came. `masked` groups are
    summed under masks, the uploads dealt into `sets`, each summed by itself. `data_set` is a
    release's tag (`data_set_tag`; empty: by an earlier version). `pieces`, where not everybody is
    selected, are the blob's stanzas and its ciphertext as blobs of their own: who finds no stanza
    needs no ciphertext. Of several `buckets` each is a part of the first piece, and a device needs
    that of its own key alone (`edgeveil.crypto.buckets`). `check` commits to the factors by which
    masks are checked (`CheckMasks`; empty: none are).

    A job's says what its last broadcast will be, so that it is refused before anybody pays for it:
    the release's `data_set`, the most bytes beside stanzas of a round's package or the release
    (`broadcast_bytes`), of a device's upload (`upload_bytes`), and in `release_proof` that the
    cloud has the key for releases (`proof_of_releases`; 0 and empty: by an earlier version)."""

    kind: Literal["job", "round", "release"]
    at: RoundId
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
    masked: Annotated[tuple[MaskedGroup, ...], Meta(max_length=1024)] = ()
    sets: Annotated[int, Meta(ge=1, le=MOST_SETS)] = 1
    data_set: Annotated[bytes, Meta(max_length=DATA_SET_TAG_BYTES)] = b""
    pieces: Annotated[tuple[Blob, ...], Meta(max_length=2)] = ()
    buckets: Annotated[int, Meta(ge=1, le=65536)] = 1
    check: Annotated[bytes, Meta(max_length=32)] = b""
    broadcast_bytes: Bytes = 0
    release_proof: Annotated[bytes, Meta(max_length=64)] = b""
    upload_bytes: Bytes = 0


# Sequences of broadcasts and numbers of statements are milliseconds since 1970, by the cloud's
# clock; none is honest from this one on, in the year 2527.
FAR_NUMBER = 2**44


def known_number(number: int) -> int:
    """A number that was kept, or -1 where no honest cloud can have said it: it holds up nothing."""
    return number if number < FAR_NUMBER else -1


def data_set_tag(name: str) -> bytes:
    """The 16-byte tag of a data set in manifests; it hides no name that is guessed."""
    return hashlib.sha256(context(DATA_SET, name.encode())).digest()[:DATA_SET_TAG_BYTES]


SEAL_OVERHEAD_BYTES = 48  # HPKE: an encapsulated key of 32 bytes and a tag of 16
SEALED_SEED_BYTES = KEY_BYTES + SEAL_OVERHEAD_BYTES


class Upload(msgspec.Struct, frozen=True, array_like=True, tag="upload"):
    """A device's sealed segments: the blob holds the groups listed, in that order. The proxy keeps
    number and deposit, and gives them back to a device that lost them (`Behind`). `seed` is that of
    the masks, sealed to the proxy's key of the round; empty without masks."""

    at: RoundId
    groups: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=1024)]
    blob: Blob
    number: Answers = 0  # of this answer in the device's life; 0: it does not count them
    deposit: Deposit = b""  # what the job may cost, for the device's own eyes
    seed: Annotated[bytes, Meta(max_length=SEALED_SEED_BYTES)] = b""


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """The proxy's hand-over: `counts[g]` segments of group g, each group shuffled on its own,
    masked groups together. Not `shuffled`, they stand in the order of arrival. With a `stream` the
    blob begins with what `Arrived` called so, one upload after the other. `causes` counts the
    declined by `DECLINE_CAUSES`; the rest named none. `offline` counts the admitted devices that
    were not connected (-1: unknown)."""

    at: RoundId
    uploads: Count
    declined: Count
    counts: Annotated[tuple[Count, ...], Meta(max_length=1024)]
    blob: Blob
    stream: Annotated[bytes, Meta(max_length=32)] = b""
    causes: Annotated[tuple[Count, ...], Meta(max_length=MOST_CAUSES)] = ()
    offline: Annotated[int, Meta(ge=-1, le=2**31)] = -1


MOST_PIECES = 16  # of a round's record


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """The round is closed: the blob lists the mark of every accepted segment, sorted. `pieces` are
    the blob cut by the first bits of the marks: a device asks for the one in which its mark would
    stand (`edgeveil.protocol.transfer`). None: a party of an earlier version takes part, and the
    whole is pushed."""

    at: RoundId
    accepted: Count
    blob: Blob
    pieces: Annotated[tuple[Blob, ...], Meta(max_length=MOST_PIECES)] = ()

    @property
    def kind(self) -> Literal["commit"]:
        return "commit"


class Roster(msgspec.Struct, frozen=True, array_like=True, tag="roster"):
    """The public sealing keys of all admitted devices, sorted, and nothing else about them. `epoch`
    grows with every change of one registry, which `lineage` names (empty: by an earlier version).
    From `expires_s` on (seconds since 1970; 0: never) it is stale. `knows` is what all these
    devices know; from 2 on, the proxy hands out pieces of records besides."""

    epoch: Annotated[int, Meta(ge=0, le=2**62)]
    blob: Blob
    lineage: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    expires_s: Annotated[float, Meta(ge=0, le=2**40)] = 0.0
    knows: Count = 0


class MaskSums(msgspec.Struct, frozen=True, array_like=True, tag="masksums"):
    """The proxy's answer to the `question` `Unmask`: for each masked group the sum of the masks of
    those uploads, packed, and of their checks. Or to `CheckMasks`: of each upload, in the batch's
    order, for each masked group the check of its mask, 8 bytes, big-endian."""

    at: RoundId
    question: Digest
    blob: Blob


Header = Manifest | Upload | Batch | Commit | Roster | MaskSums
BroadcastHeader = Manifest | Commit  # what the cloud tells all devices


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """The receiver holds the blob durably (`held`), or why it never will."""

    blob: Digest
    status: Literal["held", "duplicate", "closed", "refused"]
    reason: Annotated[str, Meta(max_length=64)] = ""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """A device is there; repeated until the proxy acknowledges it and sends what is open. The proxy
    sends newer metadata than these versions (zeros: keys are pinned one by one). `answered` is the
    number of its newest answer (below zero: it counts none). `knows` grows with what may be said to
    it alone: from 1 on, stanzas in buckets."""

    device: DeviceId
    root_version: Count = 0
    trust_version: Count = 0
    answered: Answers = -1
    knows: Count = 0


# What hellos and rosters say that devices and proxy know, each with all before it.
KNOWS_BUCKETS = 1
KNOWS_RECORDS = 2  # of a roster whose devices know buckets: the proxy hands out pieces of records
KNOWS_CHECKS = 3  # the proxy answers checks of masks, by factors that devices hold it to


class Here(msgspec.Struct, frozen=True, array_like=True, tag="here"):
    """The signer has (again) come. The proxy's asks every device for a hello, spread over
    `spread_s`; the cloud's asks the proxy for the roster."""

    spread_s: Seconds


class Later(msgspec.Struct, frozen=True, array_like=True, tag="later"):
    """The proxy's answer to a hello while many come: this one again, after `delay_s`."""

    delay_s: Seconds


class JobDeposit(msgspec.Struct, frozen=True, array_like=True):
    """The deposit of a device's newest answer in a job."""

    job_id: JobId
    deposit: Deposit


class Behind(msgspec.Struct, frozen=True, array_like=True, tag="behind"):
    """The proxy's answer to a hello that counts fewer answers than this identity has given: a copy,
    or put back from one. `jobs` are those answered since, up to answer number `answered`; not
    `whole`: there may have been others, which the next hello brings."""

    hello: Digest
    answered: Answers
    jobs: Annotated[tuple[JobDeposit, ...], Meta(max_length=64)]
    whole: bool


class Cover(msgspec.Struct, frozen=True, array_like=True, tag="cover"):
    """The proxy asks for cover traffic: every device answers every round, the unselected with
    dummies, at a uniformly random moment of the second half of `window_s`."""

    window_s: Annotated[float, Meta(gt=0, le=10 * 86400)]


class RoundKey(msgspec.Struct, frozen=True, array_like=True, tag="roundkey"):
    """The proxy's HPKE key of one round, to which devices seal the seeds of their masks. `memory`
    names the proxy's memory of what it unmasked: one that was lost or put back has another name
    (empty: an earlier version)."""

    at: RoundId
    key: Key
    memory: Annotated[bytes, Meta(max_length=16)] = b""


class Unmask(msgspec.Struct, frozen=True, array_like=True, tag="unmask"):
    """The cloud asks for the sums of the masks of those uploads of a batch that it counts. `chosen`
    has a bit for each upload that has masked groups, in the batch's order, lowest bit first. A
    round is unmasked for one choice, and never for a second."""

    at: RoundId
    batch: Digest
    chosen: Annotated[bytes, Meta(min_length=1, max_length=1 << 17)]


class CheckMasks(msgspec.Struct, frozen=True, array_like=True, tag="checkmasks"):
    """The cloud asks for the check of each mask of a batch that is durable, and discloses the key
    of the factors, to which the round's manifest commits."""

    at: RoundId
    batch: Digest
    key: Key


class Misfits(msgspec.Struct, frozen=True, array_like=True, tag="misfits"):
    """Uploads of a batch that no honest device sends, by places as in `Unmask`: for the proxy's
    operator to see, and of no other effect."""

    at: RoundId
    batch: Digest
    places: Annotated[bytes, Meta(min_length=1, max_length=1 << 17)]


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """The front of an open round's batch is there, in masked segments. The digest of `blob` is but
    a name, by which its whole parts may be asked for: what comes later only makes it longer, and
    the batch that has it as its `stream` begins with it."""

    at: RoundId
    blob: Blob


class Want(msgspec.Struct, frozen=True, array_like=True, tag="want"):
    """A device has a round of this job but not the job itself."""

    job_id: JobId


class Decline(msgspec.Struct, frozen=True, array_like=True, tag="decline"):
    """A selected device will not answer this round. `cause` is one of `DECLINE_CAUSES`, or "" (an
    earlier version). It follows from the job, the owner's settings and the ledger, never from a
    record."""

    at: RoundId
    cause: Annotated[str, Meta(pattern=r"^[a-z]{0,16}\Z")] = ""


class Shortfall(msgspec.Struct, frozen=True, array_like=True, tag="shortfall"):
    """The round ended below the floor: nothing is handed over. Counts only, as in `Batch`."""

    at: RoundId
    uploads: Count
    declined: Count
    causes: Annotated[tuple[Count, ...], Meta(max_length=MOST_CAUSES)] = ()
    offline: Annotated[int, Meta(ge=-1, le=2**31)] = -1


class LinkState(msgspec.Struct, frozen=True, array_like=True, tag="linkstate"):
    """The proxy's link to the devices' broker, when it changes and when the cloud comes: what no
    device can answer is no attempt."""

    up: bool


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """The cloud ends a job; devices and proxy drop what they keep for it."""

    job_id: JobId
    status: Literal["completed", "failed", "cancelled"]


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """A device goes away in good order."""

    device: DeviceId


class NewSealingKey(msgspec.Struct, frozen=True, array_like=True, tag="newsealingkey"):
    """A device's sealing key is another one from now on; its identity, who signs this, stays.
    `number` grows from key to key, so that an older one cannot be brought back."""

    device: DeviceId
    sealing: Key
    number: Annotated[int, Meta(ge=1, le=2**62)]


RELEASES_NAMED = 64  # sequences in each list of a statement
SealedReport = Annotated[bytes, Meta(min_length=1, max_length=4096)]
Sequences = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=2**62)], ...], Meta(max_length=RELEASES_NAMED)
]


class ReleaseReport(msgspec.Struct, frozen=True, array_like=True, tag="releasereport"):
    """What became of a release on this device, sealed for the cloud: once for each broadcast.
    Devices that could not open it send a dummy of the same size."""

    at: RoundId
    sealed: SealedReport


class ReleaseReports(msgspec.Struct, frozen=True, array_like=True, tag="releasereports"):
    """The proxy's hand-over of reports, sorted by their bytes: an order that says nothing."""

    at: RoundId
    sealed: Annotated[tuple[SealedReport, ...], Meta(min_length=1, max_length=4096)]


class ReleaseStatement(msgspec.Struct, frozen=True, array_like=True, tag="releasestatement"):
    """The cloud's word on all its releases, by their sequence; a larger `number` replaces it. Those
    `renewed` are good until `expires_s` (since 1970). Who has one of those `withdrawn` goes back to
    the release before. Signed with the key for releases."""

    number: Annotated[int, Meta(ge=0, le=2**62)]
    expires_s: Annotated[float, Meta(ge=0, le=2**40)]
    renewed: Sequences
    withdrawn: Sequences


MOST_URL_CHARACTERS = 4096


class BlobAt(msgspec.Struct, frozen=True, array_like=True, tag="blobat"):
    """Where the blob may be had beside the broker, by GET; or, with `put`, where its sender may lay
    it down, by PUT. The URL is a capability: random, of nobody's name, good for `expires_s`.
    """

    blob: Digest
    url: Annotated[str, Meta(min_length=8, max_length=MOST_URL_CHARACTERS)]
    put: bool
    expires_s: Seconds


class BlobPut(msgspec.Struct, frozen=True, array_like=True, tag="blobput"):
    """The blob lies where the receiver said."""

    blob: Digest


DeviceBody = NewSealingKey | Hello | Want | Decline | Bye | ReleaseReport
ProxyBody = Later | Behind | Cover | RoundKey | Arrived | Shortfall | ReleaseReports | LinkState
CloudBody = Unmask | CheckMasks | Misfits | Close | ReleaseStatement
Body = DeviceBody | ProxyBody | CloudBody | Ack | Here | BlobAt | BlobPut

VERSION = 1
PART_START = bytes((VERSION, 0x95, 0xA4)) + b"part"  # of a `BlobPart`'s frame: an array of five

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_headers: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)
_bodies: msgspec.msgpack.Decoder[Body] = msgspec.msgpack.Decoder(Body)

T = TypeVar("T")


def encode(message: Message) -> bytes:
    """The frame of a message."""
    return bytes((VERSION,)) + _encoder.encode(message)


def decode(frame: bytes, limit_bytes: int) -> Message:
    """The message; raises ProtocolError `oversized`, `unknown_version` or `malformed`."""
    if len(frame) > limit_bytes:
        raise ProtocolError("oversized", f"{len(frame)} bytes where {limit_bytes} are allowed")
    if not frame or frame[0] != VERSION:
        raise ProtocolError("unknown_version")
    return _parse(_messages, memoryview(frame)[1:])


def encode_inner(value: Header | Body) -> bytes:
    """The bytes of a header or body: what is signed."""
    return _encoder.encode(value)


def decode_header(envelope: Envelope) -> Header:
    """The header inside, by its form alone. Raises ProtocolError `malformed`."""
    return _parse(_headers, envelope.payload)


def decode_body(envelope: Envelope) -> Body:
    """The body inside, by its form alone. Raises ProtocolError `malformed`."""
    return _parse(_bodies, envelope.payload)


def _parse(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError):
        # The text of the error may quote the input, so it is not passed on.
        raise ProtocolError("malformed") from None


class Signer:
    """One party's name and its signing key, which may be replaced."""

    def __init__(self, name: str, key: SigningKey) -> None:
        self.name, self.key = name, key

    def header(self, header: Header) -> Envelope:
        return self._envelope(HEADER, encode_inner(header))

    def offer(self, header: Header, data: bytes = b"") -> Offer:
        return Offer(self.header(header), data)

    def note(self, body: Body) -> Note:
        return Note(self._envelope(BODY, encode_inner(body)))

    def _envelope(self, label: bytes, payload: bytes) -> Envelope:
        return Envelope(self.name, payload, sign(self.key, label, payload))


def proof_of_releases(job: Manifest) -> bytes:
    """What a job's announcement signs with the key for releases."""
    return job.at.job_id + job.at.numbers + job.job_digest + job.sequence.to_bytes(8, "big")


def check_signature(envelope: Envelope, signer: str, key: VerifyKey | None, label: bytes) -> None:
    """Raise ProtocolError `unknown_signer` or `forged` unless `signer` signed this under `label`;
    `key` is None for a signer that nobody admitted."""
    if key is None or envelope.signer != signer:
        raise ProtocolError("unknown_signer")
    if not verify(key, label, envelope.payload, envelope.signature):
        raise ProtocolError("forged")


def verified_header(envelope: Envelope, signer: str, key: VerifyKey | None) -> Header:
    """The header that `signer` signed. Raises as `check_signature`, then `malformed`."""
    check_signature(envelope, signer, key, HEADER)
    return decode_header(envelope)


def verified_body(envelope: Envelope, signer: str, key: VerifyKey | None) -> Body:
    """The body that `signer` signed. Raises as `check_signature`, then `malformed`."""
    check_signature(envelope, signer, key, BODY)
    return decode_body(envelope)


@dataclass(frozen=True)
class PeerKeys:
    """The keys that a party believes; None: nobody speaks as this one. `epoch` grows whenever a key
    of the cloud's is replaced: its numbers begin anew. `lineage` names the registry whose rosters
    count (empty: the first seen). `versions` of root and delegations (zeros: pinned keys)."""

    cloud: VerifyKey | None = None
    proxy: VerifyKey | None = None
    releases: VerifyKey | None = None
    epoch: int = 0
    lineage: str = ""
    versions: tuple[int, int] = (0, 0)

    @classmethod
    def pinned(cls, *, cloud: VerifyKey | None = None, proxy: VerifyKey | None = None) -> PeerKeys:
        return cls(cloud, proxy, cloud)

    def cloud_header(self, envelope: Envelope) -> Header:
        """Verify a header of the cloud's; a release is signed with the key for releases."""
        if self.cloud == self.releases:
            return verified_header(envelope, "cloud", self.cloud)
        try:
            header, release = verified_header(envelope, "cloud", self.cloud), False
        except ProtocolError as error:
            if error.reason == "malformed":
                raise
            header, release = verified_header(envelope, "cloud", self.releases), True
        if (isinstance(header, Manifest) and header.kind == "release") != release:
            raise ProtocolError("forged", "signed with the key of another role")
        return header

    def will_take_release(self, job: Manifest) -> bool:
        key, said = self.releases, proof_of_releases(job)
        return key is not None and verify(key, RELEASE_AHEAD, said, job.release_proof)

    def cloud_body(self, envelope: Envelope) -> Body:
        """Verify a body of the cloud's; a statement is signed with the key for releases."""
        stated = isinstance(decode_body(envelope), ReleaseStatement)
        return verified_body(envelope, "cloud", self.releases if stated else self.cloud)


HEALTH = Group("release_health", 64)
REPORT_BYTES = HEALTH.padded_bytes + SEAL_OVERHEAD_BYTES


class ReleaseOutcome(Enum):
    """What became of a release on one device. It follows from the release, the owner's policy and a
    trial on made-up records, so it costs no ε; who adds an outcome must keep that true."""

    IN_USE = "in_use"
    REFUSED_BY_CHECK = "refused_by_check"
    FAILED_TRIAL = "failed_trial"
    ROLLED_BACK = "rolled_back"
    REFUSED_BY_POLICY = "refused_by_policy"

    @property
    def failed(self) -> bool:
        return self not in (ReleaseOutcome.IN_USE, ReleaseOutcome.REFUSED_BY_POLICY)

    def to_bytes(self) -> bytes:
        return self.value.encode()

    @classmethod
    def from_bytes(cls, padded: bytes) -> ReleaseOutcome | None:
        """The outcome in an opened report; None for anything else."""
        text = padded.rstrip(b"\0")
        return next((one for one in cls if one.to_bytes() == text), None)


def wants_reports(header: Manifest) -> bool:
    """Whether the cloud asks what became of this release."""
    return header.kind == "release" and header.groups == (HEALTH,)
