"""Bounds in both directions: what is sent and unacknowledged, what is received and unhandled."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

_MESSAGE_BYTES = 256  # what a message holds beside its payload, roughly


class Window:
    """Room for unacknowledged messages. First come, first served; one message always fits."""

    def __init__(self, messages: int, size_bytes: int) -> None:
        self._free_messages, self._free_bytes = messages, size_bytes
        self._messages, self._bytes = messages, size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def messages(self) -> int:
        """How many messages are unacknowledged."""
        return self._messages - self._free_messages

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
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
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


class Inbox:
    """Received messages in order. `pause()` is called when full, `resume()` when half empty."""

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
