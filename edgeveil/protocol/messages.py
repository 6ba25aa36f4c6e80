"""Wire messages, their codec and their signatures.

Five message types travel. Offers and notes carry a header or body in a signed `Envelope`, so
identity and integrity never depend on the broker. All form is validated here, once: a frame is one
version byte and a msgpack array; its size is checked before parsing, and an array or string header
longer than the frame is refused before memory is allocated."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from edgeveil.crypto.keys import KEY_BYTES, STATE_BYTES, SigningKey, VerifyKey, sign, verify
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
EncryptedState = Annotated[bytes, Meta(max_length=STATE_BYTES)]


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """Byte string named by its SHA-256, in parts of `part_bytes` (the last may be shorter)."""

    digest: Digest
    size_bytes: Bytes
    part_bytes: Annotated[int, Meta(ge=1, le=2**28)]

    @property
    def parts(self) -> int:
        return max(1, -(-self.size_bytes // self.part_bytes))  # an empty blob has one empty part


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """Encoded header or body with its Ed25519 signature; `signer` is a device id or a role."""

    signer: Annotated[str, Meta(pattern=r"^(cloud|proxy|[0-9a-f]{16})\Z")]
    payload: Annotated[bytes, Meta(max_length=1 << 20)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class Offer(msgspec.Struct, frozen=True, array_like=True, tag="offer"):
    """Announcement of a blob, with the whole blob in `data` if it fits in this packet."""

    header: Envelope
    data: bytes = b""
    out_of_band: bool = False  # available out of band; no part is sent unrequested


class BlobPart(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """Part `index` of a blob with the CRC-32 of `data`; the blob's digest is authoritative."""

    blob: Digest
    index: Count
    crc: Annotated[int, Meta(ge=0, lt=2**32)]
    data: bytes


class Need(msgspec.Struct, frozen=True, array_like=True, tag="need"):
    """Request for parts of a blob; with `out_of_band`, for its URL instead (`BlobAt`)."""

    blob: Digest
    indices: Annotated[tuple[Count, ...], Meta(max_length=64)]
    out_of_band: bool = False


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    """Small signed statement."""

    body: Envelope


class TrustMetadata(msgspec.Struct, frozen=True, array_like=True, tag="trust"):
    """TUF root documents in order and the newest delegations, signed by the root's keys."""

    roots: Annotated[tuple[bytes, ...], Meta(max_length=64)]
    delegations: bytes  # may be empty


Message = Offer | BlobPart | Need | Note | TrustMetadata


class RoundId(msgspec.Struct, frozen=True, array_like=True):
    """Round of a job, counted from 1 including preparatory rounds, and its attempt."""

    job_id: JobId
    round: Count
    attempt: Count

    @property
    def numbers(self) -> bytes:
        """Round and attempt as bound into seals: 4 bytes each, big-endian."""
        return self.round.to_bytes(4, "big") + self.attempt.to_bytes(4, "big")


def short_name(job_id: bytes) -> str:
    """Return the name that log lines use for a job of unknown name."""
    return job_id.hex()[:12]


class Group(msgspec.Struct, frozen=True, array_like=True):
    """Segment that a device may upload: its name and its public, padded plaintext size."""

    name: Name
    padded_bytes: Bytes


class MaskedGroup(msgspec.Struct, frozen=True, array_like=True):
    """Group whose segments are masked vectors of `count` integers mod 2^`bits`."""

    group: Count  # index; a device uploads all masked groups or none
    count: Annotated[int, Meta(ge=1, le=2**31)]
    bits: Annotated[int, Meta(ge=8, le=60)]


MOST_SETS = 64  # of uploads in one round
DATA_SET_TAG_BYTES = 16
NEW_KEY_EVERY_S = 60.0  # minimum interval between new sealing keys of one device
DECLINE_CAUSES = ("policy", "budget", "conditions", "fit", "fault")
MOST_CAUSES = 16  # in one message; leaves room for causes of later versions


class CorrelatedNoise(msgspec.Struct, frozen=True, array_like=True):
    """Noise of which training round `number` takes back `coefficient`/2⁸ of the round before.

    It is the last masked group: one number for each number of the groups before it, 8 bits wider.
    """

    rounds: Annotated[int, Meta(ge=1, le=2**31)]
    participations: Annotated[int, Meta(ge=1, le=2**31)]
    min_separation: Annotated[int, Meta(ge=1, le=2**31)]
    coefficient: Annotated[int, Meta(ge=0, lt=256)]
    number: Annotated[int, Meta(ge=1, le=2**31)]

    @property
    def job(self) -> tuple[int, int, int, int]:
        """What is equal in all rounds of a job."""
        return self.rounds, self.participations, self.min_separation, self.coefficient


