"""A batch on its way to the cloud: each part leaves for the disk as it comes."""

from __future__ import annotations

import zlib

from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.blob import NEED_LIMIT
from fl_core.protocol.cloud_tasks import BatchPart
from fl_core.protocol.messages import Batch, Need, Offer, Part

REFILL = NEED_LIMIT // 2  # asked parts still to come when the next are asked for


class BatchPull:
    """Which parts of one batch are there (a byte each), and which to ask for next.

    The bytes themselves go to the host, which checks the digest of the whole. A large batch is
    pulled at once; of a small one the proxy sends the parts unasked.
    """

    def __init__(self, header: Batch, push_bytes: int) -> None:
        self.header = header
        self._have = bytearray(header.blob.parts)
        self._missing = header.blob.parts
        self._asked: set[int] = set()
        self._next = 0  # where the search for parts to ask for goes on
        self._pulling = header.blob.size_bytes > push_bytes
        self._heard = False

    @property
    def complete(self) -> bool:
        """Every part was handed to the host."""
        return self._missing == 0

    def offered(self, offer: Offer) -> list[fx.Effect]:
        """The offer that began this pull. Its data, if any, was checked to be the whole blob."""
        if offer.data or not self.header.blob.size_bytes:
            self._missing = 0
            return [fx.Store(BatchPart(self.header.blob.digest, 0, offer.data))]
        return self._ask() if self._pulling else []

    def part(self, part: Part) -> list[fx.Effect]:
        """Take a part. Raises ProtocolError `bad_part` and changes nothing."""
        blob, index = self.header.blob, part.index
        if index >= blob.parts:
            raise ProtocolError("bad_part")
        offset = index * blob.part_bytes
        expected = min(blob.part_bytes, blob.size_bytes - offset)
        if len(part.data) != expected or zlib.crc32(part.data) != part.crc:
            raise ProtocolError("bad_part")
        if self._have[index]:
            return []
        self._have[index] = 1
        self._missing -= 1
        self._heard = True
        self._asked.discard(index)
        out: list[fx.Effect] = [fx.Store(BatchPart(blob.digest, offset, part.data))]
        return out + self._ask() if self._pulling and len(self._asked) <= REFILL else out

    def progressed(self) -> bool:
        """Whether a part came since the last look."""
        heard, self._heard = self._heard, False
        return heard

    def ask_again(self) -> list[fx.Effect]:
        """Nothing came for a while: ask for the first missing parts."""
        self._pulling, self._next = True, 0
        self._asked.clear()
        return self._ask()

    def _ask(self) -> list[fx.Effect]:
        wanted: list[int] = []
        while len(self._asked) < NEED_LIMIT:
            index = self._have.find(0, self._next)
            if index < 0:
                break
            self._next = index + 1
            self._asked.add(index)
            wanted.append(index)
        need = Need(self.header.blob.digest, tuple(wanted))
        return [fx.Send(fx.Proxy(), need)] if wanted else []
