"""Uploads on their way to the proxy: pulled in order, each part put on the disk as it comes."""

from __future__ import annotations

import hashlib

from edgeveil.protocol import effects as fx
from edgeveil.protocol.blob import NEED_LIMIT, check_part
from edgeveil.protocol.credit import Credit
from edgeveil.protocol.messages import Exchanged, Need, Part, Signed, Upload


class Arrival:
    """One upload under way. Parts count in order alone, so that the digest grows with them."""

    def __init__(self, signed: Signed, header: Upload) -> None:
        self.signed, self.header = signed, header
        self.restart()

    def restart(self) -> None:
        """Nothing has come: what did was not the blob."""
        self._next = self._asked_to = 0
        self._hash = hashlib.sha256()

    @property
    def complete(self) -> bool:
        """Every part is there."""
        return self._next == self.header.blob.parts

    @property
    def intact(self) -> bool:
        """What came is the blob that the header names."""
        return self._hash.digest() == self.header.blob.digest

    def add(self, part: Part) -> int | None:
        """The place of a part's bytes in the upload; None for a part out of turn.

        Raises ProtocolError `bad_part`.
        """
        check_part(self.header.blob, part)
        if part.index != self._next:
            return None
        self._next += 1
        self._hash.update(part.data)
        return part.index * self.header.blob.part_bytes

    def asked_last(self, part: Part) -> bool:
        """Whether no more parts that were asked for can follow this one."""
        return part.index == self._asked_to - 1

    def next_bytes(self, limit_bytes: int) -> int:
        """The size of the next request's parts."""
        blob, first = self.header.blob, self._next * self.header.blob.part_bytes
        return min(self._count(limit_bytes) * blob.part_bytes, blob.size_bytes - first)

    def next_need(self, limit_bytes: int) -> Need:
        """The next request."""
        blob = self.header.blob
        self._asked_to = min(self._next + self._count(limit_bytes), blob.parts)
        return Need(blob.digest, tuple(range(self._next, self._asked_to)))

    def _count(self, limit_bytes: int) -> int:
        return max(1, min(NEED_LIMIT, limit_bytes // self.header.blob.part_bytes))


class Arrivals:
    """At most one upload of each device, and the credit that they share. One timer, `credit`."""

    def __init__(self, credit_bytes: int, patience_s: float) -> None:
        self.credit = Credit(credit_bytes, patience_s)
        self._patience_s = patience_s
        self._by_device: dict[str, Arrival] = {}
        self._ticking = False

    def __len__(self) -> int:
        return len(self._by_device)

    def get(self, device: str) -> Arrival | None:
        """The device's upload under way."""
        return self._by_device.get(device)

    def begin(self, device: str, arrival: Arrival, now_s: float) -> list[fx.Effect]:
        """Wait for a turn; a device's earlier upload is given up."""
        self.credit.leave(device)
        self._by_device[device] = arrival
        return self._wait(device, arrival, now_s)

    def forget(self, device: str) -> None:
        """The upload is here, or of no use any more."""
        self._by_device.pop(device, None)
        self.credit.done(device)

    def end(self, at: Exchanged) -> None:
        """A round takes no more uploads."""
        over = [device for device, arrival in self._by_device.items() if arrival.header.at == at]
        for device in over:
            self.forget(device)

    def take(self, device: str, arrival: Arrival, part: Part, now_s: float) -> int | None:
        """The part's place, as `Arrival.add`. Also one that is wrong is one of those asked for."""
        self.credit.arrived(device, arrival.header.blob.part_bytes, now_s)
        return arrival.add(part)

    def came(self, device: str, arrival: Arrival, part: Part, now_s: float) -> list[fx.Effect]:
        """A part has come and more must: ask on when those asked for are through."""
        if arrival.asked_last(part):
            return self._wait(device, arrival, now_s)
        return self.deal(now_s)

    def again(self, device: str, arrival: Arrival, now_s: float) -> list[fx.Effect]:
        """From the beginning, after the others."""
        arrival.restart()
        self.credit.leave(device)
        return self._wait(device, arrival, now_s)

    def reconnected(self, device: str, now_s: float) -> list[fx.Effect]:
        """What the device was asked for may have been lost with its link: ask again."""
        arrival = self._by_device.get(device)
        return self._wait(device, arrival, now_s) if arrival else []

    def offered(self, device: str, arrival: Arrival, now_s: float) -> list[fx.Effect]:
        """The same offer again: it waits for its turn, or for what was asked for."""
        return [] if self.credit.knows(device) else self._wait(device, arrival, now_s)

    def deal(self, now_s: float) -> list[fx.Effect]:
        """Ask those whose turn it is."""
        out: list[fx.Effect] = []
        for device in self.credit.deal(now_s):
            need = self._by_device[device].next_need(self.credit.share_bytes(device))
            out.append(fx.Send(fx.Device(device), need))
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

    def _wait(self, device: str, arrival: Arrival, now_s: float) -> list[fx.Effect]:
        self.credit.want(device, arrival.next_bytes(self.credit.share_bytes(device)))
        return self.deal(now_s)
