"""Blobs in parts: cut, collect, ask for what is missing, check the whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

from edgeveil.checksum import crc32
from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import Blob, Need, Part

NEED_LIMIT = 16  # parts one request may ask for: the receiver's credit
SMALLEST_PART_BYTES = 256  # a held part costs about that much beside its bytes


class Data(Protocol):
    """A blob's bytes, in memory (`bytes`) or on a disk: only what is sliced is read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


def describe(data: bytes, part_bytes: int) -> Blob:
    """The blob's digest and measures."""
    return Blob(hashlib.sha256(data).digest(), len(data), part_bytes)


def part(blob: Blob, data: Data, index: int) -> Part:
    """Part `index`; raises ProtocolError `bad_index`."""
    if index >= blob.parts:
        raise ProtocolError("bad_index")
    piece = data[index * blob.part_bytes : (index + 1) * blob.part_bytes]
    return Part(blob.digest, index, crc32(piece), piece)


def parts(blob: Blob, data: Data) -> Iterator[Part]:
    """All parts in order."""
    return (part(blob, data, index) for index in range(blob.parts))


class Assembly:
    """Collects one blob's parts, in any order, each at most once.

    Memory grows with what arrives, never with what a header claims; a claim above
    `limit_bytes` is refused with ProtocolError `oversized_blob`, one cut into crumbs with
    `tiny_parts`. With `keep=False` parts are checked and marked alone: whoever calls `add` puts
    their bytes where they belong, and there is no `finish`.
    """

    def __init__(self, blob: Blob, limit_bytes: int, *, keep: bool = True) -> None:
        check_claim(blob, limit_bytes)
        self.blob, self._keep = blob, keep
        self._pieces: dict[int, bytes] = {}
        self._lowest_missing = 0

    def __contains__(self, index: int) -> bool:
        """Whether part `index` has come."""
        return index in self._pieces

    def add(self, message: Part) -> bool:
        """Take a part; True when the blob is complete. Raises `bad_part` and changes nothing."""
        check_part(self.blob, message)
        self._pieces.setdefault(message.index, message.data if self._keep else b"")
        return self.complete

    @property
    def complete(self) -> bool:
        """Every part is there."""
        return len(self._pieces) == self.blob.parts

    @property
    def held_bytes(self) -> int:
        """Memory taken by the parts so far."""
        held = len(self._pieces) * self.blob.part_bytes
        return min(held, self.blob.size_bytes) if self._keep else 0

    def missing(self, count: int = NEED_LIMIT, start: int = 0) -> Need:
        """A request for the first `count` missing parts from `start` on."""
        while self._lowest_missing in self._pieces:
            self._lowest_missing += 1
        wanted: list[int] = []
        for index in range(max(start, self._lowest_missing), self.blob.parts):
            if len(wanted) == count:
                break
            if index not in self._pieces:
                wanted.append(index)
        return Need(self.blob.digest, tuple(wanted))

    def forget(self) -> None:
        """Nothing has come: what did was not the blob."""
        self._pieces.clear()
        self._lowest_missing = 0

    def finish(self) -> bytes:
        """The whole blob; raises `bad_digest` (and forgets the parts) if it is not the one."""
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


def check_part(blob: Blob, message: Part) -> None:
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
