"""A device's one upload: on disk before it is sent, sent until acknowledged, kept until counted."""

from __future__ import annotations

import hashlib

from fl_core.protocol import effects as fx
from fl_core.protocol.blob import describe
from fl_core.protocol.envelope import Signer
from fl_core.protocol.messages import Exchanged, Need, Upload
from fl_core.protocol.tasks import Memory, OutboxDrop, OutboxPut, Sealed, Settings
from fl_core.protocol.transfer import answer_need, part_bytes, sends


class Outbox:
    """Sends what `memory.outbox` holds; changes it together with the `Store` that says so."""

    def __init__(self, signer: Signer, memory: Memory, settings: Settings) -> None:
        self._signer, self._memory, self._settings = signer, memory, settings
        self._resends = 0

    @property
    def item(self) -> OutboxPut | None:
        """The upload, if there is one."""
        return self._memory.outbox

    def is_for(self, at: Exchanged) -> bool:
        """Whether the upload is this round's."""
        return self.item is not None and self.item.at == at

    def put(self, at: Exchanged, sealed: Sealed) -> list[fx.Effect]:
        """Store a sealed answer, then send it."""
        blob = describe(sealed.data, part_bytes(self._settings.packet_bytes))
        upload = Upload(at, sealed.groups, blob)
        item = OutboxPut(at, self._signer.header(upload), upload, sealed.sizes, sealed.data)
        self._memory.outbox, self._resends = item, 0
        return [fx.Store(item), *self.send()]

    def send(self) -> list[fx.Effect]:
        """Send the upload whole, and set the time of the next sending."""
        item, settings = self.item, self._settings
        if item is None:
            return []
        wait_s = min(settings.resend_s * 2 ** min(self._resends, 16), settings.waits_cap_s)
        to, blob = fx.Proxy(), item.upload.blob
        packets = sends(to, item.header, blob, item.data, settings.packet_bytes)
        return [*packets, fx.SetTimer("resend", wait_s)]

    def send_again(self) -> list[fx.Effect]:
        """The same once more, and the next time later."""
        self._resends += 1
        return self.send()

    def need(self, need: Need) -> list[fx.Effect]:
        """Parts that the proxy asks for; raises ProtocolError `bad_index`."""
        item = self.item
        if item is None or item.upload.blob.digest != need.blob:
            return []
        return list(answer_need(fx.Proxy(), need, item.upload.blob, item.data))

    def counted(self, hashes: bytes) -> int:
        """How many of the segments stand in a commit record's list."""
        item = self.item
        if item is None:
            return 0
        accepted = {hashes[i : i + 32] for i in range(0, len(hashes), 32)}
        offset = counted = 0
        for size in item.sizes:
            segment = item.data[offset : offset + size]
            counted += hashlib.sha256(segment).digest() in accepted
            offset += size
        return counted

    def drop(self) -> list[fx.Effect]:
        """The upload is not needed any more."""
        if self.item is None:
            return []
        self._memory.outbox = None
        return [fx.Store(OutboxDrop())]