class Manifest(msgspec.Struct, frozen=True, array_like=True, tag="manifest"):
    """Header of a sealed broadcast by the cloud: a job, a round's model or the final release.

    The blob is `stanza_bytes` of sealed content keys, then the ciphertext of the package.
    `commitment` binds the content key and `package_digest` the plaintext, so two devices cannot be
    given different models under one ciphertext. Where not all devices are selected, `pieces` names
    stanzas and ciphertext as separate blobs, so an unselected device fetches no ciphertext. With
    several `buckets` each is one part of the first piece, and a device needs only its own
    (`edgeveil.crypto.buckets`). A job's manifest bounds its later broadcasts and uploads, so that
    an impossible job is refused before a device spends budget. Defaults are sent by earlier
    versions."""

    kind: Literal["job", "round", "release"]
    at: RoundId
    sequence: Annotated[int, Meta(ge=0, le=2**62)]  # grows with every broadcast of a cloud
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
    cloud_key: Key  # HPKE key of this round; zeros for a job or a release
    blob: Blob
    shuffled: bool = True  # otherwise the proxy keeps the order of arrival
    masked: Annotated[tuple[MaskedGroup, ...], Meta(max_length=1024)] = ()
    sets: Annotated[int, Meta(ge=1, le=MOST_SETS)] = 1  # summed separately under masks
    data_set: Annotated[bytes, Meta(max_length=DATA_SET_TAG_BYTES)] = b""  # `data_set_tag`
    pieces: Annotated[tuple[Blob, ...], Meta(max_length=2)] = ()
    buckets: Annotated[int, Meta(ge=1, le=65536)] = 1
    check: Annotated[bytes, Meta(max_length=32)] = b""  # commits to the key of `CheckMasks`
    broadcast_bytes: Bytes = 0  # maximum of a round's package or the release, without stanzas
    release_proof: Annotated[bytes, Meta(max_length=64)] = b""  # signs `proof_of_releases`
    upload_bytes: Bytes = 0  # maximum of a device's upload
    correlated: CorrelatedNoise | None = None


# Sequences of broadcasts and numbers of statements are milliseconds since 1970 by the cloud's
# clock. This one is in the year 2527: no honest cloud issues it or a larger one.
FAR_NUMBER = 2**44


def known_number(number: int) -> int:
    """Return a stored number, or -1 if no honest cloud can have issued it."""
    return number if number < FAR_NUMBER else -1


def data_set_tag(name: str) -> bytes:
    """Return a data set's 16-byte tag in manifests; a guessable name is not hidden."""
    return hashlib.sha256(context(DATA_SET, name.encode())).digest()[:DATA_SET_TAG_BYTES]


PAD_TO_BYTES = 64
SEAL_OVERHEAD_BYTES = 48  # HPKE: 32-byte encapsulated key and 16-byte tag
SEALED_SEED_BYTES = KEY_BYTES + SEAL_OVERHEAD_BYTES


def padded(byte_count: int) -> int:
    """Return the public size of a segment: a multiple of 64 bytes."""
    return -(-byte_count // PAD_TO_BYTES) * PAD_TO_BYTES


class Upload(msgspec.Struct, frozen=True, array_like=True, tag="upload"):
    """Header of a device's sealed segments; the blob holds the listed groups in order."""

    at: RoundId
    groups: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=1024)]
    blob: Blob
    number: Answers = 0  # of this answer, over the device's lifetime; 0: not counted
    encrypted_state: EncryptedState = b""  # the job's price, encrypted for the device itself
    seed: Annotated[bytes, Meta(max_length=SEALED_SEED_BYTES)] = b""  # of masks, for the proxy


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """Hand-over of a round by the proxy: `counts[g]` segments of group g, normally shuffled."""

    at: RoundId
    uploads: Count
    declined: Count
    counts: Annotated[tuple[Count, ...], Meta(max_length=1024)]  # masked groups shuffled together
    blob: Blob
    stream: Annotated[bytes, Meta(max_length=32)] = b""  # name of the `Arrived` blob at the front
    causes: Annotated[tuple[Count, ...], Meta(max_length=MOST_CAUSES)] = ()  # by `DECLINE_CAUSES`
    offline: Annotated[int, Meta(ge=-1, le=2**31)] = -1  # admitted, not connected; -1: unknown


