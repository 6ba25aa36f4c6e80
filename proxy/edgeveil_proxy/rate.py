"""How often one device may speak; what is beyond that is dropped before anything is verified."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Message, Part

BURST_S = 2.0  # a device that was silent may say at once what it may say in this time


class DeviceRate:
    """Counts a device's messages. Parts of a device that is `asked` for some are not counted.

    Of each device it remembers one number, and only while it speaks: until when its messages so
    far last at `per_s` a second. Devices send again by their timers, so a dropped message costs
    them time alone.
    """

    def __init__(
        self,
        per_s: float,
        devices: int,
        asked: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._each_s, self._devices = 1.0 / per_s, devices
        self._asked, self._clock = asked, clock
        self._until_s: dict[str, float] = {}

    def allows(self, sender: fx.Address, message: Message) -> bool:
        """Whether to take this message."""
        if not isinstance(sender, fx.DeviceAddress):
            return True
        if isinstance(message, Part) and self._asked(sender.id):
            return True
        now_s = self._clock()
        until_s = max(now_s, self._until_s.get(sender.id, now_s)) + self._each_s
        if until_s - now_s > max(BURST_S, self._each_s):
            return False
        if len(self._until_s) >= self._devices and sender.id not in self._until_s:
            self._forget(now_s)
        self._until_s[sender.id] = until_s
        return True

    def _forget(self, now_s: float) -> None:
        """Those who have been silent; if there are none, all: no table grows without end."""
        self._until_s = {d: t for d, t in self._until_s.items() if t > now_s}
        if len(self._until_s) >= self._devices:
            self._until_s.clear()
