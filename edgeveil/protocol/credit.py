"""Who may send us how much now: bytes granted and not yet arrived have a bound."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

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
