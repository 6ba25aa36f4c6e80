"""Reaching a broker: dialling in a thread, WebSockets, TLS, and why a broker cannot be used.

Whatever goes wrong on the way to a working connection is one `BrokerError`.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import http.client
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.config.addresses import BrokerAddress, HttpProxy
from edgeveil.errors import BrokerError
from edgeveil.storage import open_to_others
from edgeveil.transport.mqtt_packets import MQTT_5

if TYPE_CHECKING:
    from websockets.client import ClientProtocol

SUBPROTOCOL = "mqtt"
_READ_BYTES = 65536
_FRAME_BYTES = 1 << 18  # of ours; so a large packet is not held twice
_OUTGOING_BYTES = 4 * _FRAME_BYTES
_LEAST_LIMIT_BYTES = 1 << 20  # of theirs; a broker may put several packets into one frame
_DIALLERS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="edgeveil-dial")


async def dial_in_thread(
    dial: Callable[[], None], abandon: Callable[[], None], address: BrokerAddress, timeout_s: float
) -> None:
    """Run `dial`; `abandon` follows where nobody waits any more. Raises BrokerError."""
    try:
        job = _DIALLERS.submit(dial)
    except RuntimeError as error:  # no thread can be started: as a broker that cannot be reached
        fix = "raise the limit of tasks (TasksMax, --pids-limit) or of memory"
        raise BrokerError(str(error), where=str(address), fix=fix) from error
    try:
        await asyncio.wait_for(asyncio.wrap_future(job), timeout_s)
    except BaseException as error:
        job.add_done_callback(lambda _: abandon())
        if isinstance(error, (OSError, ValueError, TimeoutError)):
            raise dial_fault(error, address) from None
        raise


def open_stream(
    address: BrokerAddress,
    proxy: HttpProxy | None,
    context: ssl.SSLContext | None,
    packet_bytes: int,
    timeout_s: float,
) -> socket.socket | WebSocketStream:
    """Connect, blocking, as the address says. Raises BrokerError for the proxy, else OSError."""
    deadline_s = time.monotonic() + timeout_s
    if proxy:
        sock = _tunnel(address, proxy, timeout_s)
    else:
        sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
    try:
        with suppress(OSError):  # without it, two-way traffic crawls (Nagle and delayed ACK)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=address.host)
        if address.path is None:
            return sock
        left_s = max(0.1, deadline_s - time.monotonic())
        return WebSocketStream.open(sock, address.url, packet_bytes, left_s)
    except BaseException:
        sock.close()
        raise


def _tunnel(address: BrokerAddress, proxy: HttpProxy, timeout_s: float) -> socket.socket:
    """A connection to the broker that an HTTP proxy made for us (RFC 9110, CONNECT)."""
    headers = {}
    if proxy.username is not None:
        pair = f"{proxy.username}:{proxy.password or ''}".encode()
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair).decode("ascii")
    host = f"[{address.host}]" if ":" in address.host else address.host
    connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=timeout_s)
    connection.set_tunnel(host, address.port, headers)
    try:
        connection.connect()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        what, fix = _explain_proxy(error)
        raise BrokerError(f"{what}, on the way to {address}", where=str(proxy), fix=fix) from None
    return connection.sock


def _explain_proxy(error: Exception) -> tuple[str, str]:
    status = str(error).partition("Tunnel connection failed: ")[2]
    if status.startswith("407"):
        fix = "check the user in http_proxy, and http_proxy_password_file"
        return "the HTTP proxy wants another user name or password", fix
    if status:
        fix = "let the proxy open tunnels to this host and port, or use a port that it allows (443)"
        return f"the HTTP proxy refuses the tunnel (HTTP {status[:3]})", fix
    refused = isinstance(error, ConnectionRefusedError)
    if not refused and isinstance(error, (ConnectionError, http.client.HTTPException)):
        return "what listens there is no HTTP proxy", "check the port in http_proxy"
    return f"the HTTP proxy cannot be reached ({error})", "check http_proxy, network and firewall"


# --- MQTT over WebSockets ---------------------------------------------------------------------


class WebSocketRefused(ConnectionError):  # noqa: N818 - an outcome
    """The other side is no WebSocket server for MQTT at this path; the text says why."""


class WebSocketStream:
    """What an MQTT client and an event loop use of a socket; bytes in and out are MQTT's.

    Until all bytes of a frame are sent, `send` raises BlockingIOError and must be called again
    with the same bytes, as for a TLS socket.
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
        """Shake hands, blocking. Raises WebSocketRefused, TimeoutError, OSError."""
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
        return self._sock.fileno()

    def setblocking(self, flag: bool) -> None:
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


