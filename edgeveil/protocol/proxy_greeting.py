"""How devices come: at a bounded pace, and told when to come again if they are many."""

from __future__ import annotations

import hashlib

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Here, Later, Note, Signed
from edgeveil.protocol.proxy_tasks import ProxyParts

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

    def put_off_s(self, now_s: float) -> float:
        """For how long those who were put off may still be coming; 0 or less if they are not."""
        return min(self._next_s - now_s, _LATEST_S)


class Greeting:
    """What devices hear when they, or the proxy, come."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self.rate = HelloRate(parts.settings.hellos_per_s)
        self._later: dict[int, Note] = {}
        self._each: dict[str, tuple[float, int]] = {}  # of admitted devices: since when, how many

    def here(self) -> list[fx.Effect]:
        """The proxy has come: all are asked for a hello, at a pace that it can hear."""
        settings = self._parts.settings
        enrolled = len(self._parts.registry.roster()[1]) // 32
        spread_s = max(settings.hello_spread_s, min(enrolled / settings.hellos_per_s, _LATEST_S))
        here = fx.Send(fx.AllDevices(), self._parts.signer.note(Here(spread_s)))
        self._parts.all_came = False
        out = [*self._parts.cover(fx.AllDevices()), here]
        return [*out, fx.SetTimer("hellos", spread_s + settings.resend_s)]

    def spread_over(self, now_s: float) -> list[fx.Effect]:
        """The devices that were there have said so, unless some were told to come yet later."""
        left_s = self.rate.put_off_s(now_s)
        if left_s > 0:
            return [fx.SetTimer("hellos", left_s + self._parts.settings.resend_s)]
        self._parts.all_came = True
        return []

    def later(self, device: str, now_s: float) -> list[fx.Effect]:
        """The same hello again, later. Its signature is checked when it is heard.

        Raises ProtocolError `unknown_signer` or `hello_too_often`, and moves nobody's moment.
        """
        if self._parts.registry.verify_key(device) is None:
            raise ProtocolError("unknown_signer")
        self._count(device, now_s)
        steps = round(self.rate.delay_s(now_s) / _DELAY_STEP_S)
        if steps not in self._later:
            self._later[steps] = self._parts.signer.note(Later(steps * _DELAY_STEP_S))
        # Rounds are offered to all: it may hear of one, and answer it, before it is heard.
        to = fx.Device(device)
        return [*self._parts.cover(to), fx.Send(to, self._later[steps])]

    def heard(self, device: str, hello: Signed, now_s: float) -> list[fx.Effect]:
        """A hello that is the device's own.

        Raises ProtocolError `hello_too_often`: one device must not take the others' place.
        """
        self._count(device, now_s)
        self.rate.heard()
        ack = self._parts.ack(hashlib.sha256(hello.payload).digest(), "held")
        return [fx.Send(fx.Device(device), ack), *self._parts.cover(fx.Device(device))]

    def _count(self, device: str, now_s: float) -> None:
        since_s, count = self._each.get(device, (now_s, 0))
        if now_s - since_s >= _EACH_S:
            since_s, count = now_s, 0
        if count >= _EACH_HELLOS:
            raise ProtocolError("hello_too_often")
        self._each[device] = since_s, count + 1
