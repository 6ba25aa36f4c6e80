"""Blobs: cut into parts, sent and asked for over messages, collected and checked as a whole.

Every role does both. The sender offers a blob and answers requests for parts; the receiver takes
parts in any order, asks for those that are missing with bounded credit, and believes nothing but
the digest of the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from msgspec import structs

from edgeveil.errors import ProtocolError
from edgeveil.protocol.effects import Address, Effect, Send
from edgeveil.protocol.messages import (
    Blob,
    BlobPart,
    Commit,
    Envelope,
    Header,
    Manifest,
    Need,
    Offer,
)

try:  # zlib's CRC-32, ten times as fast where a processor multiplies without carry
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32

NEED_LIMIT = 16  # parts one request may ask for: the receiver's credit
SMALLEST_PART_BYTES = 256  # a held part costs about that much beside its bytes

H = TypeVar("H", bound=Header)


class Data(Protocol):
    """A blob's bytes, in memory (`bytes`) or on a disk: only what is sliced is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class Piece:
    """So many bytes of a blob's, from `start` on; read as they are asked for."""

    def __init__(self, data: Data, start: int, size_bytes: int) -> None:
        self._data, self._start, self._size_bytes = data, start, size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        begin, end, _ = part.indices(self._size_bytes)
        return self._data[self._start + begin : self._start + max(begin, end)]


def describe(data: bytes | memoryview, part_bytes: int) -> Blob:
    """The blob's digest and measures."""
    return Blob(hashlib.sha256(data).digest(), len(data), part_bytes)


def part(blob: Blob, data: Data, index: int) -> BlobPart:
    """Part `index`; raises ProtocolError `bad_index`."""
    if index >= blob.parts:
        raise ProtocolError("bad_index")
    piece = data[index * blob.part_bytes : (index + 1) * blob.part_bytes]
    return BlobPart(blob.digest, index, crc32(piece), piece)


def parts(blob: Blob, data: Data) -> Iterator[BlobPart]:
    """All parts in order."""
    return (part(blob, data, index) for index in range(blob.parts))


class Assembly:
    """Collects one blob's parts, in any order, each at most once.

    Memory grows with what arrives, never with what a header claims; a claim above
    `limit_bytes` is refused with ProtocolError `oversized_blob`, one cut into crumbs with
    `tiny_parts`. With `keep=False` parts are checked and marked alone: whoever calls `add` puts
    their bytes where they belong, and there is no `finish`. With `only` some parts are all that is
    wanted; the blob's digest says nothing about them.
    """

    def __init__(
        self,
        blob: Blob,
        limit_bytes: int,
        *,
        keep: bool = True,
        only: frozenset[int] | None = None,
    ) -> None:
        check_claim(blob, limit_bytes)
        self.blob, self._keep, self._only = blob, keep, only
        self._pieces: dict[int, bytes] = {}
        self._whole: bytes | None = None
        self._lowest_missing = 0

    def __contains__(self, index: int) -> bool:
        """Whether part `index` has come."""
        return self._whole is not None or index in self._pieces

    def add(self, message: BlobPart) -> bool:
        """Take a part; True when the blob is complete. Raises `bad_part` and changes nothing."""
        check_part(self.blob, message)
        if self._only is not None and message.index not in self._only:
            return self.complete
        self._pieces.setdefault(message.index, message.data if self._keep else b"")
        return self.complete

    @property
    def complete(self) -> bool:
        """Every part is there."""
        wanted = self.blob.parts if self._only is None else len(self._only)
        return self._whole is not None or len(self._pieces) == wanted

    def fill(self, data: bytes) -> None:
        """All of it has come in another way, and was checked; nothing of it where it went to a
        file."""
        self._pieces.clear()
        self._whole = data

    @property
    def held_bytes(self) -> int:
        """Memory taken by the parts so far."""
        held = len(self._pieces) * self.blob.part_bytes
        return min(held, self.blob.size_bytes) if self._keep else 0

    def grow(self, blob: Blob) -> None:
        """The same blob, which has become longer: all that came was whole parts.

        Raises ProtocolError `bad_growth`.
        """
        before = self.blob
        whole = before.size_bytes % before.part_bytes == 0
        if blob.part_bytes != before.part_bytes or blob.size_bytes < before.size_bytes or not whole:
            raise ProtocolError("bad_growth")
        self.blob = blob

    def missing(self, count: int = NEED_LIMIT, start: int = 0) -> Need:
        """A request for the first `count` missing parts from `start` on."""
        while self._lowest_missing in self._pieces:
            self._lowest_missing += 1
        wanted: list[int] = []
        begin = max(start, self._lowest_missing)
        every = range(begin, self.blob.parts)
        for index in every if self._only is None else sorted(self._only):
            if len(wanted) == count:
                break
            if index >= begin and index not in self._pieces:
                wanted.append(index)
        return Need(self.blob.digest, tuple(wanted))

    def forget(self) -> None:
        """Nothing has come: what did was not the blob."""
        self._pieces.clear()
        self._whole = None
        self._lowest_missing = 0

    def finish(self) -> bytes:
        """The whole blob; raises `bad_digest` (and forgets the parts) if it is not the one.

        Of some parts alone: these, in their order.
        """
        if self._only is not None:
            return b"".join(self._pieces[index] for index in sorted(self._only))
        if self._whole is not None:
            return self._whole
        data = b"".join(self._pieces[index] for index in range(self.blob.parts))
        if hashlib.sha256(data).digest() != self.blob.digest:
            self.forget()
            raise ProtocolError("bad_digest")
        return data


