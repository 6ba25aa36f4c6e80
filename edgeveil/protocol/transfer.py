"""Sending and fetching one blob over messages: shared by all three roles."""

from __future__ import annotations

from collections.abc import Iterable

from edgeveil.errors import ProtocolError
from edgeveil.protocol.blob import NEED_LIMIT, Assembly, Data, check_claim, part, parts, whole
from edgeveil.protocol.effects import Address, Send
from edgeveil.protocol.messages import Blob, Header, Need, Offer, Part, Signed

FRAME_OVERHEAD_BYTES = 512  # version, tags, digests and lengths around a part or an offer's data


def part_bytes(packet_bytes: int) -> int:
    """The largest part whose frame fits a packet."""
    return packet_bytes - FRAME_OVERHEAD_BYTES


def check_parts_fit(blob: Blob, packet_bytes: int) -> None:
    """Raise ProtocolError `large_parts` for parts that no packet can carry."""
    if min(blob.part_bytes, blob.size_bytes) > part_bytes(packet_bytes):
        raise ProtocolError("large_parts")


def sends(
    to: Address, signed: Signed, blob: Blob, data: Data, packet_bytes: int, *, push: bool = True
) -> list[Send]:
    """An offer with the blob inline if it fits one packet, else the offer and (if `push`) parts."""
    if len(signed.payload) + len(data) + FRAME_OVERHEAD_BYTES <= packet_bytes:
        return [Send(to, Offer(signed, data[:]))]
    pieces = parts(blob, data) if push else ()
    return [Send(to, Offer(signed)), *(Send(to, piece) for piece in pieces)]


def answer_need(to: Address, need: Need, blob: Blob, data: Data) -> list[Send]:
    """The parts asked for, each once and no more than the credit.

    Raises ProtocolError `bad_index` for one that does not exist.
    """
    return [Send(to, part(blob, data, index)) for index in sorted(set(need.indices))[:NEED_LIMIT]]


class Fetch:
    """One blob under way towards us, and when to ask for what is missing.

    Parts are pushed where the blob is small. Where no part came since the last look, the
    missing ones are asked for, at most `NEED_LIMIT` at a time and `credit` in all; the next request
    follows as soon as half a limit is free again, so that the sender never waits for us. With
    `keep=False` the bytes are the caller's to put away.
    """

    def __init__(
        self,
        offer: Offer,
        header: Header,
        limit_bytes: int,
        *,
        keep: bool = True,
        credit: int = NEED_LIMIT,
    ) -> None:
        self._credit = credit
        self.offer, self.header = offer, header
        self.assembly = Assembly(header.blob, limit_bytes, keep=keep)
        self._asked: set[int] = set()  # and not come yet
        self._next = 0  # below it, everything was asked for since the last silence
        self._pulling = self._heard = False
        self.idle_looks = 0

    def add(self, message: Part) -> bool:
        """Take a part; True when the blob is complete."""
        done = self.assembly.add(message)
        self._heard, self.idle_looks = True, 0
        self._asked.discard(message.index)
        return done

    def next_need(self, *, timer: bool) -> Need | None:
        """What to ask for now: with half of the credit free, or when a timer saw nothing new."""
        if self.assembly.complete:
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
        return need


def check_fetchable(offer: Offer, blob: Blob, limit_bytes: int) -> None:
    """Raise `oversized_blob`, `tiny_parts` or `bad_digest` before anything is changed."""
    check_claim(blob, limit_bytes)
    if offer.data:
        whole(blob, offer.data)


def first_data(offer: Offer, blob: Blob) -> Iterable[Part]:
    """The inline blob of an offer as parts, so that one path serves both.

    An empty blob is always inside its offer.
    """
    if not offer.data and blob.size_bytes:
        return ()
    if len(offer.data) != blob.size_bytes:
        raise ProtocolError("bad_part")
    return parts(blob, offer.data)
