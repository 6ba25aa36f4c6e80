"""A bare client over WebSockets: its protocol's bytes in frames, without a task of its own.

`dial` connects in either way; the client inside sees a transport like any other.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport.dialling import SUBPROTOCOL, WebSocketRefused

_FRAME_LIMIT_BYTES = 1 << 20  # a broker may put several packets into one


async def dial(
    make: Callable[[], asyncio.Protocol],
    address: BrokerAddress,
    context: ssl.SSLContext | None,
    host: str = "",
) -> None:
    """Connect what `make` gives to the broker, at `host` where its name was resolved before.

    Raises OSError; WebSocketRefused where no MQTT is spoken at the address.
    """
    enveloped = address.path is not None
    loop = asyncio.get_running_loop()
    _, found = await loop.create_connection(
        (lambda: WebSocketEnvelope(make, address.url)) if enveloped else make,
        host or address.host,
        address.port,
        ssl=context,
        server_hostname=address.host if context else None,
    )
    if isinstance(found, WebSocketEnvelope):
        try:
            await found.opened
        except BaseException:
            found.abort()
            raise


class WebSocketEnvelope(asyncio.Protocol):
    """Shakes hands, then makes the protocol inside and hands bytes over both ways."""

    def __init__(self, make: Callable[[], asyncio.Protocol], url: str) -> None:
        from websockets.client import ClientProtocol
        from websockets.typing import Subprotocol
        from websockets.uri import parse_uri

        self._make = make
        self._frames = ClientProtocol(
            parse_uri(url), subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=_FRAME_LIMIT_BYTES
        )
        self._inside: asyncio.Protocol | None = None
        self._outside: asyncio.Transport | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def abort(self) -> None:
        """Break the connection."""
        if self._outside is not None:
            self._outside.abort()

    # --- asyncio's calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for WebSockets."""
        self._outside = cast(asyncio.Transport, transport)
        self._frames.send_request(self._frames.connect())
        self._flush()

    def data_received(self, data: bytes) -> None:
        """The answer to the handshake, and frames."""
        from websockets.frames import DATA_OPCODES, Frame

        if self._outside is None or self._outside.is_closing():
            return
        self._frames.receive_data(data)
        if self._inside is None and not self._shaken():
            return
        events = self._frames.events_received()
        self._flush()  # pongs
        for event in events:
            if isinstance(event, Frame) and event.opcode in DATA_OPCODES and self._inside:
                self._inside.data_received(bytes(event.data))
        if self._frames.state.name in ("CLOSING", "CLOSED"):
            self._outside.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Of either side."""
        self._refuse("hung up during the WebSocket handshake")
        if self._inside is not None:
            self._inside.connection_lost(exc)

    # --- the handshake ---

    def _shaken(self) -> bool:
        """Whether the protocol inside is there now."""
        from websockets.exceptions import InvalidStatus

        error = self._frames.handshake_exc
        if isinstance(error, InvalidStatus):
            status = error.response.status_code
            self._refuse(f"answered HTTP {status} to the WebSocket handshake")
        elif error is not None:
            self._refuse("gave no valid answer to the WebSocket handshake")
        elif self._frames.state.name == "CONNECTING" or self._outside is None:
            return False
        elif self._frames.subprotocol != SUBPROTOCOL:
            self._refuse("speaks WebSockets, but not MQTT over them")
        else:
            self._inside = self._make()
            if not self.opened.done():
                self.opened.set_result(None)
            self._inside.connection_made(_FramingTransport(self, self._outside))
            return True
        return False

    def _refuse(self, why: str) -> None:
        if not self.opened.done():
            self.opened.set_exception(WebSocketRefused(why))

    # --- what the protocol inside says ---

    def send(self, data: bytes) -> None:
        """One frame."""
        if self._frames.state.name == "OPEN":
            self._frames.send_binary(data)
            self._flush()

    def close(self) -> None:
        """Say goodbye and close."""
        if self._frames.state.name == "OPEN":
            self._frames.send_close()
            self._flush()
        if self._outside is not None:
            self._outside.close()

    def _flush(self) -> None:
        for piece in self._frames.data_to_send():
            if piece and self._outside is not None:
                self._outside.write(piece)


class _FramingTransport(asyncio.Transport):
    """Of the connection outside, but that what is written goes into frames."""

    def __init__(self, envelope: WebSocketEnvelope, outside: asyncio.Transport) -> None:
        super().__init__()
        self._envelope, self._outside = envelope, outside

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._outside.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._envelope.send(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self._envelope.send(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._outside.is_closing()

    def close(self) -> None:
        self._envelope.close()

    def abort(self) -> None:
        self._outside.abort()

    def pause_reading(self) -> None:
        self._outside.pause_reading()

    def resume_reading(self) -> None:
        self._outside.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._outside.get_write_buffer_size()
