"""Uploads on their way to the proxy: pulled in turn, each part put on the disk as it comes.

A fleet answers all at once. What the proxy asks for is bounded by a credit of bytes, dealt out
first come, first served; a device that lets its turn pass unused loses it, and waits from then on
among the slow, who together hold a quarter of the credit, so that they do not hold up the others.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from edgeveil.crypto.keys import MaskSeed
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import BlobPart, Envelope, ExchangeId, Need, Upload
from edgeveil.protocol.transfer import NEED_LIMIT, check_part

SLOW_SHARE = 4  # the slow together hold at most one part in so many
SLOW_PATIENCE = 6  # and are waited for so many times as long


@dataclass
class _Grant:
    left_bytes: int
    heard_s: float


class _Lane:
    """Waiting senders and running grants of one pace, each in the order of their turn."""

    def __init__(self, limit_bytes: int, patience_s: float) -> None:
        self.limit_bytes, self._patience_s = limit_bytes, patience_s
        self.waiting: OrderedDict[str, int] = OrderedDict()
        self.granted: OrderedDict[str, _Grant] = OrderedDict()  # longest unheard first
        self.granted_bytes = 0

    def deal(self, room_bytes: int, now_s: float) -> list[str]:
        """Grant in turn until `room_bytes` are granted; one always, however large its wish."""
        dealt = []
        while self.waiting:
            who, size_bytes = next(iter(self.waiting.items()))
            if self.granted_bytes and self.granted_bytes + size_bytes > room_bytes:
                break
            del self.waiting[who]
            self.granted[who] = _Grant(size_bytes, now_s)
            self.granted_bytes += size_bytes
            dealt.append(who)
        return dealt

    def arrived(self, who: str, size_bytes: int, now_s: float) -> None:
        """Bytes may come twice, or late: what uses a grant up does not end it."""
        grant = self.granted[who]
        used_bytes = min(size_bytes, grant.left_bytes)
        self.granted_bytes -= used_bytes
        grant.left_bytes -= used_bytes
        grant.heard_s = now_s
        self.granted.move_to_end(who)

    def leave(self, who: str) -> None:
        self.waiting.pop(who, None)
        grant = self.granted.pop(who, None)
        self.granted_bytes -= grant.left_bytes if grant else 0

    def unheard(self, now_s: float) -> str | None:
        """Who has kept a grant for too long without sending anything, or None."""
        for who, grant in self.granted.items():
            return who if now_s - grant.heard_s >= self._patience_s else None
        return None


class Credit:
    """Deals out `limit_bytes` first come, first served, at a constant cost per event.

    Who is granted more than once waits at the back each time. A grant without progress for
    `patience_s` is taken back; its holder then waits in a lane of its own, which never has more
    than a quarter of the credit: however many are slow, they do not hold up the others.
    """

    def __init__(self, limit_bytes: int, patience_s: float) -> None:
        self.limit_bytes = limit_bytes
        self._brisk = _Lane(limit_bytes, patience_s)
        self._slow = _Lane(limit_bytes // SLOW_SHARE, patience_s * SLOW_PATIENCE)
        self._known_slow: set[str] = set()

    @property
    def granted_bytes(self) -> int:
        """Granted and not yet arrived."""
        return self._brisk.granted_bytes + self._slow.granted_bytes

    @property
    def idle(self) -> bool:
        """Nobody holds a grant."""
        return not self._brisk.granted and not self._slow.granted

    def share_bytes(self, who: str) -> int:
        """The most that one grant of this sender should be."""
        return self._lane(who).limit_bytes

    def holds(self, who: str) -> bool:
        """Whether a grant of this sender is running."""
        return who in self._lane(who).granted

    def expects(self, who: str) -> bool:
        """Whether some of this sender's grant has not come yet."""
        grant = self._lane(who).granted.get(who)
        return grant is not None and grant.left_bytes > 0

    def knows(self, who: str) -> bool:
        """Whether this sender waits, or holds a grant."""
        return self.holds(who) or who in self._lane(who).waiting

    def want(self, who: str, size_bytes: int) -> None:
        """Join the queue, or keep one's place in it; gives back a grant that still runs."""
        lane = self._lane(who)
        if who in lane.granted:
            lane.leave(who)
        lane.waiting[who] = size_bytes

    def arrived(self, who: str, size_bytes: int, now_s: float) -> None:
        """So much of a grant has come; what was not granted (any more) counts for nothing."""
        if self.holds(who):
            self._lane(who).arrived(who, size_bytes, now_s)

    def leave(self, who: str) -> None:
        """The sender gives up its turn. One that was slow is so still."""
        self._lane(who).leave(who)

    def done(self, who: str) -> None:
        """Nothing more is wanted of the sender, and what it was like is forgotten."""
        self.leave(who)
        self._known_slow.discard(who)

    def deal(self, now_s: float) -> list[str]:
        """Whose turn it is. One sender of each pace may always go on, however large its wish."""
        slow, brisk = self._slow, self._brisk
        dealt = slow.deal(min(slow.limit_bytes, self.limit_bytes - brisk.granted_bytes), now_s)
        # What the slow hold beyond their quarter is not at the others' cost.
        taken_bytes = min(slow.granted_bytes, slow.limit_bytes)
        return dealt + brisk.deal(self.limit_bytes - taken_bytes, now_s)

    def take_back(self, now_s: float) -> list[str]:
        """Who lost a grant for want of progress, and may want another."""
        lost = []
        for lane in (self._brisk, self._slow):
            while (who := lane.unheard(now_s)) is not None:
                lane.leave(who)
                lost.append(who)
        self._known_slow.update(lost)
        return lost

    def _lane(self, who: str) -> _Lane:
        return self._slow if who in self._known_slow else self._brisk