MOST_PIECES = 16  # of a commit record


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """Record of a committed round: the blob lists the marks of accepted segments, sorted."""

    at: RoundId
    accepted: Count
    blob: Blob
    # By the first bits of the marks; empty, and the blob pushed, for parties of earlier versions.
    pieces: Annotated[tuple[Blob, ...], Meta(max_length=MOST_PIECES)] = ()

    @property
    def kind(self) -> Literal["commit"]:
        return "commit"


class Roster(msgspec.Struct, frozen=True, array_like=True, tag="roster"):
    """Header of the sorted public sealing keys of all admitted devices."""

    epoch: Annotated[int, Meta(ge=0, le=2**62)]  # grows with every change of the registry
    blob: Blob
    lineage: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""  # identifies the registry
    expires_s: Annotated[float, Meta(ge=0, le=2**40)] = 0.0  # since 1970; 0: never
    knows: Count = 0  # lowest capability of these devices (`KNOWS_BUCKETS` …)


class MaskSums(msgspec.Struct, frozen=True, array_like=True, tag="masksums"):
    """Answer of the proxy to the request with digest `question`."""

    at: RoundId
    question: Digest
    # `Unmask`: packed sums by masked group. `CheckMasks`: for each upload in batch order and each
    # masked group the check of its mask, 8 bytes, big-endian.
    blob: Blob


Header = Manifest | Upload | Batch | Commit | Roster | MaskSums
BroadcastHeader = Manifest | Commit  # sent by the cloud to all devices


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="ack"):
    """Acknowledgement of a blob or note: stored durably (`held`), or the reason for refusal."""

    blob: Digest
    status: Literal["held", "duplicate", "closed", "refused"]
    reason: Annotated[str, Meta(max_length=64)] = ""


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """Greeting of a connected device, repeated until the proxy acknowledges it."""

    device: DeviceId
    root_version: Count = 0  # zeros: pinned keys; the proxy sends newer metadata
    trust_version: Count = 0
    answered: Answers = -1  # number of the newest answer; -1: not counted
    knows: Count = 0  # capability (`KNOWS_BUCKETS` …)


# Capabilities in hellos and rosters; each includes all lower ones.
KNOWS_BUCKETS = 1
KNOWS_RECORDS = 2  # in a roster of devices with buckets: the proxy serves pieces of records
KNOWS_CHECKS = 3  # the proxy checks masks, with factors that devices enforce


class Here(msgspec.Struct, frozen=True, array_like=True, tag="here"):
    """Request of the proxy for hellos within `spread_s`, or of the cloud for the roster."""

    spread_s: Seconds


class Later(msgspec.Struct, frozen=True, array_like=True, tag="later"):
    """Reply to a hello under load: repeat it after `delay_s`."""

    delay_s: Seconds


class EncryptedJobState(msgspec.Struct, frozen=True, array_like=True):
    """Encrypted state of a device's newest answer in a job."""

    job_id: JobId
    encrypted_state: EncryptedState


class Behind(msgspec.Struct, frozen=True, array_like=True, tag="behind"):
    """Reply to a hello that counts fewer answers than its identity has given, as from a copy."""

    hello: Digest
    answered: Answers  # number of the last answer in `jobs`
    # Answered since the hello's count.
    jobs: Annotated[tuple[EncryptedJobState, ...], Meta(max_length=64)]
    whole: bool  # otherwise the next hello brings more


class Cover(msgspec.Struct, frozen=True, array_like=True, tag="cover"):
    """Request by the proxy for answers of all devices in all rounds, dummies of the unselected."""

    # Answers are sent at uniformly random times in its second half.
    window_s: Annotated[float, Meta(gt=0, le=10 * 86400)]


class RoundKey(msgspec.Struct, frozen=True, array_like=True, tag="roundkey"):
    """HPKE key of the proxy for one round, to which devices seal the seeds of their masks."""

    at: RoundId
    key: Key
    memory: Annotated[bytes, Meta(max_length=16)] = b""  # changes if the proxy lost its memory


class Unmask(msgspec.Struct, frozen=True, array_like=True, tag="unmask"):
    """Request by the cloud for the mask sums of one, and only one, choice of uploads."""

    at: RoundId
    batch: Digest
    # One bit for each upload with masked groups, in batch order, lowest bit first.
    chosen: Annotated[bytes, Meta(min_length=1, max_length=1 << 17)]
    # Of correlated noise: the factors' key, and the request of the round whose noise is taken back.
    key: Annotated[bytes, Meta(max_length=32)] = b""
    before: Annotated[bytes, Meta(max_length=32)] = b""


