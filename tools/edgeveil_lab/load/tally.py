"""What one generator process counts: connections, uploads and what became of each."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from edgeveil.protocol.messages import ExchangeId
from edgeveil_lab.load.histogram import Histogram

RoundKey = tuple[int, int]  # round and attempt of the one job
_REMEMBERED = 8  # rounds that are looked at and told of


@dataclass
class RoundTally:
    """One attempt at one round, of this process's devices. Times are seconds since 1970."""

    began_s: float | None = None  # the first manifest
    first_offer_s: float | None = None
    last_ack_s: float | None = None
    offered: int = 0
    acknowledged: int = 0
    answered: int = 0
    counted: int = 0
    counted_sum: float = 0.0  # of all values of the counted uploads
    upload_bytes: int = 0
    upload_messages: int = 0


@dataclass
class Sent:
    """One upload: its segments' hashes, when it was first offered, and what the proxy said."""

    hashes: tuple[bytes, ...]
    offered_s: float
    total: float = 0.0  # of its values
    said: str = ""
    away: bool = False  # the device lost its connection before the proxy spoke


@dataclass
class Tally:
    """Everything counted. Uploads are kept until the round's commit record tells of them."""

    connected: int = 0
    connects: int = 0
    failed: int = 0
    reconnects: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    offered: int = 0
    acknowledged: int = 0
    counted: int = 0
    missing: int = 0
    contradicted: int = 0  # held, then refused
    repeated: int = 0  # in commit records: every generator reads the same
    refused: Counter[str] = field(default_factory=Counter)
    connect_s: Histogram = field(default_factory=Histogram)
    ack_s: Histogram = field(default_factory=Histogram)
    counted_s: Histogram = field(default_factory=Histogram)
    first_dial_s: float | None = None
    last_up_s: float | None = None
    rounds: dict[RoundKey, RoundTally] = field(default_factory=dict)
    _sent: dict[RoundKey, dict[bytes, Sent]] = field(default_factory=dict)
    _committed: set[RoundKey] = field(default_factory=set)
    _accepted: deque[set[bytes]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def round(self, at: ExchangeId) -> RoundTally:
        """The counts of this attempt."""
        return self.rounds.setdefault((at.exchange, at.attempt), RoundTally())

    def offer(
        self,
        at: ExchangeId,
        blob: bytes,
        hashes: tuple[bytes, ...],
        now_s: float,
        total: float = 0.0,
    ) -> None:
        """An upload is offered for the first time; `total` is the sum of its values."""
        row = self.round(at)
        row.offered += 1
        row.first_offer_s = row.first_offer_s or now_s
        self.offered += 1
        self._sent.setdefault((at.exchange, at.attempt), {})[blob] = Sent(hashes, now_s, total)

    def ack(
        self,
        at: ExchangeId,
        blob: bytes,
        status: str,
        reason: str,
        now_s: float,
        before_s: float | None = None,
    ) -> float | None:
        """The proxy spoke of an upload; a second, different word on a held one is a fault.

        Returns how long it took to be held, if it was just now. `before_s` is what the device's
        upload before took.
        """
        sent = self._sent.get((at.exchange, at.attempt), {}).get(blob)
        if sent is None:
            return None
        if sent.said:
            self.contradicted += sent.said == "held" and status in ("refused", "duplicate")
            return None
        sent.said, row = status, self.round(at)
        row.answered += 1
        if status != "held":
            self.refused[f"upload: {reason or status}"] += 1
            return None
        row.acknowledged += 1
        row.last_ack_s = now_s
        self.acknowledged += 1
        self.ack_s.add(now_s - sent.offered_s, before_s)
        return now_s - sent.offered_s

    def away(self, at: ExchangeId, blob: bytes) -> None:
        """The upload's device is gone for now: nobody can be asked for an answer to it."""
        sent = self._sent.get((at.exchange, at.attempt), {}).get(blob)
        if sent is not None and not sent.said:
            sent.away = True

    def back(self, at: ExchangeId, blob: bytes) -> None:
        """The upload's device is connected again, and will ask."""
        sent = self._sent.get((at.exchange, at.attempt), {}).get(blob)
        if sent is not None:
            sent.away = False

    def commit(self, at: ExchangeId, hashes: bytes) -> None:
        """A round's commit record: which of its uploads were counted, each once."""
        key = (at.exchange, at.attempt)
        if key in self._committed:
            return
        self._committed.add(key)
        listed = [hashes[i : i + 32] for i in range(0, len(hashes), 32)]
        accepted = set(listed)
        again = sum(len(accepted & earlier) for earlier in self._accepted)
        self.repeated += len(listed) - len(accepted) + again
        self._accepted.append(accepted)
        row, uploads = self.round(at), self._sent.pop(key, {})
        for blob, sent in uploads.items():
            if accepted.issuperset(sent.hashes):
                self.counted += 1
                row.counted += 1
                row.counted_sum += sent.total
            elif sent.said == "held":
                self.missing += 1
            elif not sent.said:  # its answer may still come
                self._sent.setdefault(key, {})[blob] = sent

    def committed(self, at: ExchangeId) -> bool:
        """Whether this attempt's commit record was read."""
        return (at.exchange, at.attempt) in self._committed

    @property
    def offering(self) -> bool:
        """Whether the newest attempt has an upload, and no commit record yet."""
        key = next(reversed(self.rounds), None)
        return key is not None and key not in self._committed and self.rounds[key].offered > 0

    @property
    def pending(self) -> bool:
        """Whether an upload of the newest attempt waits for its answer."""
        key = next(reversed(self.rounds), None)
        return key is not None and self.rounds[key].offered > self.rounds[key].answered

    @property
    def waiting(self) -> int:
        """Uploads whose fate is not known yet."""
        return sum(1 for row in self._sent.values() for s in row.values() if s.said in ("", "held"))

    def to_plain(self) -> dict[str, Any]:
        """For a report to the leader: all counts since the start, and of the newest rounds.

        Older rounds, of which earlier reports told, are forgotten.
        """
        plain = self._plain()
        for key in sorted(self.rounds)[:-_REMEMBERED]:
            del self.rounds[key]
            self._sent.pop(key, None)
            self._committed.discard(key)
        return plain

    def _plain(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in (*_COUNTS, "first_dial_s", "last_up_s")},
            "waiting": self.waiting,
            "refused": dict(self.refused),
            "connect_s": self.connect_s.to_plain(),
            "ack_s": self.ack_s.to_plain(),
            "counted_s": self.counted_s.to_plain(),
            "rounds": [self._round_plain(key) for key in self.rounds],
        }

    def _round_plain(self, key: RoundKey) -> dict[str, Any]:
        rest = self._sent.get(key, {}).values()
        return {
            "round": key[0],
            "attempt": key[1],
            **asdict(self.rounds[key]),
            "unconfirmed": sum(s.said == "held" for s in rest),
            "unanswered": sum(not s.said and not s.away for s in rest),
        }


_COUNTS = (
    *("connected", "connects", "failed", "reconnects", "bytes_up", "bytes_down"),
    *("offered", "acknowledged", "counted", "missing", "contradicted", "repeated"),
)