# --- uploads ---------------------------------------------------------------------------------


class UploadArrival:
    """One upload under way. Parts count in order alone, so that the digest grows with them."""

    def __init__(self, signed: Envelope, header: Upload, seed: MaskSeed | None = None) -> None:
        self.signed, self.header, self.seed = signed, header, seed
        self.restart()

    def restart(self) -> None:
        """Nothing has come: what did was not the blob."""
        self._next = self._asked_from = self._asked_to = 0
        self._hash = hashlib.sha256()

    @property
    def complete(self) -> bool:
        """Every part is there."""
        return self._next == self.header.blob.parts

    @property
    def intact(self) -> bool:
        """What came is the blob that the header names."""
        return self._hash.digest() == self.header.blob.digest

    def add(self, part: BlobPart) -> int | None:
        """The place of a part's bytes in the upload; None for a part out of turn.

        Raises ProtocolError `bad_part`.
        """
        check_part(self.header.blob, part)
        if part.index != self._next:
            return None
        self._next += 1
        self._hash.update(part.data)
        return part.index * self.header.blob.part_bytes

    def asked_last(self, part: BlobPart) -> bool:
        """Whether no more parts that were asked for can follow this one."""
        return part.index == self._asked_to - 1

    @property
    def moved(self) -> bool:
        """Whether any part has counted since the last request."""
        return self._next > self._asked_from

    def next_bytes(self, limit_bytes: int) -> int:
        """The size of the next request's parts."""
        blob, first = self.header.blob, self._next * self.header.blob.part_bytes
        return min(self._count(limit_bytes) * blob.part_bytes, blob.size_bytes - first)

    def next_need(self, limit_bytes: int) -> Need:
        """The next request."""
        blob = self.header.blob
        self._asked_from = self._next
        self._asked_to = min(self._next + self._count(limit_bytes), blob.parts)
        return Need(blob.digest, tuple(range(self._asked_from, self._asked_to)))

    def _count(self, limit_bytes: int) -> int:
        return max(1, min(NEED_LIMIT, limit_bytes // self.header.blob.part_bytes))


class Asked(NamedTuple):
    """What a device was asked for and has not all sent: which request, of all, of how many parts.

    One number stands for one request, so that who counts the parts knows when to begin anew.
    """

    number: int
    parts: int


class UploadArrivals:
    """At most one upload of each device, and the credit that they share. One timer, `credit`."""

    def __init__(self, credit_bytes: int, patience_s: float) -> None:
        self.credit = Credit(credit_bytes, patience_s)
        self._patience_s = patience_s
        self._by_device: dict[str, UploadArrival] = {}
        self._asked: dict[str, Asked] = {}  # the last request of each upload under way
        self._requests = 0
        self._ticking = False

    def __len__(self) -> int:
        return len(self._by_device)

    def get(self, device: str) -> UploadArrival | None:
        """The device's upload under way."""
        return self._by_device.get(device)

    def begin(self, device: str, arrival: UploadArrival, now_s: float) -> list[fx.Effect]:
        """Wait for a turn; a device's earlier upload is given up."""
        self.credit.leave(device)
        self._by_device[device] = arrival
        return self._wait(device, arrival, now_s)

    def forget(self, device: str) -> None:
        """The upload is here, or of no use any more."""
        self._by_device.pop(device, None)
        self._asked.pop(device, None)
        self.credit.done(device)

    def asked(self, device: str) -> Asked | None:
        """What the device was asked for; None where all of it has come, or nothing was."""
        return self._asked.get(device) if self.credit.expects(device) else None

    def end(self, at: ExchangeId) -> None:
        """A round takes no more uploads."""
        over = [device for device, arrival in self._by_device.items() if arrival.header.at == at]
        for device in over:
            self.forget(device)

    def take(self, device: str, arrival: UploadArrival, part: BlobPart, now_s: float) -> int | None:
        """The part's place, as `UploadArrival.add`. A wrong one too was one of those asked for."""
        self.credit.arrived(device, arrival.header.blob.part_bytes, now_s)
        return arrival.add(part)

    def came(
        self, device: str, arrival: UploadArrival, part: BlobPart, now_s: float
    ) -> list[fx.Effect]:
        """A part has come and more must: ask on when those asked for are through.

        Only where any of them counted: else the last one, sent again and again, would be asked for
        each time. What was lost whole is asked for when the grant's patience is over.
        """
        if arrival.asked_last(part) and arrival.moved:
            return self._wait(device, arrival, now_s)
        return self.deal(now_s)

    def again(self, device: str, arrival: UploadArrival, now_s: float) -> list[fx.Effect]:
        """From the beginning, after the others."""
        arrival.restart()
        self.credit.leave(device)
        return self._wait(device, arrival, now_s)

    def reconnected(self, device: str, now_s: float) -> list[fx.Effect]:
        """What the device was asked for may have been lost with its link: ask again."""
        arrival = self._by_device.get(device)
        return self._wait(device, arrival, now_s) if arrival else []

    def offered(self, device: str, arrival: UploadArrival, now_s: float) -> list[fx.Effect]:
        """The same offer again: it waits for its turn, or for what was asked for."""
        return [] if self.credit.knows(device) else self._wait(device, arrival, now_s)

    def deal(self, now_s: float) -> list[fx.Effect]:
        """Ask those whose turn it is."""
        out: list[fx.Effect] = []
        for device in self.credit.deal(now_s):
            need = self._by_device[device].next_need(self.credit.share_bytes(device))
            self._requests += 1
            self._asked[device] = Asked(self._requests, len(need.indices))
            out.append(fx.Send(fx.DeviceAddress(device), need))
        if not self._ticking and not self.credit.idle:
            self._ticking = True
            out.append(fx.SetTimer("credit", self._patience_s))
        return out

    def tick(self, now_s: float) -> list[fx.Effect]:
        """Take back what brings nothing."""
        self._ticking = False
        for device in self.credit.take_back(now_s):
            wish_bytes = self._by_device[device].next_bytes(self.credit.share_bytes(device))
            self.credit.want(device, wish_bytes)
        return self.deal(now_s)

    def _wait(self, device: str, arrival: UploadArrival, now_s: float) -> list[fx.Effect]:
        self.credit.want(device, arrival.next_bytes(self.credit.share_bytes(device)))
        return self.deal(now_s)
