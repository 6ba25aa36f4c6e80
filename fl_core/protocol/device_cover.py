"""Cover traffic on a device: who answers, and at which moment."""

from __future__ import annotations

from fl_core.protocol.messages import Cover, Manifest


class Covering:
    """As the proxy asked last. Nothing is kept: it says so again after each hello."""

    def __init__(self) -> None:
        self._window_s = self._span_s = self._begun_s = 0.0

    @property
    def on(self) -> bool:
        """Every round is answered, by dummies where there is nothing to say."""
        return self._window_s > 0

    def asked(self, cover: Cover) -> None:
        """From the next round on, uploads leave within this window."""
        self._window_s = cover.window_s

    def begin(self, manifest: Manifest, now_s: float) -> None:
        """A round's package is here: its window opens, of at most half of the round."""
        self._begun_s = now_s
        self._span_s = min(self._window_s, manifest.deadline_s / 2)

    def wait_s(self, leave_at: float, now_s: float) -> float:
        """How long an answer waits, with `leave_at` in [0, 1) drawn by chance.

        The first half of the window is for work, so that its length does not show: answers leave
        in the second half, or in what is left of it.
        """
        gone_s = now_s - self._begun_s
        from_s = max(self._span_s / 2, gone_s)
        return max(0.0, from_s + leave_at * (self._span_s - from_s) - gone_s)
