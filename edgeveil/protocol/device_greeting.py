"""How a device says that it is there: until the proxy has heard it, and when it is asked."""

from __future__ import annotations

import hashlib

from edgeveil.protocol import effects as fx
from edgeveil.protocol.envelope import Signer
from edgeveil.protocol.messages import Hello, Here, Later
from edgeveil.protocol.pace import Pace
from edgeveil.protocol.tasks import Settings

UNHEARD_TRIES = 3  # after so many hellos without an answer the owner is told
LATER_CAP_S = 600.0  # a longer delay is not believed


class Greeting:
    """One timer, `hello`."""

    def __init__(self, signer: Signer, settings: Settings, pace: Pace) -> None:
        self._signer, self._settings, self._pace = signer, settings, pace
        self._tries = 0
        self._said = b""  # digest of the hello that is not acknowledged yet

    def begin(self) -> list[fx.Effect]:
        """The link is up (again)."""
        self._tries = 0
        return self.hello()

    def hello(self) -> list[fx.Effect]:
        """Say hello, and again, ever more slowly, until the proxy has heard it."""
        note = self._signer.note(Hello(self._signer.name))
        self._said = hashlib.sha256(note.body.payload).digest()
        settings = self._settings
        wait_s = self._pace.wait_s(settings.repair_s, self._tries, settings.waits_cap_s)
        self._tries += 1
        out: list[fx.Effect] = [fx.Send(fx.Proxy(), note), fx.SetTimer("hello", wait_s)]
        unheard = self._tries == UNHEARD_TRIES + 1
        return [*out, fx.Report("unheard", {"tries": UNHEARD_TRIES})] if unheard else out

    def asked(self, here: Here) -> list[fx.Effect]:
        """Come at a moment of one's own in the spread, so that a fleet does not come at once."""
        self._tries = 0
        moment = int(self._signer.name[:8], 16) / 2**32
        return [fx.SetTimer("hello", min(here.spread_s, LATER_CAP_S) * moment)]

    def put_off(self, later: Later) -> list[fx.Effect]:
        """The proxy has heard the hello and asks for it again, after the delay that it gave."""
        self._tries = 0
        return [fx.SetTimer("hello", min(later.delay_s, LATER_CAP_S))]

    def heard(self, digest: bytes) -> list[fx.Effect] | None:
        """The proxy acknowledged a note of this digest; None if it was not the hello."""
        if digest != self._said:
            return None
        self._said = b""
        return [fx.CancelTimer("hello")]
