"""Bounds in both directions: what is sent and unacknowledged, what is received and unhandled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_MESSAGE_BYTES = 256  # what a message holds beside its payload, roughly
_OVERFULL = 4


class SendWindow:
    """Room for unacknowledged messages. First come, first served; one message always fits.

    `on_wait(True)` is called when the first begins to wait for room, `on_wait(False)` when
    nobody waits any more.
    """

    def __init__(
        self, messages: int, size_bytes: int, on_wait: Callable[[bool], None] = lambda _waits: None
    ) -> None:
        self._on_wait = on_wait
        self._free_messages, self._free_bytes = messages, size_bytes
        self._messages, self._bytes = messages, size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def messages(self) -> int:
        """How many messages are unacknowledged."""
        return self._messages - self._free_messages

    @property
    def size_bytes(self) -> int:
        """How much they hold."""
        return self._bytes - self._free_bytes

    async def acquire(self, size: int) -> None:
        """Wait for room for a message of `size` bytes and take it.

        Raises what `fail` was called with when that happens meanwhile.
        """
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        if len(self._waiting) == 1:
            self._on_wait(True)
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                if not self._waiting:
                    self._on_wait(False)
                self._serve()
            elif not turn.cancelled() and turn.exception() is None:
                self.release(size)  # cancelled after its turn had come
            raise

    def release(self, size: int) -> None:
        """Give the room of one message back."""
        self._free_messages += 1
        self._free_bytes += size
        if self.messages == 0:
            self._idle.set()
        self._serve()

    async def idle(self) -> None:
        """Wait until nothing is unacknowledged."""
        await self._idle.wait()

    def fail(self, error: Exception) -> None:
        """End every wait with `error`."""
        while self._waiting:
            _, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)
            if not self._waiting:
                self._on_wait(False)
        self._idle.set()

    def _fits(self, size: int) -> bool:
        enough = size <= self._free_bytes or self._free_bytes == self._bytes
        return self._free_messages > 0 and enough

    def _take(self, size: int) -> None:
        self._free_messages -= 1
        self._free_bytes -= size
        self._idle.clear()

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._take(size)
                turn.set_result(None)
            if not self._waiting:
                self._on_wait(False)


class Inbox:
    """Received messages in order. `pause()` is called when full, `resume()` when half empty.

    Messages are taken when full too (see `Intake`); `overfull` is where that must end.
    """

    def __init__(
        self, size_bytes: int, pause: Callable[[], None], resume: Callable[[], None]
    ) -> None:
        self._messages: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self._limit, self._held, self._paused = size_bytes, 0, False
        self._pause, self._resume = pause, resume

    def put(self, topic: str, payload: bytes) -> None:
        """Add one message; never waits, so that it may run inside the client's callback."""
        self._messages.put_nowait((topic, payload))
        self._held += len(payload) + _MESSAGE_BYTES
        if not self._paused and self._held >= self._limit:
            self._paused = True
            self._pause()

    async def get(self) -> tuple[str, bytes]:
        """The oldest message."""
        topic, payload = await self._messages.get()
        self._held -= len(payload) + _MESSAGE_BYTES
        if self._paused and self._held <= self._limit // 2:
            self._paused = False
            self._resume()
        return topic, payload

    @property
    def paused(self) -> bool:
        """Whether no more should be read from the socket."""
        return self._paused

    @property
    def overfull(self) -> bool:
        """Whether it holds more than four times its limit."""
        return self._held > _OVERFULL * self._limit


class Intake:
    """Whether a socket is read, and when the broker hears that a message was taken.

    Held back, the socket is not read, unless an answer is awaited: that comes by the same socket,
    and whoever waits for it may be the one to make room. Messages that this brings in are
    acknowledged only when the holding back ends, so that a broker which keeps to its limit of
    unacknowledged messages sends no more of them.
    """

    def __init__(
        self,
        pause: Callable[[], None],
        resume: Callable[[], None],
        acknowledge: Callable[[int], None],
    ) -> None:
        self._pause, self._resume, self._acknowledge = pause, resume, acknowledge
        self._held_back, self._awaited = False, 0
        self._taken: deque[int] = deque()

    def hold_back(self, wanted: bool) -> None:
        """Begin or end the holding back."""
        self._held_back = wanted
        self._decide()
        self._tell()

    def await_answer(self, awaited: bool) -> None:
        """One more answer is awaited, or one less."""
        self._awaited += 1 if awaited else -1
        self._decide()

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """An answer is awaited inside the block."""
        self.await_answer(True)
        try:
            yield
        finally:
            self.await_answer(False)

    def took(self, number: int) -> None:
        """The message of this number was taken."""
        self._taken.append(number)
        if not self._held_back:
            self._tell()

    def _decide(self) -> None:
        if self._held_back and not self._awaited:
            self._pause()
        else:
            self._resume()

    def _tell(self) -> None:
        while self._taken and not self._held_back:
            self._acknowledge(self._taken.popleft())
