"""Sealed payloads: packages to selected devices, segments to the cloud, seeds to the proxy.

A broadcast is one content key, sealed to each selected key, and the package encrypted with it. All
public facts about it are bound into the context of the stanzas, the ciphertext and the commitment,
so no part of one broadcast can be used in another. A segment is bound to its round, its group, and
a tag that only devices that opened the broadcast can compute."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from edgeveil.crypto.buckets import bucket_level, bucket_of, seal_buckets
from edgeveil.crypto.chunked import TAG_BYTES, commit, commits_to, open_chunked, seal_chunked
from edgeveil.crypto.keys import CheckKey, ContentKey, MaskSeed, OpeningKey, SealingKey
from edgeveil.crypto.labels import (
    CONTENT_KEY,
    CORRELATED_SEED,
    MASK_SEED,
    MEMBERSHIP,
    MODEL_STREAM,
    SEGMENT,
    SEGMENT_MARK,
    context,
)
from edgeveil.crypto.ring import NOISE_BITS, Ring
from edgeveil.crypto.sealing import (
    SEAL_OVERHEAD_BYTES,
    open_sealed,
    open_stanzas,
    seal,
    seal_stanzas,
)
from edgeveil.errors import CryptoError, ProtocolError
from edgeveil.protocol.messages import CorrelatedNoise, Group, Manifest, MaskedGroup, RoundId
from edgeveil.protocol.transfer import describe


class JobPackage(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    """Job (canonical JSON), ONNX graph and frozen backbones, sent once to every device."""

    job: bytes
    graph: bytes
    backbones: tuple[bytes, ...] = ()  # extractors (ONNX) and weights, named in the job by digest


class RoundPackage(msgspec.Struct, frozen=True, array_like=True, tag="round"):
    """Weights for inference (if requested) and the method's tensors of one round."""

    phase: str
    number: int
    infer: bool
    tensors: bytes
    model: bytes


class ReleasePackage(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """Final model, ready to use."""

    job_name: str
    onnx: bytes
    data_set: str = ""  # the job's `data.source`; empty: by an earlier version
    expires_s: float = 0.0  # since 1970, unless a statement renews it; 0: never


Package = JobPackage | RoundPackage | ReleasePackage
Plaintext = bytes | bytearray | memoryview
_ROOM_BYTES = 1024  # for small fields and their headers

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Package] = msgspec.msgpack.Decoder(Package)


def encode_package(package: Package) -> bytearray:
    return encode_at_once(_encoder, package)


def encode_at_once(encoder: msgspec.msgpack.Encoder, message: msgspec.Struct) -> bytearray:
    """Encode into a preallocated buffer; a growing one needs half as much memory again."""
    buffer = bytearray(_large_bytes(message) + _ROOM_BYTES)
    encoder.encode_into(message, buffer)
    return buffer


def _large_bytes(value: object) -> int:
    match value:
        case bytes() | bytearray() | memoryview():
            return len(value)
        case msgspec.Struct():
            return sum(map(_large_bytes, msgspec.structs.astuple(value)))
        case dict():
            return sum(map(_large_bytes, value.values()))
        case tuple() | list():
            return sum(map(_large_bytes, value))
    return 0


def decode_package(plaintext: bytes) -> Package:
    """Decode a package. Raises ProtocolError `malformed_package`."""
    try:
        return _decoder.decode(plaintext)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError):
        raise ProtocolError("malformed_package") from None


NO_KEY = bytes(32)


@dataclass(frozen=True)
class Terms:
    """Fields of a manifest that sealing does not compute."""

    kind: Literal["job", "round", "release"]
    at: RoundId
    sequence: int
    job_digest: bytes
    phase: str
    min_batch: int = 0
    quorum: int = 0
    deadline_s: float = 0.0
    grace_s: float = 0.0
    groups: tuple[Group, ...] = ()
    cloud_key: bytes = NO_KEY
    shuffled: bool = True
    masked: tuple[MaskedGroup, ...] = ()
    sets: int = 1
    data_set: bytes = b""
    broadcast_bytes: int = 0
    upload_bytes: int = 0
    correlated: CorrelatedNoise | None = None

    def manifest(
        self,
        package: Plaintext,
        data: bytes,
        *,
        selected: int,
        stanza_bytes: int,
        commitment: bytes,
        part_bytes: int,
    ) -> Manifest:
        return Manifest(
            **vars(self),
            selected=selected,
            stanza_bytes=stanza_bytes,
            package_digest=hashlib.sha256(package).digest(),
            package_bytes=len(package),
            commitment=commitment,
            blob=describe(data, part_bytes),
        )


