"""MQTT over WebSockets: a socket that speaks them outside and the bare byte stream inside.

The `websockets` library makes and reads the frames without a socket or thread of its own, so that
one loop can watch such a connection like any other. It is loaded by those alone who need it.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from websockets.client import ClientProtocol

SUBPROTOCOL = "mqtt"
_READ_BYTES = 65536
_FRAME_BYTES = 1 << 18  # of ours; so a large packet is not held twice
_OUTGOING_BYTES = 4 * _FRAME_BYTES
_LEAST_LIMIT_BYTES = 1 << 20  # of theirs; a broker may put several packets into one frame


class WebSocketRefused(ConnectionError):  # noqa: N818 - an outcome
    """The other side is no WebSocket server for MQTT at this path; the text says why."""


class WebSocketStream:
    """Has of a socket what an MQTT client and an event loop use; bytes in and out are MQTT's.

    A frame counts as sent once all of its bytes are: until then `send` raises BlockingIOError and
    must be called again with the same bytes, as for a TLS socket.
    """

    def __init__(self, sock: socket.socket, protocol: ClientProtocol) -> None:
        self._sock, self._protocol = sock, protocol
        self._received = bytearray()
        self._outgoing = bytearray()
        self._framed_bytes = 0  # of the caller, in the frame that is under way
        self._ended = False

    @classmethod
    def open(
        cls, sock: socket.socket, url: str, packet_bytes: int, timeout_s: float
    ) -> WebSocketStream:
        """Shake hands on a connected socket, blocking, within the time.

        Frames above 1 MiB and `packet_bytes` end the connection by their length alone. Raises
        WebSocketRefused, TimeoutError, OSError.
        """
        from websockets.client import ClientProtocol
        from websockets.exceptions import InvalidStatus
        from websockets.typing import Subprotocol
        from websockets.uri import parse_uri

        protocol = ClientProtocol(
            parse_uri(url),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            max_size=max(_LEAST_LIMIT_BYTES, packet_bytes),
        )
        protocol.send_request(protocol.connect())
        deadline_s = time.monotonic() + timeout_s
        sock.settimeout(timeout_s)
        sock.sendall(b"".join(protocol.data_to_send()))
        while protocol.state.name == "CONNECTING" and protocol.handshake_exc is None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            sock.settimeout(left_s)
            data = sock.recv(_READ_BYTES)
            if not data:
                raise WebSocketRefused("hung up during the WebSocket handshake")
            protocol.receive_data(data)
        if isinstance(protocol.handshake_exc, InvalidStatus):
            status = protocol.handshake_exc.response.status_code
            raise WebSocketRefused(f"answered HTTP {status} to the WebSocket handshake")
        if protocol.handshake_exc is not None:
            raise WebSocketRefused("gave no valid answer to the WebSocket handshake")
        if protocol.subprotocol != SUBPROTOCOL:
            raise WebSocketRefused("speaks WebSockets, but not MQTT over them")
        stream = cls(sock, protocol)
        stream._take_events()  # frames may have come with the answer
        return stream

    def recv(self, most_bytes: int) -> bytes:
        """At most so many bytes; none at the end. Raises BlockingIOError, ssl.SSLWantReadError."""
        if not self._received and not self._ended:
            data = self._sock.recv(_READ_BYTES)
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            self._take_events()
            self._flush()
            if not self._received and not self._ended:
                raise BlockingIOError  # so that a peer who only pings does not hold the loop
        taken = bytes(self._received[:most_bytes])
        del self._received[:most_bytes]
        return taken

    def send(self, data: bytes | bytearray) -> int:
        """Send some of it; how much. Raises BlockingIOError while the frame is under way."""
        if self._ended:
            raise ConnectionResetError("the WebSocket is closed")
        if not self._framed_bytes:
            chunk = bytes(data[:_FRAME_BYTES])
            self._protocol.send_binary(chunk)
            self._framed_bytes = len(chunk)
        if not self._flush():
            raise BlockingIOError
        sent, self._framed_bytes = self._framed_bytes, 0
        return sent

    def pending(self) -> int:
        """Bytes that can be read although the socket may announce none."""
        of_tls = self._sock.pending() if isinstance(self._sock, ssl.SSLSocket) else 0
        return len(self._received) + of_tls

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
        """Of the socket."""
        self._sock.setblocking(flag)

    def close(self) -> None:
        """Close the socket, with a closing frame where there is room for it."""
        if not self._ended and self._protocol.state.name == "OPEN":
            self._protocol.send_close()
            with suppress(OSError):
                self._flush()
        self._ended = True
        self._sock.close()

    def _take_events(self) -> None:
        from websockets.frames import DATA_OPCODES, Frame

        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in DATA_OPCODES:
                self._received += event.data
        if self._protocol.state.name != "OPEN":
            self._ended = True

    def _flush(self) -> bool:
        """Send what waits; whether all of it went."""
        self._outgoing += b"".join(self._protocol.data_to_send())
        if len(self._outgoing) > _OUTGOING_BYTES:
            raise ConnectionResetError("the other side asks for answers and does not read them")
        while self._outgoing:
            try:
                sent = self._sock.send(self._outgoing)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return False
            del self._outgoing[:sent]
        return True
