"""Whether a link still hears: where a cluster lost nodes, a link may be up and nothing comes by it.

No ping shows that: the broker answers it, and only the subscription is dead. So a link that has
heard nothing for a while has its machine ask the peer for a sign (`fx.PeerSilent`); sooner where
the machine repeats itself, which it does until it is answered. Where no word comes then either, the
connection is ended and made anew, at the next address. The waits double with each connection that
was made in vain: a peer that is simply away costs its broker few connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

LONGEST_S = 3600.0  # to which the waits grow
_SOONER = 10  # what is repeated is looked after so much earlier than silence
_WORDS = 256  # so many are remembered


class Hearing:
    """What one link has heard and said. `now_s` counts from any zero.

    `silence_s`: ask after so long without a word, or a tenth of it after the first repetition; and
    so long an answer is waited for. `uniform(low, high)` spreads a fleet's waits.
    """

    def __init__(self, silence_s: float, uniform: Callable[[float, float], float]) -> None:
        self._silence_s, self._uniform = silence_s, uniform
        self._since_s = 0.0  # of the last word, question or connection
        self._words: set[int] = set()  # of ours since then
        self._repeated_s: float | None = None
        self._asked, self._in_vain = False, 0
        self._wait_s = self._drawn()

    def connected(self, now_s: float) -> None:
        """The link is up (again), and the machine greets its peer: that asks for an answer."""
        self._begin(now_s, asked=True)

    def heard(self, now_s: float) -> None:
        """A message came."""
        self._begin(now_s, asked=False)
        if self._in_vain:
            self._in_vain = 0
            self._wait_s = self._drawn()

    def said(self, now_s: float, frame: bytes) -> None:
        """A message was handed to the broker."""
        word = hash(frame)
        if word in self._words and self._repeated_s is None:
            self._repeated_s = now_s
        if len(self._words) < _WORDS:
            self._words.add(word)

    def due(self, now_s: float) -> Literal["ask", "renew"] | None:
        """What to do now; to be asked while the link is up."""
        soon_s = self._wait_s / _SOONER
        if not self._asked:
            at_s = self._since_s + self._wait_s
            if self._repeated_s is not None:
                at_s = min(at_s, self._repeated_s + soon_s)
            if now_s < at_s:
                return None
            self._begin(now_s, asked=True)
            return "ask"
        if now_s < self._since_s + soon_s:
            return None
        said = bool(self._words)
        self._begin(now_s, asked=False)
        if not said:  # by who is away: then nobody owes an answer
            return None
        self._in_vain += 1
        self._wait_s = self._drawn()
        return "renew"

    def _begin(self, now_s: float, *, asked: bool) -> None:
        self._since_s, self._asked, self._repeated_s = now_s, asked, None
        if self._words:
            self._words.clear()

    def _drawn(self) -> float:
        wait_s = self._silence_s * 2.0 ** min(self._in_vain, 30) * self._uniform(1.0, 2.0)
        return min(wait_s, max(LONGEST_S, self._silence_s))
