"""A device's one upload: on disk before it is sent, sent until acknowledged, kept until counted."""

from __future__ import annotations

from dataclasses import replace

from edgeveil.protocol import effects as fx
from edgeveil.protocol.blob import describe
from edgeveil.protocol.envelope import Signer
from edgeveil.protocol.messages import Exchanged, Need, Upload
from edgeveil.protocol.pace import Pace
from edgeveil.protocol.tasks import (
    Memory,
    OutboxDrop,
    OutboxHeld,
    OutboxPut,
    Outcome,
    Sealed,
    Settings,
)
from edgeveil.protocol.transfer import answer_need, part_bytes, sends

# A fleet answers all at once, and a broker drops what it cannot queue: larger uploads wait until
# the proxy asks, so that thousands of devices need no more than this each at the broker.
INLINE_PACKET_BYTES = 16384


class Outbox:
    """Sends what `memory.outbox` holds; changes it together with the `Store` that says so."""

    def __init__(self, signer: Signer, memory: Memory, settings: Settings, pace: Pace) -> None:
        self._signer, self._memory, self._settings = signer, memory, settings
        self._pace, self._resends = pace, 0
        self._waiting: tuple[Exchanged, Sealed] | None = None  # until its moment under cover
        self._last: OutboxPut | None = None

    @property
    def item(self) -> OutboxPut | None:
        """The upload, if there is one."""
        return self._memory.outbox

    def is_for(self, at: Exchanged) -> bool:
        """Whether the upload is this round's."""
        return self.item is not None and self.item.at == at

    def put(self, at: Exchanged, sealed: Sealed, after_s: float = 0.0) -> list[fx.Effect]:
        """Store a sealed answer, then send it; both `after_s` seconds later where cover asks so.

        Until then it is nowhere but in memory: a dummy is ready at once, and on disk it would
        outlive a restart where an answer that is still computed does not.
        """
        if after_s > 0:
            self._waiting = at, sealed
            return [fx.SetTimer("resend", after_s)]
        self._waiting = None
        blob = describe(sealed.data, part_bytes(self._settings.packet_bytes))
        upload = Upload(at, sealed.groups, blob)
        header = self._signer.header(upload)
        item = OutboxPut(at, header, upload, sealed.marks, sealed.data, sealed.dummy)
        self._memory.outbox, self._resends = item, 0
        return [fx.Store(item), *self.send()]

    def send(self) -> list[fx.Effect]:
        """Offer the upload, whole if it is small, and set the time of the next offer.

        The proxy asks for the parts of a larger one when it has room for them.
        """
        item, settings = self.item, self._settings
        if item is None:
            return []
        wait_s = self._pace.wait_s(settings.resend_s, self._resends, settings.waits_cap_s)
        to, blob = fx.Proxy(), item.upload.blob
        whole_bytes = min(settings.packet_bytes, INLINE_PACKET_BYTES)
        packets = sends(to, item.header, blob, item.data, whole_bytes, push=False)
        return [*packets, fx.SetTimer("resend", wait_s)]

    def send_again(self) -> list[fx.Effect]:
        """What waits for its moment; or the same once more, and the next time later."""
        if self._waiting is not None:
            return self.put(*self._waiting)
        self._resends += 1
        return self.send()

    def need(self, need: Need) -> list[fx.Effect]:
        """Parts that the proxy asks for; raises ProtocolError `bad_index`."""
        item = self.item
        if item is None or item.upload.blob.digest != need.blob:
            return []
        return list(answer_need(fx.Proxy(), need, item.upload.blob, item.data))

    def awaits(self, at: Exchanged) -> bool:
        """Whether a commit record of this round says something about an upload."""
        return self.is_for(at) or (self._last is not None and self._last.at == at)

    def late(self, at: Exchanged) -> OutboxPut | None:
        """The acknowledged upload that a newer round displaced, if it was this round's; once."""
        if self._last is None or self._last.at != at:
            return None
        item, self._last = self._last, None
        return item

    def held(self) -> list[fx.Effect]:
        """The proxy acknowledged the upload: it is kept until it was counted."""
        if self.item is None or self.item.held:
            return []
        self._memory.outbox = replace(self.item, held=True)
        return [fx.Store(OutboxHeld(self.item.at))]

    def drop(self, outcome: Outcome = "dropped") -> list[fx.Effect]:
        """The upload is not needed any more, and its attempt is not taken up again."""
        self._waiting = None
        if self.item is None:
            return []
        if self.item.held and outcome == "dropped":
            self._last = replace(self.item, data=b"")
        at, self._memory.outbox = self.item.at, None
        seen = self._memory.seen.get(at.job_id)
        if seen is not None and seen.at == at:
            self._memory.seen[at.job_id] = replace(seen, settled=True)
        return [fx.Store(OutboxDrop(at, outcome))]


def counted(item: OutboxPut, marks: bytes) -> int:
    """How many of an upload's segments stand in a commit record's sorted list."""
    return sum(_holds(marks, mark) for mark in item.marks)


def _holds(sorted_marks: bytes, mark: bytes) -> bool:
    """Whether a mark stands in a list of 32 bytes each."""
    low, high = 0, len(sorted_marks) // 32
    while low < high:
        middle = (low + high) // 2
        if sorted_marks[middle * 32 : (middle + 1) * 32] < mark:
            low = middle + 1
        else:
            high = middle
    return sorted_marks[low * 32 : (low + 1) * 32] == mark