class CheckMasks(msgspec.Struct, frozen=True, array_like=True, tag="checkmasks"):
    """Request by the cloud for the check of each mask of a durable batch."""

    at: RoundId
    batch: Digest
    key: Key  # of the factors to which the round's manifest commits


class Misfits(msgspec.Struct, frozen=True, array_like=True, tag="misfits"):
    """Uploads of a batch that no honest device sends, for the proxy's operator only."""

    at: RoundId
    batch: Digest
    places: Annotated[bytes, Meta(min_length=1, max_length=1 << 17)]  # as in `Unmask`


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag="arrived"):
    """Announcement that the masked front of an open round's batch can be fetched."""

    at: RoundId
    blob: Blob  # its digest is a random name; later announcements only lengthen it


class Want(msgspec.Struct, frozen=True, array_like=True, tag="want"):
    """Request by a device that has a round of this job but not the job itself."""

    job_id: JobId


class Decline(msgspec.Struct, frozen=True, array_like=True, tag="decline"):
    """Refusal by a selected device; depends on job, settings and ledger, never on records."""

    at: RoundId
    cause: Annotated[str, Meta(pattern=r"^[a-z]{0,16}\Z")] = ""  # of `DECLINE_CAUSES`


class Shortfall(msgspec.Struct, frozen=True, array_like=True, tag="shortfall"):
    """Notice that a round ended below the floor without hand-over; counts as in `Batch`."""

    at: RoundId
    uploads: Count
    declined: Count
    causes: Annotated[tuple[Count, ...], Meta(max_length=MOST_CAUSES)] = ()
    offline: Annotated[int, Meta(ge=-1, le=2**31)] = -1


class LinkState(msgspec.Struct, frozen=True, array_like=True, tag="linkstate"):
    """State of the proxy's link to the devices' broker; an outage costs no retry."""

    up: bool


class Close(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """End of a job; devices and proxy delete its data."""

    job_id: JobId
    status: Literal["completed", "failed", "cancelled"]


class Bye(msgspec.Struct, frozen=True, array_like=True, tag="bye"):
    """Orderly sign-off of a device."""

    device: DeviceId


class NewSealingKey(msgspec.Struct, frozen=True, array_like=True, tag="newsealingkey"):
    """Replacement of a device's sealing key, signed by its unchanged identity key."""

    device: DeviceId
    sealing: Key
    number: Annotated[int, Meta(ge=1, le=2**62)]  # grows, so an older key cannot be restored


RELEASES_NAMED = 64  # sequences in each list of a statement
SealedReport = Annotated[bytes, Meta(min_length=1, max_length=4096)]
Sequences = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=2**62)], ...], Meta(max_length=RELEASES_NAMED)
]


class ReleaseReport(msgspec.Struct, frozen=True, array_like=True, tag="releasereport"):
    """Sealed outcome of a release on one device, or a dummy of the same size."""

    at: RoundId
    sealed: SealedReport


class ReleaseReports(msgspec.Struct, frozen=True, array_like=True, tag="releasereports"):
    """Hand-over of reports by the proxy, in the uninformative order of their bytes."""

    at: RoundId
    sealed: Annotated[tuple[SealedReport, ...], Meta(min_length=1, max_length=4096)]


class ReleaseStatement(msgspec.Struct, frozen=True, array_like=True, tag="releasestatement"):
    """Newest statement of the cloud on its releases, signed with the key for releases."""

    number: Annotated[int, Meta(ge=0, le=2**62)]
    expires_s: Annotated[float, Meta(ge=0, le=2**40)]  # of those renewed, since 1970
    renewed: Sequences
    withdrawn: Sequences  # a device that uses one reverts to its previous release


MOST_URL_CHARACTERS = 4096


class BlobAt(msgspec.Struct, frozen=True, array_like=True, tag="blobat"):
    """URL for fetching a blob out of band by GET or, with `put`, for storing it by PUT."""

    blob: Digest
    url: Annotated[str, Meta(min_length=8, max_length=MOST_URL_CHARACTERS)]  # random capability
    put: bool
    expires_s: Seconds


class BlobPut(msgspec.Struct, frozen=True, array_like=True, tag="blobput"):
    """Notice that the blob is stored at the URL that the receiver assigned."""

    blob: Digest


DeviceBody = NewSealingKey | Hello | Want | Decline | Bye | ReleaseReport
ProxyBody = Later | Behind | Cover | RoundKey | Arrived | Shortfall | ReleaseReports | LinkState
CloudBody = Unmask | CheckMasks | Misfits | Close | ReleaseStatement
Body = DeviceBody | ProxyBody | CloudBody | Ack | Here | BlobAt | BlobPut

