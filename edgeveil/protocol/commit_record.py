"""The record of a round: the mark of every segment that was counted, and its pieces.

The record of a large round is much for a device that looks for one mark in it. So it may be had in
up to 16 pieces, by the first bits of the marks: a mark stands in its own piece or nowhere, and
either shows by that piece alone. The signed header names each piece by its digest, and what has
another digest does not count.

Who asks for a piece tells the proxy a few bits of a mark. The proxy can compute no mark, but it can
count: where more devices asked for a piece than marks stand in it, some of these devices were not
counted. So a piece has no fewer marks than the job's floor, and where uploads have several segments
each there is one piece, the whole: which pieces a device asks for would tell it from all others.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import MOST_PIECES, Blob, Commit, ExchangeId
from edgeveil.protocol.transfer import describe

PIECE_MARKS = 256  # of a piece on average, at least: fewer would save less than naming them costs


def describe_record(
    at: ExchangeId, marks: Iterable[bytes], part_bytes: int, floor: int | None = None
) -> tuple[Commit, bytes]:
    """The record's header and blob. With a `floor`, in pieces of that many marks or more."""
    sorted_marks = sorted(marks)
    data = b"".join(sorted_marks)
    blob = describe(data, part_bytes)
    if floor is None:
        return Commit(at, len(sorted_marks), blob), data
    pieces = [describe(piece, part_bytes) for piece in _cut(sorted_marks, floor)]
    return Commit(at, len(sorted_marks), blob, tuple(pieces)), data


def _cut(marks: list[bytes], floor: int) -> list[bytes]:
    count = MOST_PIECES
    while count > 1:
        dealt: list[list[bytes]] = [[] for _ in range(count)]
        for mark in marks:
            dealt[place_of(mark, count)].append(mark)
        if len(marks) >= count * PIECE_MARKS and min(map(len, dealt)) >= floor:
            return [b"".join(piece) for piece in dealt]
        count //= 2
    return [b"".join(marks)]


def place_of(mark: bytes, pieces: int) -> int:
    """In which of so many pieces a mark stands, if anywhere."""
    return mark[0] * pieces >> 8


def piece_for(commit: Commit, marks: Iterable[bytes]) -> Blob:
    """What to fetch to look for these marks: their piece, or the whole where they have several."""
    places = {place_of(mark, len(commit.pieces)) for mark in marks}
    return commit.pieces[places.pop()] if len(places) == 1 else commit.blob


def check_record(commit: Commit) -> None:
    """Raise ProtocolError `malformed` for pieces that do not make up the record."""
    sizes = [piece.size_bytes for piece in commit.pieces]
    if sizes and (len(sizes).bit_count() != 1 or sum(sizes) != commit.blob.size_bytes):
        raise ProtocolError("malformed")
