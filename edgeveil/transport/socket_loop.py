"""Drives a client library from the asyncio loop: no thread, and no select() limit of 1024."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

_PACKETS_PER_WAKE = 32  # so that one busy link does not starve the others


class Steps(Protocol):
    """What the client does when its socket is ready, and every few seconds; 0 means success."""

    def loop_read(self) -> int:
        """Read at most a packet or two."""
        ...

    def loop_write(self) -> int:
        """Write what the socket takes."""
        ...

    def loop_misc(self) -> int:
        """Keep the connection alive."""
        ...


class SocketLoop:
    """Watches one socket from `attach` to `detach`.

    `on_end(reason)` is called when a step fails; `note_packet` must be called for each packet
    that was handled, so that a wake-up can go on while there is more to read.
    """

    def __init__(self, steps: Steps, on_end: Callable[[str], None], misc_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._steps, self._on_end, self._misc_s = steps, on_end, misc_s
        self._sock: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._packets, self._paused = 0, False

    @property
    def attached(self) -> bool:
        """Whether a socket is being watched."""
        return self._sock is not None

    def attach(self, sock: socket.socket, *, want_write: bool) -> None:
        """Watch `sock`."""
        self._sock = sock
        if not self._paused:
            self._loop.add_reader(sock, self._readable)
        if want_write:
            self._loop.add_writer(sock, self._writable)
        self._timer = self._loop.call_later(self._misc_s, self._misc)

    def detach(self) -> socket.socket | None:
        """Watch no more; the socket, for its owner to close."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
        if self._timer is not None:
            self._timer.cancel()
        return sock

    def note_packet(self) -> None:
        """One packet was handled."""
        self._packets += 1

    def want_write(self, sock: object, *, wanted: bool) -> None:
        """Wake up, or no longer, when `sock` takes bytes; another socket than ours is ignored."""
        if self._sock is None or self._sock is not sock:
            return
        if wanted:
            self._loop.add_writer(self._sock, self._writable)
        else:
            self._loop.remove_writer(self._sock)

    def pause(self) -> None:
        """Stop reading: TCP then holds the other side back."""
        self._paused = True
        if self._sock is not None:
            self._loop.remove_reader(self._sock)

    def resume(self) -> None:
        """Read again, if paused."""
        if not self._paused:
            return
        self._paused = False
        if self._sock is not None:
            self._loop.add_reader(self._sock, self._readable)
            self._loop.call_soon(self._readable)  # TLS may hold bytes that no event announces

    def _readable(self) -> None:
        for _ in range(_PACKETS_PER_WAKE):
            if self._sock is None or self._paused:
                return
            seen = self._packets
            self._step(self._steps.loop_read)
            if self._packets == seen:
                break
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            self._loop.call_soon(self._readable)

    def _writable(self) -> None:
        self._step(self._steps.loop_write)

    def _misc(self) -> None:
        self._step(self._steps.loop_misc)
        if self._sock is not None:
            self._timer = self._loop.call_later(self._misc_s, self._misc)

    def _step(self, step: Callable[[], int]) -> None:
        """A malformed packet ends the connection, never the process."""
        if self._sock is None:
            return
        try:
            result = step()
        except Exception as error:  # whatever the other side's bytes provoke
            self._on_end(f"malformed packet ({type(error).__name__})")
            return
        if result:
            self._on_end("connection lost")
