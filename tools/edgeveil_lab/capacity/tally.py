"""What the parties of a played fleet sent, received, stored and took: counted, not estimated."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PartyTally:
    """One party's account. Bytes are of frames, without what MQTT and TLS add.

    `seconds` are of the processor, by what it did: measured while the real machine, store and host
    ran, not modelled.
    """

    sent: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received: Counter[str] = field(default_factory=Counter)
    received_bytes: int = 0
    stored: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def send(self, kind: str, size_bytes: int, copies: int = 1) -> None:
        """So many messages of one kind left."""
        self.sent[kind] += copies
        self.sent_bytes += size_bytes * copies

    def receive(self, kind: str, size_bytes: int, copies: int = 1) -> None:
        """So many messages of one kind came."""
        self.received[kind] += copies
        self.received_bytes += size_bytes * copies

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """The processor's time of the block is this party's."""
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - start

    @property
    def busy_s(self) -> float:
        """All its seconds."""
        return sum(self.seconds.values())

    def since(self, before: PartyTally) -> PartyTally:
        """What came on top of an earlier copy."""
        return PartyTally(
            self.sent - before.sent,
            self.sent_bytes - before.sent_bytes,
            self.received - before.received,
            self.received_bytes - before.received_bytes,
            self.stored - before.stored,
            {what: s - before.seconds.get(what, 0.0) for what, s in self.seconds.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "messages_out": self.sent.total(),
            "bytes_out": self.sent_bytes,
            "messages_in": self.received.total(),
            "bytes_in": self.received_bytes,
            "rows": dict(self.stored),
            "busy_s": round(self.busy_s, 4),
            "seconds": {what: round(s, 4) for what, s in sorted(self.seconds.items())},
            "sent": dict(self.sent),
            "received": dict(self.received),
        }
