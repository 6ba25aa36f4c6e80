"""Cover traffic on a device: who answers, and at which moment."""

from __future__ import annotations

from edgeveil.protocol.device_moment import Moment, moment
from edgeveil.protocol.messages import Cover, Manifest


class Covering:
    """As the proxy asked last. Nothing is kept: it says so after each hello and before each round.

    No message ends it, since an old one could be played again: it ends with the first round that
    comes on a new link without being asked for again there.
    """

    def __init__(self) -> None:
        self._window_s = self._span_s = self._begun_s = self._heard_s = 0.0
        self._said = False  # on this link

    @property
    def on(self) -> bool:
        """Every round is answered, by dummies where there is nothing to say."""
        return self._window_s > 0

    def connected(self) -> None:
        """The link is new: what was asked for on the old one goes no further than its round."""
        self._said = False

    def asked(self, cover: Cover) -> None:
        """From now on, uploads leave within this window."""
        self._window_s, self._said = cover.window_s, True

    def heard_of(self, now_s: float) -> None:
        """A round's manifest is here."""
        self._heard_s = now_s
        if not self._said:
            self._window_s = 0.0

    def begin(self, manifest: Manifest, now_s: float) -> None:
        """The package is here: the window opens, of at most half of what is left of the round."""
        left_s = max(0.0, manifest.deadline_s - (now_s - self._heard_s))
        self._begun_s, self._span_s = now_s, min(self._window_s, left_s / 2)

    def moment(self, budget_s: float, chance: float) -> Moment:
        """When an answer to the package at hand leaves, also where there is no cover."""
        return moment(self._begun_s, budget_s, self._span_s, chance)
