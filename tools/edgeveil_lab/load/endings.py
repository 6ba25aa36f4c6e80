"""How a load test ends early: Ctrl-C, SIGTERM, a terminal that hung up."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from edgeveil.errors import EdgeVeilError
from edgeveil_lab.load.connections import on_fast_loop

HUNG_UP = "the terminal hung up (SIGHUP)"
ENDING = [signal.SIGINT, signal.SIGTERM]
if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
    ENDING.append(signal.SIGHUP)

_TERMINALS = [fd for fd in (1, 2) if os.isatty(fd)]


def _why(number: int) -> str:
    """The reason that this signal ends a test for; a terminal that is gone is left."""
    if number != signal.SIGHUP:
        return "interrupted"
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in _TERMINALS:  # writing there would fail from now on
        os.dup2(nowhere, fd)
    os.close(nowhere)
    return HUNG_UP


def interrupt(number: int, _frame: object) -> None:
    """A signal's handler: raises KeyboardInterrupt with the reason."""
    raise KeyboardInterrupt(_why(number))


@contextmanager
def deferred(numbers: Sequence[signal.Signals]) -> Iterator[None]:
    """What comes meanwhile is taken up afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tell_hang_up(stop: KeyboardInterrupt) -> None:
    """Say on stderr, a log perhaps, that nobody pressed Ctrl-C."""
    if HUNG_UP in stop.args:
        print(f"edgeveil: loadtest: {HUNG_UP}; all was ended", file=sys.stderr, flush=True)


def until_stopped(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Run it on a loop of its own; Ctrl-C and SIGTERM end it in good order.

    Returns what ended it early: an EdgeVeilError, or a KeyboardInterrupt with the reason. The
    signals are ignored from then on.
    """
    failure: list[BaseException] = []

    async def body() -> int:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()

        def end(number: int) -> None:
            task.cancel(_why(number))

        for number in ENDING:
            loop.add_signal_handler(number, end, number)
        try:
            await task
        except asyncio.CancelledError as stop:
            failure.append(KeyboardInterrupt(str(stop) or _why(signal.SIGINT)))
        except EdgeVeilError as error:
            failure.append(error)
        return 0

    try:
        on_fast_loop(body())
    except KeyboardInterrupt as stop:  # once more, while the loop was closing
        failure.append(stop)
    for number in ENDING:  # the loop left them at their defaults
        signal.signal(number, signal.SIG_IGN)
    return failure[0] if failure else None