def check_claim(blob: Blob, limit_bytes: int) -> None:
    """Raise ProtocolError `oversized_blob` or `tiny_parts` before anything is taken."""
    if blob.size_bytes > limit_bytes:
        raise ProtocolError("oversized_blob")
    if blob.parts > 1 and blob.part_bytes < SMALLEST_PART_BYTES:
        raise ProtocolError("tiny_parts")


def check_part(blob: Blob, message: BlobPart) -> None:
    """Raise ProtocolError `bad_part` unless place, size and checksum fit."""
    index = message.index
    if index >= blob.parts:
        raise ProtocolError("bad_part")
    expected = min(blob.part_bytes, blob.size_bytes - index * blob.part_bytes)
    if len(message.data) != expected or crc32(message.data) != message.crc:
        raise ProtocolError("bad_part")


def whole(blob: Blob, data: bytes) -> bytes:
    """`data` if it is the blob; raises ProtocolError `bad_digest`."""
    if len(data) != blob.size_bytes or hashlib.sha256(data).digest() != blob.digest:
        raise ProtocolError("bad_digest")
    return data


# --- over messages ---------------------------------------------------------------------------

FRAME_OVERHEAD_BYTES = 512  # version, tags, digests and lengths around a part or an offer's data


def part_bytes(packet_bytes: int) -> int:
    """The largest part whose frame fits a packet."""
    return packet_bytes - FRAME_OVERHEAD_BYTES


def check_parts_fit(blob: Blob, packet_bytes: int) -> None:
    """Raise ProtocolError `large_parts` for parts that no packet can carry."""
    if min(blob.part_bytes, blob.size_bytes) > part_bytes(packet_bytes):
        raise ProtocolError("large_parts")


def fits_offer(signed: Envelope, data: Data, packet_bytes: int) -> bool:
    """Whether an offer can carry the whole blob in one packet."""
    return len(signed.payload) + len(data) + FRAME_OVERHEAD_BYTES <= packet_bytes


def sends(
    to: Address,
    signed: Envelope,
    blob: Blob,
    data: Data,
    packet_bytes: int,
    *,
    push: bool = True,
    beside: bool = False,
) -> list[Effect]:
    """An offer with the blob inline if it fits one packet, else the offer and (if `push`) parts.

    One that can go `beside` the broker is only offered.
    """
    if fits_offer(signed, data, packet_bytes):
        return [Send(to, Offer(signed, data[:]))]
    if beside:
        return [Send(to, Offer(signed, beside=True))]
    pieces = parts(blob, data) if push else ()
    return [Send(to, Offer(signed)), *(Send(to, piece) for piece in pieces)]


def answer_need(to: Address, need: Need, blob: Blob, data: Data) -> list[Effect]:
    """The parts asked for, each once and no more than the credit.

    Raises ProtocolError `bad_index` for one that does not exist.
    """
    return [Send(to, part(blob, data, index)) for index in sorted(set(need.indices))[:NEED_LIMIT]]


