"""Whether the device is there for rounds: coarse in time, so that it tells little of its owner.

Once in every interval, at a random moment in it, the conditions are looked at, and the device comes
or goes by what is found then. The proxy sees no change sooner, no two within one interval, and no
moment that the owner chose. Records have no part in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from edgeveil.protocol import effects as fx

PRESENCE_INTERVAL_S = 900.0  # in each at most one coming or going, at a random moment

Look = Callable[[], list[str]]


class Presence:
    """Comes and goes for one machine.

    look    the conditions that do not hold now; called in a thread
    post    gives the machine an event
    moment  a number in [0, 1), the injected chance
    """

    def __init__(
        self,
        look: Look,
        post: Callable[[fx.Event], None],
        moment: Callable[[], float],
        interval_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._look, self._post, self._moment = look, post, moment
        self._interval_s, self._sleep = interval_s, sleep
        self.paused = False  # by the owner's word: no condition, but it counts as one
        self.unmet: tuple[str, ...] = ()  # what did not hold when it was looked at last
        self._here = True  # as a machine begins

    async def settle(self) -> None:
        """Look at once: before the device is connected nobody can see when."""
        self.unmet = tuple(await asyncio.to_thread(self._look))
        here = not (self.paused or self.unmet)
        if here != self._here:
            self._here = here
            self._post(fx.Command("come" if here else "leave"))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            before_s = self._moment() * self._interval_s
            await self._sleep(before_s)
            await self.settle()
            await self._sleep(self._interval_s - before_s)
