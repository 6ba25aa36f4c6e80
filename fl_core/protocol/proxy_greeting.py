"""How devices come: at a bounded pace, and told when to come again if they are many."""

from __future__ import annotations

import hashlib

from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.messages import Cover, Here, Later, Note, Signed
from fl_core.protocol.proxy_tasks import ProxyParts

_DELAY_STEP_S = 0.1  # delays are rounded, so that one signed note serves many devices
_LATEST_S = 600.0
_EACH_HELLOS, _EACH_S = 5, 10.0  # of one device: a sound one comes, is asked once, and tries again


class HelloRate:
    """So many hellos a second are heard; each one more is given the next free moment."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._most = per_s, max(1.0, per_s)
        self._room = self._most  # hellos that may come now: a second's worth at most
        self._seen_s = self._next_s = 0.0

    def free(self, now_s: float) -> bool:
        """Whether one more may be heard now."""
        self._room = min(self._most, self._room + (now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        return self._room >= 1

    def heard(self) -> None:
        """One was."""
        self._room -= 1

    def delay_s(self, now_s: float) -> float:
        """When one that cannot be heard should come again."""
        self._next_s = max(self._next_s, now_s + 1) + 1 / self._per_s
        return min(self._next_s - now_s, _LATEST_S)


class Greeting:
    """What devices hear when they, or the proxy, come."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self.rate = HelloRate(parts.settings.hellos_per_s)
        self._later: dict[int, Note] = {}
        self._each: dict[str, tuple[float, int]] = {}  # of admitted devices: since when, how many
        self._cover = parts.signer.note(Cover(parts.settings.cover_window_s))

    def here(self) -> list[fx.Effect]:
        """The proxy has come: all are asked for a hello, at a pace that it can hear."""
        settings = self._parts.settings
        enrolled = len(self._parts.registry.roster()[1]) // 32
        spread_s = max(settings.hello_spread_s, min(enrolled / settings.hellos_per_s, _LATEST_S))
        here = self._parts.signer.note(Here(spread_s))
        return [fx.Send(fx.AllDevices(), note) for note in (self._cover, here)]

    def later(self, device: str, now_s: float) -> list[fx.Effect]:
        """The same hello again, later."""
        steps = round(self.rate.delay_s(now_s) / _DELAY_STEP_S)
        if steps not in self._later:
            self._later[steps] = self._parts.signer.note(Later(steps * _DELAY_STEP_S))
        return [fx.Send(fx.Device(device), self._later[steps])]

    def heard(self, device: str, hello: Signed, now_s: float) -> list[fx.Effect]:
        """A hello that is the device's own.

        Raises ProtocolError `hello_too_often`: one device must not take the others' place.
        """
        since_s, count = self._each.get(device, (now_s, 0))
        if now_s - since_s >= _EACH_S:
            since_s, count = now_s, 0
        if count >= _EACH_HELLOS:
            raise ProtocolError("hello_too_often")
        self._each[device] = since_s, count + 1
        self.rate.heard()
        ack = self._parts.ack(hashlib.sha256(hello.payload).digest(), "held")
        notes = [ack, self._cover] if self._parts.settings.cover_window_s else [ack]
        return [fx.Send(fx.Device(device), note) for note in notes]