class Sealing(Protocol):
    """Interface for sealing packages and segments: this module, or a simulation's stub."""

    def seal_broadcast(
        self,
        terms: Terms,
        package: Plaintext,
        recipients: Sequence[SealingKey],
        part_bytes: int,
        *,
        bucketed: bool = False,
    ) -> tuple[Manifest, bytes, bytes]: ...

    def open_broadcast(
        self, key: OpeningKey, manifest: Manifest, data: bytes
    ) -> tuple[bytes, bytes] | None: ...

    def is_listed(self, key: OpeningKey, manifest: Manifest, stanzas: bytes) -> bool: ...

    def seal_segment(
        self, manifest: Manifest, group: Group, membership: bytes, tensor: Plaintext
    ) -> bytes: ...

    def open_segment(
        self,
        key: OpeningKey,
        at: RoundId,
        job_digest: bytes,
        group: Group,
        membership: bytes,
        sealed: bytes,
    ) -> bytes | None: ...


def _context(label: bytes, terms: Terms | Manifest, package_digest: bytes) -> bytes:
    at = terms.at
    sequence = terms.sequence.to_bytes(8, "big")
    parts = (terms.kind.encode(), at.job_id, at.numbers, sequence, terms.job_digest)
    return context(label, *parts, terms.phase.encode(), terms.cloud_key, package_digest)


def seal_broadcast(
    terms: Terms,
    package: Plaintext,
    recipients: Sequence[SealingKey],
    part_bytes: int,
    *,
    bucketed: bool = False,
) -> tuple[Manifest, bytes, bytes]:
    """Return the unsigned manifest, the blob, and the recipients' membership tag."""
    content_key = ContentKey.generate()
    digest = hashlib.sha256(package).digest()
    info = _context(CONTENT_KEY, terms, digest)
    level = bucket_level(recipients) if bucketed else 1
    if level > 1:
        stanzas = seal_buckets(content_key, recipients, info, level)
    else:
        stanzas = seal_stanzas(content_key, recipients, info)
    chunk_context = _context(MODEL_STREAM, terms, digest)
    data = seal_chunked(content_key, chunk_context, package, front=stanzas)
    manifest = terms.manifest(
        package,
        data,
        selected=len(recipients),
        stanza_bytes=len(stanzas),
        commitment=commit(content_key, info),
        part_bytes=part_bytes,
    )
    if level > 1:
        manifest = in_pieces(msgspec.structs.replace(manifest, buckets=level), data)
    return manifest, data, _membership(content_key, manifest)


def open_broadcast(key: OpeningKey, manifest: Manifest, data: bytes) -> tuple[bytes, bytes] | None:
    """Return (package, membership tag), or None if this key is not a recipient.

    `data` has all stanza buckets or only this device's. Raises ProtocolError `wrong_commitment`,
    `broken_stream` or `wrong_package`."""
    info, view = _context(CONTENT_KEY, manifest, manifest.package_digest), memoryview(data)
    front = front_bytes(manifest, len(view))
    content_key = _content_key(key, info, manifest, view[:front])
    if content_key is None:
        return None
    if not commits_to(manifest.commitment, content_key, info):
        raise ProtocolError("wrong_commitment")
    chunk_context = _context(MODEL_STREAM, manifest, manifest.package_digest)
    try:
        package = open_chunked(content_key, chunk_context, view[front:])
    except CryptoError:
        raise ProtocolError("broken_stream") from None
    same = hashlib.sha256(package).digest() == manifest.package_digest
    if not same or len(package) != manifest.package_bytes:
        raise ProtocolError("wrong_package")
    return package, _membership(content_key, manifest)


def is_listed(key: OpeningKey, manifest: Manifest, stanzas: bytes) -> bool:
    """Return whether one of `stanzas`, all or those of some buckets, is for this key."""
    info = _context(CONTENT_KEY, manifest, manifest.package_digest)
    return _content_key(key, info, manifest, memoryview(stanzas)) is not None


def front_bytes(manifest: Manifest, size_bytes: int) -> int:
    """Return the size of the stanzas in `size_bytes` of a broadcast."""
    if manifest.buckets == 1:
        return manifest.stanza_bytes
    return max(0, size_bytes - manifest.blob.size_bytes + manifest.stanza_bytes)