class Fetch(Generic[H]):
    """One blob under way towards us, and when to ask for what is missing.

    Parts are pushed where the blob is small. Where no part came since the last look, the
    missing ones are asked for, at most `NEED_LIMIT` at a time and `credit` in all; the next request
    follows as soon as half a limit is free again, so that the sender never waits for us. With
    `keep=False` the bytes are the caller's to put away. `blob` is the header's unless it is a piece
    of it; while it is `idle` it takes what comes and asks for nothing. With `beside` its first
    requests say that it may come beside the broker; while it is `on_its_way` there, nothing is
    asked for.
    """

    def __init__(
        self,
        offer: Offer,
        header: H,
        limit_bytes: int,
        *,
        keep: bool = True,
        credit: int = NEED_LIMIT,
        blob: Blob | None = None,
        idle: bool = False,
        only: frozenset[int] | None = None,
        beside: bool = False,
    ) -> None:
        self._credit = credit
        self.beside, self.on_its_way, self.failures = beside, False, 0
        self.offer, self.header = offer, header
        self.blob, self.idle = blob or header.blob, idle
        self.before = b""  # the piece ahead of this one
        self.assembly = Assembly(self.blob, limit_bytes, keep=keep, only=only)
        self._asked: set[int] = set()  # and not come yet
        self._next = 0  # below it, everything was asked for since the last silence
        self._pulling, self._heard = beside, False
        self.idle_looks = 0

    def add(self, message: BlobPart) -> bool:
        """Take a part; True when the blob is complete."""
        done = self.assembly.add(message)
        self._heard, self.idle_looks = True, 0
        self.beside = False  # it comes over the broker
        self._asked.discard(message.index)
        return done

    def grow(self, offer: Offer, header: H) -> None:
        """The blob is longer than was said before. Raises ProtocolError `bad_growth`."""
        self.assembly.grow(header.blob)
        self.offer, self.header, self._pulling = offer, header, True
        self.blob = header.blob

    def wake(self, before: bytes) -> Need | None:
        """It is of use, behind `before`: what to ask for."""
        self.before, self.idle, self._pulling = before, False, True
        return None if self.assembly.complete else self._fresh()

    def next_need(self, *, timer: bool) -> Need | None:
        """What to ask for now: with half of the credit free, or when a timer saw nothing new."""
        if self.assembly.complete or self.idle or self.on_its_way:
            return None
        if timer:
            if self._heard:
                self._heard = False
                return None
            self.idle_looks += 1
            self._pulling = True
            self._asked.clear()
            self._next = 0
        elif not self._pulling or len(self._asked) > self._credit - NEED_LIMIT // 2:
            return None
        need = self._fresh()
        if not need.indices and not self._asked:  # all were asked for, some came to nothing
            self._next = 0
            need = self._fresh()
        return need if need.indices else None

    def _fresh(self) -> Need:
        room = min(NEED_LIMIT, self._credit - len(self._asked))
        need = self.assembly.missing(room, self._next)
        if need.indices:
            self._asked.update(need.indices)
            self._next = need.indices[-1] + 1
        return structs.replace(need, beside=True) if self.beside else need


def check_fetchable(offer: Offer, blob: Blob, limit_bytes: int) -> None:
    """Raise `oversized_blob`, `tiny_parts` or `bad_digest` before anything is changed."""
    check_claim(blob, limit_bytes)
    if offer.data:
        whole(blob, offer.data)


def pieces_of(header: Header) -> tuple[Blob, ...]:
    """A manifest's stanzas and its stream, or a record's pieces, where they may be had apart."""
    return header.pieces if isinstance(header, Manifest | Commit) else ()


def check_pieces(manifest: Manifest, limit_bytes: int) -> None:
    """Raise ProtocolError `malformed`, `oversized_blob` or `tiny_parts` for such as are none."""
    stanza_bytes, size_bytes = manifest.stanza_bytes, manifest.blob.size_bytes
    if stanza_bytes > size_bytes:
        raise ProtocolError("malformed")
    sizes = tuple(piece.size_bytes for piece in manifest.pieces)
    if sizes and sizes != (stanza_bytes, size_bytes - stanza_bytes):
        raise ProtocolError("malformed")
    for piece in manifest.pieces:
        check_claim(piece, limit_bytes)
    if manifest.buckets > 1 and (not sizes or manifest.pieces[0].parts != manifest.buckets):
        raise ProtocolError("malformed")


def first_data(offer: Offer, blob: Blob) -> Iterable[BlobPart]:
    """The inline blob of an offer as parts, so that one path serves both.

    An empty blob is always inside its offer.
    """
    if not offer.data and blob.size_bytes:
        return ()
    if len(offer.data) != blob.size_bytes:
        raise ProtocolError("bad_part")
    return parts(blob, offer.data)


class Backoff:
    """One party's waits. Machines have no randomness, so its name and a count spread them."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name.encode(), 0

    def wait_s(self, first_s: float, tries: int, cap_s: float) -> float:
        """`first_s`, doubled for each of `tries`, at most `cap_s`; of that a share in (½, 1]."""
        self._count += 1
        digest = hashlib.sha256(self._name + self._count.to_bytes(8, "big")).digest()
        chance = int.from_bytes(digest[:4], "big") / 2**32
        return min(first_s * 2.0 ** min(tries, 16), cap_s) * (1 - chance / 2)