# --- TLS ------------------------------------------------------------------------------------


def client_context(
    ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> ssl.SSLContext:
    """A context for TLS 1.2 or newer that checks the broker. Raises BrokerError for its files."""
    for path in (ca_file, cert_file, key_file):
        if path is not None and not Path(path).is_file():
            raise BrokerError("this TLS file does not exist", where=str(path), fix="check the path")
    if private := key_file or cert_file:  # without key_file, cert_file holds the key
        with Path(private).open("rb") as file:
            if open_to_others(file.fileno()):
                what = "other users of this machine may read this private key"
                raise BrokerError(what, where=str(private), fix=f"chmod 600 {private}")
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        what = "no CA certificate can be read from this file"
        raise BrokerError(what, where=str(ca_file), fix="give a PEM file") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, key_file)
        except ssl.SSLError:
            what = "the client certificate and its key do not fit together"
            fix = "give the certificate's own unencrypted key as key_file"
            raise BrokerError(what, where=str(cert_file), fix=fix) from None
    return context


# --- why a broker cannot be used, in words --------------------------------------------------

UNSUPPORTED_PROTOCOL = 132

_X509_NOT_YET_VALID, _X509_EXPIRED = 9, 10
_X509_HOSTNAME_MISMATCH = 62
_X509_IP_MISMATCH = 64
# Alerts: bad is also what is not yet valid by the broker's clock.
_REFUSED_AT_THE_BROKER = (
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
)
_X509_UNTRUSTED = (18, 19, 20, 21)  # self-signed, or no issuer found

# CONNACK reason codes of MQTT 5; the client library maps those of 3.1.1 onto them.
_REFUSALS_OF_311 = {1: UNSUPPORTED_PROTOCOL, 2: 133, 3: 136, 4: 134, 5: 135}
_REFUSALS = {
    UNSUPPORTED_PROTOCOL: (
        "the broker speaks neither MQTT 5 nor MQTT 3.1.1",
        "check that this port is an MQTT broker",
    ),
    133: ("the broker refuses the client id", "give every process its own client id"),
    134: ("wrong user name or password", "check username and password_file"),
    135: (
        "wrong user name or password, or the user may not connect",
        "check username and password_file, and the broker's list of users",
    ),
    136: ("the broker is not available", "look at the broker's log; try again later"),
    137: ("the broker is busy", "try again later, or raise the broker's limits"),
    138: ("this client is banned", "ask the broker's operator"),
    151: ("the broker's quota is used up", "raise the broker's limits"),
    159: ("the broker refuses this rate of connections", "try again later"),
}


def refusal(code: int, address: BrokerAddress) -> BrokerError:
    """The error for a CONNACK with this reason code."""
    what, fix = _refusal(code)
    return BrokerError(what, where=str(address), fix=fix)


def refusal_words(code: int, protocol: int) -> str:
    """Why, in words, a CONNACK of MQTT 5 or 4 (3.1.1) has this code."""
    return _refusal(code if protocol == MQTT_5 else _REFUSALS_OF_311.get(code, code))[0]


def _refusal(code: int) -> tuple[str, str]:
    unknown = (f"the broker refused the connection (reason {code})", "look at the broker's log")
    return _REFUSALS.get(code, unknown)


def hung_up(address: BrokerAddress, cert_file: Path | None = None) -> BrokerError:
    """The error where no answer came; with `cert_file`, that was probably not taken."""
    if cert_file is not None:
        from cryptography import x509  # not a part of dialling itself

        shown = x509.load_pem_x509_certificate(Path(cert_file).read_bytes())
        begins, ends = shown.not_valid_before_utc, shown.not_valid_after_utc
        now = datetime.datetime.now(datetime.UTC)
        fix = f"ask who keeps the site for a new bundle ({cert_file})"
        why = "may be revoked, of an authority that the broker lacks, or early or late by its clock"
        if begins > now:
            why, fix = f"is not yet valid, but from {begins:%Y-%m-%d %H:%M} UTC on", _clock()
        elif ends <= now:
            why, fix = "has ended", f"if that is wrong, {_clock()}; else {fix}"
        what = f"the broker hung up on our certificate, which holds until {ends:%Y-%m-%d}: it {why}"
        return BrokerError(what, where=str(address), fix=fix)
    what = "the broker closed the connection without an answer"
    fix = "a broker may also demand a client certificate, or another MQTT version"
    return BrokerError(what, where=str(address), fix=f"{_other_scheme(address)}; {fix}")