def _content_key(
    key: OpeningKey, info: bytes, manifest: Manifest, stanzas: memoryview
) -> ContentKey | None:
    """Search the key's own bucket of stanzas, or all that are present."""
    size, starts = manifest.stanza_bytes // manifest.buckets, [0]
    if manifest.buckets > 1 and len(stanzas) == manifest.stanza_bytes:
        starts = [size * bucket_of(key.public(), manifest.buckets)]
    elif manifest.buckets > 1:
        starts = list(range(0, len(stanzas), max(1, size)))
    areas = (stanzas[at : at + size] if manifest.buckets > 1 else stanzas for at in starts)
    found = (open_stanzas(key, info, area) for area in areas)
    return next((one for one in found if one is not None), None)


def in_pieces(manifest: Manifest, data: bytes) -> Manifest:
    """Return the manifest with stanzas and ciphertext as separate pieces."""
    at, part_bytes = manifest.stanza_bytes, manifest.blob.part_bytes
    front_part = part_bytes if manifest.buckets == 1 else at // manifest.buckets
    view = memoryview(data)
    pieces = describe(view[:at], front_part), describe(view[at:], part_bytes)
    return msgspec.structs.replace(manifest, pieces=pieces)


def _membership(content_key: ContentKey, manifest: Manifest) -> bytes:
    """Return the tag that admits segments; it requires the content key."""
    bound = _context(MEMBERSHIP, manifest, manifest.package_digest)
    return hashlib.sha256(MEMBERSHIP + content_key.to_bytes() + bound).digest()


def filled(tensor: Plaintext, size_bytes: int) -> Plaintext:
    """Return the tensor padded with zeros, copied only if it is shorter."""
    if len(tensor) == size_bytes:
        return tensor
    result = bytearray(size_bytes)
    result[: len(tensor)] = tensor
    return result


def _segment_info(at: RoundId, job_digest: bytes, group: Group, membership: bytes) -> bytes:
    return context(SEGMENT, at.job_id, at.numbers, job_digest, group.name.encode(), membership)


def seal_segment(manifest: Manifest, group: Group, membership: bytes, tensor: Plaintext) -> bytes:
    """Seal one padded segment to the round's cloud key. Raises ProtocolError `wrong_size`."""
    if len(tensor) > group.padded_bytes:
        raise ProtocolError("wrong_size")
    info = _segment_info(manifest.at, manifest.job_digest, group, membership)
    return seal(SealingKey(manifest.cloud_key), info, filled(tensor, group.padded_bytes))


def open_segment(
    key: OpeningKey, at: RoundId, job_digest: bytes, group: Group, membership: bytes, sealed: bytes
) -> bytes | None:
    """Return the padded tensor, or None if it is not from a selected device of this round."""
    opened = open_sealed(key, _segment_info(at, job_digest, group, membership), sealed)
    return opened if opened is not None and len(opened) == group.padded_bytes else None


def segment_mark(membership: bytes, sealed: bytes) -> bytes:
    """Return SHA-256(label ‖ membership ‖ ends of the ciphertext), which marks an accepted segment.

    The ends (48 and 16 bytes) are the ephemeral key and the tag. Membership is included because the
    proxy has seen all ciphertexts and must not learn which were counted."""
    ends = sealed[:SEAL_OVERHEAD_BYTES] + sealed[-TAG_BYTES:]
    return hashlib.sha256(SEGMENT_MARK + membership + ends).digest()


@dataclass(frozen=True)
class MaskedVector:
    at: RoundId
    group: int
    name: str
    ring: Ring

    @property
    def use(self) -> bytes:
        """Context of its masks: job, round, attempt and group."""
        return self.at.job_id + self.at.numbers + self.name.encode()


def masked_vectors(
    at: RoundId, groups: Sequence[Group], masked: Sequence[MaskedGroup]
) -> tuple[MaskedVector, ...]:
    """Return the masked groups of a manifest. Raises ProtocolError `malformed_masks`."""
    indices = [one.group for one in masked]
    if indices != sorted(set(indices)) or (indices and indices[-1] >= len(groups)):
        raise ProtocolError("malformed_masks")
    found = []
    for one in masked:
        ring, group = Ring(one.count, one.bits), groups[one.group]
        if ring.byte_count > group.padded_bytes:
            raise ProtocolError("malformed_masks")
        found.append(MaskedVector(at, one.group, group.name, ring))
    return tuple(found)