VERSION = 1
PART_START = bytes((VERSION, 0x95, 0xA4)) + b"part"  # prefix of a `BlobPart` frame: array of 5

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_headers: msgspec.msgpack.Decoder[Header] = msgspec.msgpack.Decoder(Header)
_bodies: msgspec.msgpack.Decoder[Body] = msgspec.msgpack.Decoder(Body)

T = TypeVar("T")


def encode(message: Message) -> bytes:
    return bytes((VERSION,)) + _encoder.encode(message)


def decode(frame: bytes, limit_bytes: int) -> Message:
    """Decode a frame; raises ProtocolError `oversized`, `unknown_version` or `malformed`."""
    if len(frame) > limit_bytes:
        raise ProtocolError("oversized", f"{len(frame)} bytes where {limit_bytes} are allowed")
    if not frame or frame[0] != VERSION:
        raise ProtocolError("unknown_version")
    return _parse(_messages, memoryview(frame)[1:])


def encode_inner(value: Header | Body) -> bytes:
    """Return the bytes of a header or body that are signed."""
    return _encoder.encode(value)


def decode_header(envelope: Envelope) -> Header:
    """Decode the header without verifying it. Raises ProtocolError `malformed`."""
    return _parse(_headers, envelope.payload)


def decode_body(envelope: Envelope) -> Body:
    """Decode the body without verifying it. Raises ProtocolError `malformed`."""
    return _parse(_bodies, envelope.payload)


def _parse(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError):
        # The decoder's error text may quote the input.
        raise ProtocolError("malformed") from None


class Signer:
    """Name of a party and its signing key, which may be replaced."""

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
    """Return the bytes of a job announcement that the key for releases signs."""
    return job.at.job_id + job.at.numbers + job.job_digest + job.sequence.to_bytes(8, "big")


def check_signature(envelope: Envelope, signer: str, key: VerifyKey | None, label: bytes) -> None:
    """Raise ProtocolError `unknown_signer` or `forged` unless `signer` signed under `label`."""
    if key is None or envelope.signer != signer:
        raise ProtocolError("unknown_signer")
    if not verify(key, label, envelope.payload, envelope.signature):
        raise ProtocolError("forged")


def verified_header(envelope: Envelope, signer: str, key: VerifyKey | None) -> Header:
    """Verify and decode a header. Raises as `check_signature`, then `malformed`."""
    check_signature(envelope, signer, key, HEADER)
    return decode_header(envelope)


def verified_body(envelope: Envelope, signer: str, key: VerifyKey | None) -> Body:
    """Verify and decode a body. Raises as `check_signature`, then `malformed`."""
    check_signature(envelope, signer, key, BODY)
    return decode_body(envelope)


@dataclass(frozen=True)
class PeerKeys:
    """Verification keys of a party's peers; None for a role that nobody holds."""

    cloud: VerifyKey | None = None
    proxy: VerifyKey | None = None
    releases: VerifyKey | None = None
    epoch: int = 0  # grows when a key of the cloud is replaced: its numbers restart
    lineage: str = ""  # of the accepted registry; empty: the first seen
    versions: tuple[int, int] = (0, 0)  # of root and delegations; zeros: pinned keys

    @classmethod
    def pinned(cls, *, cloud: VerifyKey | None = None, proxy: VerifyKey | None = None) -> PeerKeys:
        return cls(cloud, proxy, cloud)

    def cloud_header(self, envelope: Envelope) -> Header:
        """Verify a header of the cloud; only releases are signed with the key for releases."""
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
        key, signed = self.releases, proof_of_releases(job)
        return key is not None and verify(key, RELEASE_AHEAD, signed, job.release_proof)

    def cloud_body(self, envelope: Envelope) -> Body:
        """Verify a body of the cloud; only statements are signed with the key for releases."""
        is_statement = isinstance(decode_body(envelope), ReleaseStatement)
        return verified_body(envelope, "cloud", self.releases if is_statement else self.cloud)


HEALTH = Group("release_health", 64)
REPORT_BYTES = HEALTH.padded_bytes + SEAL_OVERHEAD_BYTES


class ReleaseOutcome(Enum):
    """Outcome of a release on one device.

    Depends on the release, the owner's policy and a trial on synthetic records, so it costs no ε;
    any new outcome must preserve this."""

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
        """Return the outcome in an opened report, or None if malformed."""
        text = padded.rstrip(b"\0")
        return next((one for one in cls if one.to_bytes() == text), None)


def wants_reports(header: Manifest) -> bool:
    """Return whether the cloud requests reports on this release."""
    return header.kind == "release" and header.groups == (HEALTH,)