_WAIT = "wait: a cluster does so while it is short of a node; else look at the broker's log"
_FAULTS = {
    "silence": (
        "no answer to MQTT within {timeout_s:.0f} s",
        "check that this is an MQTT broker; {other_scheme}",
    ),
    # It refuses MQTT 5 in words and MQTT 3.1.1 without any.
    "not_ready": ("an MQTT broker answers, but takes no connections yet", _WAIT),
    "no_longer": ("the broker took connections before and takes none now", _WAIT),
    "no_suback": (
        "the broker took the connection and left our topics without an answer for "
        "{timeout_s:.0f} s",
        _WAIT,
    ),
    "hung_up_on_topics": (
        "the broker took the connection and ended it when asked for our topics",
        "check the broker's access list; a cluster that is short of a node does so too",
    ),
    "subscription_refused": (
        "the broker refuses the subscription to {topic}",
        "check the broker's access list for this user; a cluster short of a node refuses some too",
    ),
}


def fault(
    kind: str, address: BrokerAddress, timeout_s: float = 0.0, topic: str = ""
) -> BrokerError:
    """The error for a connection that was made and is of no use: a key of `_FAULTS`."""
    known = {"timeout_s": timeout_s, "topic": topic, "other_scheme": _other_scheme(address)}
    what, fix = _FAULTS[kind]
    return BrokerError(what.format(**known), where=str(address), fix=fix.format(**known))


def none_works(faults: Sequence[BrokerError]) -> BrokerError:
    """The error for a list of addresses; it names each, and why it cannot be used."""
    if len(faults) == 1:
        return faults[0]
    told = "; ".join(f"{fault.where}: {fault.what} ({fault.fix})" for fault in faults)
    what = f"none of the {len(faults)} addresses can be used: {told}"
    fix = "at least one of the broker's addresses has to work"
    return BrokerError(what, fix=fix)


def dial_fault(error: BaseException, address: BrokerAddress) -> BrokerError:
    """The error for what went wrong in TCP or TLS."""
    what, fix = _explain(error, address)
    return BrokerError(what, where=str(address), fix=fix)


def _explain(error: BaseException, address: BrokerAddress) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error, address)
    if isinstance(error, ssl.SSLError) and error.reason in _REFUSED_AT_THE_BROKER:
        fix = (
            "renew it where it has ended; else set the clock of the broker's machine, and see that "
        )
        fix += "the broker trusts who issued it"
        return f"the broker refuses this party's certificate ({error.reason})", fix
    if isinstance(error, ssl.SSLError):
        fix = f"{_other_scheme(address)}, and that certificate and key are the right ones"
        return f"TLS failed: {error.reason or 'the broker hung up'}", fix
    if isinstance(error, WebSocketRefused):
        return f"what listens there {error}", f"check the path in the url; {_other_scheme(address)}"
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved", "check the name in the broker's url"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens on this port", "start the broker, or check the port"
    if isinstance(error, ConnectionError):
        return "the broker hung up during the handshake", _other_scheme(address)
    if isinstance(error, TimeoutError):
        hint = f"; {_other_scheme(address)}" if address.tls else ""
        return "the host does not answer", "check address, network and firewall" + hint
    if isinstance(error, OSError):
        return f"unreachable: {error.strerror or error}", "check address, network and firewall"
    return f"the connection failed: {type(error).__name__}", "look at the broker's log"


def _untrusted(error: ssl.SSLCertVerificationError, address: BrokerAddress) -> tuple[str, str]:
    if error.verify_code in (_X509_HOSTNAME_MISMATCH, _X509_IP_MISMATCH):
        fix = "use the name in the certificate, or issue one for this name"
        return f"the broker's certificate is not for '{address.host}'", fix
    if error.verify_code in _X509_UNTRUSTED:
        what = "the broker's certificate is not signed by the trusted CA"
        return what, "set ca_file to the CA that signed it"
    fix = clock_advice(error) or "renew the certificate"
    return f"the broker's certificate is refused: {error.verify_message}", fix


def clock_advice(error: ssl.SSLCertVerificationError) -> str:
    """What to do where a certificate does not hold at this machine's time; "" for other faults."""
    if error.verify_code not in (_X509_NOT_YET_VALID, _X509_EXPIRED):
        return ""
    if error.verify_code == _X509_NOT_YET_VALID:
        return _clock()
    return f"if that is wrong, {_clock()}; else renew the certificate"


def _clock() -> str:
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"set this machine's clock, which says {now} UTC"


def _other_scheme(address: BrokerAddress) -> str:
    plain, secure = ("mqtt", "mqtts") if address.path is None else ("ws", "wss")
    if address.tls:
        return f"check that this port speaks TLS, else use {plain}://"
    spoken = "MQTT" if address.path is None else "HTTP"
    return f"check that this port speaks plain {spoken}, else use {secure}://"