def noise_vector(manifest: Manifest) -> MaskedVector:
    """Return the correlated noise's masked group. Raises ProtocolError `malformed_noise`."""
    *updates, noise = masked_vectors(manifest.at, manifest.groups, manifest.masked) or [None]
    bits = {one.ring.bits + NOISE_BITS for one in updates if one is not None}
    count = sum(one.ring.count for one in updates if one is not None)
    fits = noise is not None and bits == {noise.ring.bits} and count == noise.ring.count
    if noise is None or not fits or manifest.sets != 1 or not manifest.check:
        raise ProtocolError("malformed_noise")
    return noise


def _seed_info(manifest: Manifest, device: str) -> bytes:
    at, noise = manifest.at, manifest.correlated
    parts = [at.job_id, at.numbers, manifest.job_digest, device.encode()]
    parts += [manifest.check] if manifest.check else []
    if noise is None:
        return context(MASK_SEED, *parts)
    # A proxy that would unmask the noise, not knowing it or having another manifest than the
    # device, cannot open these seeds.
    facts = manifest.min_batch, manifest.groups, manifest.masked, manifest.sets, noise
    return context(CORRELATED_SEED, *parts, msgspec.msgpack.encode(facts))


def seal_seed(seed: MaskSeed, manifest: Manifest, device: str, round_key: bytes) -> bytes:
    """Seal the seed to the proxy's key of the round. Raises CryptoError for a bad key."""
    return seal(SealingKey(round_key), _seed_info(manifest, device), seed.to_bytes())


def open_seed(key: OpeningKey, manifest: Manifest, device: str, sealed: bytes) -> MaskSeed:
    """Return the seed of this device for this round. Raises ProtocolError `bad_seed`."""
    raw = open_sealed(key, _seed_info(manifest, device), sealed)
    try:
        return MaskSeed(raw or b"")
    except CryptoError:
        raise ProtocolError("bad_seed") from None


@dataclass(frozen=True)
class RoundCheck:
    """Key of a round's checks; `disclosed`: for each upload, else only for the sum."""

    key: CheckKey
    disclosed: bool

    @classmethod
    def of(cls, at: RoundId, membership: bytes, *, disclosed: bool) -> RoundCheck:
        if not disclosed:
            return cls(CheckKey(membership), disclosed)
        return cls(CheckKey.disclosable(membership, _names(at)), disclosed)

    @classmethod
    def of_manifest(cls, manifest: Manifest, membership: bytes) -> RoundCheck:
        return cls.of(manifest.at, membership, disclosed=bool(manifest.check))

    def bits(self, ring: Ring) -> int:
        return ring.bits if self.disclosed else 64


def committed(manifest: Manifest, membership: bytes) -> Manifest:
    """Return the manifest with its commitment to the factors for checking masks."""
    key = RoundCheck.of(manifest.at, membership, disclosed=True).key
    return msgspec.structs.replace(manifest, check=key.commitment(_names(manifest.at)))


def check_factors(manifest: Manifest, key: CheckKey) -> None:
    """Raise ProtocolError `wrong_factors` unless the manifest commits to this key.

    With factors other than the device's own, the check of its mask would reveal a linear form of
    its numbers to the cloud."""
    if not manifest.check or key.commitment(_names(manifest.at)) != manifest.check:
        raise ProtocolError("wrong_factors")


def _names(at: RoundId) -> bytes:
    return at.job_id + at.numbers


def choice(chosen: Collection[int], uploads: int) -> bytes:
    """Return the indices `chosen` of so many uploads as a bit field (`Unmask`)."""
    bits = bytearray(-(-uploads // 8))
    for index in chosen:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


def dealt(chosen: Collection[int], sets: int) -> list[list[int]]:
    """Return the chosen uploads of each set, by index: omitting one moves no other."""
    return [[index for index in chosen if index % sets == number] for number in range(sets)]


def chosen_of(bits: bytes, uploads: int) -> list[int]:
    """Return the indices of a bit field. Raises ProtocolError `malformed_choice`."""
    if len(bits) != -(-uploads // 8) or int.from_bytes(bits, "little") >> uploads:
        raise ProtocolError("malformed_choice")
    return [index for index in range(uploads) if bits[index >> 3] >> (index & 7) & 1]
