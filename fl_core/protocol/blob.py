"""Blobs in parts: cut, collect, ask for what is missing, check the whole."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Protocol

from fl_core.errors import ProtocolError
from fl_core.protocol.messages import Blob, Need, Part

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
    return Part(blob.digest, index, zlib.crc32(piece), piece)


def parts(blob: Blob, data: Data) -> Iterator[Part]:
    """All parts in order."""
    return (part(blob, data, index) for index in range(blob.parts))


class Assembly:
    """Collects one blob's parts, in any order, each at most once.

    Memory grows with what arrives, never with what a header claims; a claim above
    `limit_bytes` is refused with ProtocolError `oversized_blob`, one cut into crumbs with
    `tiny_parts`.
    """

    def __init__(self, blob: Blob, limit_bytes: int) -> None:
        if blob.size_bytes > limit_bytes:
            raise ProtocolError("oversized_blob")
        if blob.parts > 1 and blob.part_bytes < SMALLEST_PART_BYTES:
            raise ProtocolError("tiny_parts")
        self.blob = blob
        self._pieces: dict[int, bytes] = {}
        self._lowest_missing = 0

    def add(self, message: Part) -> bool:
        """Take a part; True when the blob is complete. Raises `bad_part` and changes nothing."""
        blob, index = self.blob, message.index
        if index >= blob.parts:
            raise ProtocolError("bad_part")
        expected = min(blob.part_bytes, blob.size_bytes - index * blob.part_bytes)
        if len(message.data) != expected or zlib.crc32(message.data) != message.crc:
            raise ProtocolError("bad_part")
        self._pieces.setdefault(index, message.data)
        return self.complete

    @property
    def complete(self) -> bool:
        """Every part is there."""
        return len(self._pieces) == self.blob.parts

    @property
    def held_bytes(self) -> int:
        """Memory taken by the parts so far."""
        return min(len(self._pieces) * self.blob.part_bytes, self.blob.size_bytes)

    def missing(self) -> Need:
        """A request for the first missing parts, within the credit."""
        while self._lowest_missing in self._pieces:
            self._lowest_missing += 1
        wanted: list[int] = []
        for index in range(self._lowest_missing, self.blob.parts):
            if index not in self._pieces:
                wanted.append(index)
                if len(wanted) == NEED_LIMIT:
                    break
        return Need(self.blob.digest, tuple(wanted))

    def finish(self) -> bytes:
        """The whole blob; raises `bad_digest` (and forgets the parts) if it is not the one."""
        data = b"".join(self._pieces[index] for index in range(self.blob.parts))
        if hashlib.sha256(data).digest() != self.blob.digest:
            self._pieces.clear()
            self._lowest_missing = 0
            raise ProtocolError("bad_digest")
        return data


def whole(blob: Blob, data: bytes) -> bytes:
    """`data` if it is the blob; raises ProtocolError `bad_digest`."""
    if len(data) != blob.size_bytes or hashlib.sha256(data).digest() != blob.digest:
        raise ProtocolError("bad_digest")
    return data
