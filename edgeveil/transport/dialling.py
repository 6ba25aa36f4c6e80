"""Connections to a broker: dialling in a thread, WebSockets, TLS, and explained errors.

Every failure on the way to a working connection is one `BrokerError`.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import http.client
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from edgeveil.config.addresses import BrokerAddress, HttpProxy
from edgeveil.errors import BrokerError
from edgeveil.storage import read_private

SUBPROTOCOL = "mqtt"
_LEAST_LIMIT_BYTES = 1 << 20  # of received frames, which may hold several packets
_FRAME_BYTES = 1 << 18  # MQTT's packets may span frames (MQTT 5, 6.0)
_DIALLERS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="edgeveil-dial")


async def connected_socket(
    address: BrokerAddress, proxy: HttpProxy | None, timeout_s: float
) -> socket.socket:
    """Open TCP to the broker, directly or through the proxy. Raises BrokerError, OSError."""

    def dial() -> socket.socket:
        if proxy:
            sock = _tunnel(address, proxy, timeout_s)
        else:
            sock = socket.create_connection((address.host, address.port), timeout=timeout_s)
        sock.setblocking(False)
        return sock

    def abandon(job: Future[socket.socket]) -> None:
        if not job.cancelled() and job.exception() is None:
            job.result().close()

    try:
        job = _DIALLERS.submit(dial)
    except RuntimeError as error:  # no thread can be started: treat as an unreachable broker
        fix = "raise the limit of tasks (TasksMax, --pids-limit) or of memory"
        raise BrokerError(str(error), where=str(address), fix=fix) from error
    try:
        return await asyncio.wrap_future(job)
    except asyncio.CancelledError:
        job.add_done_callback(abandon)
        raise


def _tunnel(address: BrokerAddress, proxy: HttpProxy, timeout_s: float) -> socket.socket:
    """Connect to the broker by an HTTP proxy's CONNECT (RFC 9110)."""
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
        return "the HTTP proxy refuses the user name or password", fix
    if status:
        fix = "allow tunnels to this host and port at the proxy, or use an allowed port (443)"
        return f"the HTTP proxy refuses the tunnel (HTTP {status[:3]})", fix
    refused = isinstance(error, ConnectionRefusedError)
    if not refused and isinstance(error, (ConnectionError, http.client.HTTPException)):
        return "the server at this address is no HTTP proxy", "check the port in http_proxy"
    return f"the HTTP proxy cannot be reached ({error})", "check http_proxy, network and firewall"


# --- MQTT over WebSockets ---------------------------------------------------------------------


class WebSocketRefused(ConnectionError):  # noqa: N818 - an outcome
    """The server is no WebSocket server for MQTT at this path; the text has the reason."""


class WebSocketFraming:
    """Converts MQTT bytes to and from WebSocket frames, without I/O."""

    def __init__(self, url: str, packet_bytes: int) -> None:
        from websockets.client import ClientProtocol
        from websockets.typing import Subprotocol
        from websockets.uri import parse_uri

        self._protocol = ClientProtocol(
            parse_uri(url),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            max_size=max(_LEAST_LIMIT_BYTES, packet_bytes),
        )
        self._protocol.send_request(self._protocol.connect())

    @property
    def is_open(self) -> bool:
        return self._protocol.state.name == "OPEN"

    def framed(self, data: bytes) -> bytes:
        """Return frames to send. Raises ConnectionError if the WebSocket is closed."""
        if not self.is_open:
            raise ConnectionResetError("the WebSocket is closed")
        for at in range(0, len(data), _FRAME_BYTES):
            self._protocol.send_binary(data[at : at + _FRAME_BYTES])
        return self.to_send()

    def closing(self) -> bytes:
        if self.is_open:
            self._protocol.send_close()
        return self.to_send()

    def to_send(self) -> bytes:
        """Return pending bytes: the handshake, or the answer to a ping or close."""
        return b"".join(self._protocol.data_to_send())

    def received(self, data: bytes) -> bytes:
        """Return the MQTT bytes of received data. Raises WebSocketRefused in the handshake."""
        from websockets.exceptions import InvalidStatus
        from websockets.frames import DATA_OPCODES, Frame

        self._protocol.receive_data(data)
        if isinstance(self._protocol.handshake_exc, InvalidStatus):
            status = self._protocol.handshake_exc.response.status_code
            raise WebSocketRefused(f"answered HTTP {status} to the WebSocket handshake")
        if self._protocol.handshake_exc is not None:
            raise WebSocketRefused("gave no valid answer to the WebSocket handshake")
        if self.is_open and self._protocol.subprotocol != SUBPROTOCOL:
            raise WebSocketRefused("speaks WebSockets, but not MQTT over them")
        frames = (one for one in self._protocol.events_received() if isinstance(one, Frame))
        return b"".join(frame.data for frame in frames if frame.opcode in DATA_OPCODES)


# --- TLS ------------------------------------------------------------------------------------


def client_context(
    ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or newer that verifies the broker. Raises BrokerError."""
    for path in (ca_file, cert_file, key_file):
        if path is not None and not Path(path).is_file():
            raise BrokerError("this TLS file does not exist", where=str(path), fix="check the path")
    if private := key_file or cert_file:  # without key_file, cert_file holds the key
        read_private(Path(private), "private key", BrokerError)
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


# --- errors of unusable brokers -------------------------------------------------------------

UNSUPPORTED_PROTOCOL = (1, 132)  # reason codes of MQTT 3.1.1 and MQTT 5

_X509_NOT_YET_VALID, _X509_EXPIRED = 9, 10
_X509_HOSTNAME_MISMATCH = 62
_X509_IP_MISMATCH = 64
# Alerts; BAD_CERTIFICATE includes one that is not yet valid by the broker's clock.
_REFUSED_AT_THE_BROKER = (
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
)
_X509_UNTRUSTED = (18, 19, 20, 21)  # self-signed, or no issuer found

# CONNACK reason codes of MQTT 5, and those of 3.1.1 that mean the same.
_REFUSALS_OF_311 = {1: 132, 2: 133, 3: 136, 4: 134, 5: 135}
_REFUSALS = {
    132: (
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
    138: ("this client is banned", "contact the broker's operator"),
    151: ("the broker's quota is used up", "raise the broker's limits"),
    159: ("the broker refuses this rate of connections", "try again later"),
}


def refusal(code: int, address: BrokerAddress | None = None) -> BrokerError:
    unknown = (f"the broker refused the connection (reason {code})", "look at the broker's log")
    what, fix = _REFUSALS.get(_REFUSALS_OF_311.get(code, code), unknown)
    return BrokerError(what, where=str(address or ""), fix=fix)


def hung_up(address: BrokerAddress, cert_file: Path | None = None) -> BrokerError:
    """Return the error for no answer; with `cert_file`, that was probably rejected."""
    if cert_file is not None:
        from cryptography import x509  # loaded for this error only

        shown = x509.load_pem_x509_certificate(Path(cert_file).read_bytes())
        begins, ends = shown.not_valid_before_utc, shown.not_valid_after_utc
        now = datetime.datetime.now(datetime.UTC)
        fix = f"get a new bundle from the site's operator ({cert_file})"
        why = "may be revoked, of an authority that the broker lacks, or early or late by its clock"
        if begins > now:
            why, fix = f"is not yet valid, but from {begins:%Y-%m-%d %H:%M} UTC on", _clock()
        elif ends <= now:
            why, fix = "has ended", f"if that is wrong, {_clock()}; else {fix}"
        what = (
            f"the broker hung up on our certificate, which is valid until {ends:%Y-%m-%d}: it {why}"
        )
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
    # The broker refused MQTT 5 with a code and MQTT 3.1.1 without an answer.
    "not_ready": ("an MQTT broker answers, but does not accept connections yet", _WAIT),
    "no_longer": ("the broker accepted connections before and accepts none now", _WAIT),
    "no_suback": (
        "the broker took the connection and left our topics without an answer for "
        "{timeout_s:.0f} s",
        _WAIT,
    ),
    "hung_up_on_topics": (
        "the broker closed the connection at the subscription to our topics",
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
    """Return the error for a useless connection; `kind` is a key of `_FAULTS`."""
    known = {"timeout_s": timeout_s, "topic": topic, "other_scheme": _other_scheme(address)}
    what, fix = _FAULTS[kind]
    return BrokerError(what.format(**known), where=str(address), fix=fix.format(**known))


def none_works(faults: Sequence[BrokerError]) -> BrokerError:
    if len(faults) == 1:
        return faults[0]
    listed = "; ".join(f"{fault.where}: {fault.what} ({fault.fix})" for fault in faults)
    what = f"none of the {len(faults)} addresses can be used: {listed}"
    fix = "at least one of the broker's addresses has to work"
    return BrokerError(what, fix=fix)


def dial_fault(error: BaseException, address: BrokerAddress) -> BrokerError:
    what, fix = _explain(error, address)
    return BrokerError(what, where=str(address), fix=fix)


def _explain(error: BaseException, address: BrokerAddress) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error, address)
    if isinstance(error, ssl.SSLError) and error.reason in _REFUSED_AT_THE_BROKER:
        fix = (
            "renew it where it has ended; else set the clock of the broker's machine, and see that "
        )
        fix += "the broker trusts its issuer"
        return f"the broker refuses this party's certificate ({error.reason})", fix
    if isinstance(error, ssl.SSLError):
        fix = f"{_other_scheme(address)}, and that certificate and key are the right ones"
        return f"TLS failed: {error.reason or 'the broker hung up'}", fix
    if isinstance(error, WebSocketRefused):
        return (
            f"the server at this address {error}",
            f"check the path in the url; {_other_scheme(address)}",
        )
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
    """Return the fix if a certificate is invalid at this machine's time, else ""."""
    if error.verify_code not in (_X509_NOT_YET_VALID, _X509_EXPIRED):
        return ""
    if error.verify_code == _X509_NOT_YET_VALID:
        return _clock()
    return f"if that is wrong, {_clock()}; else renew the certificate"


def _clock() -> str:
    now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    return f"set this machine's clock, now {now} UTC"


def _other_scheme(address: BrokerAddress) -> str:
    plain, secure = ("mqtt", "mqtts") if address.path is None else ("ws", "wss")
    if address.tls:
        return f"check that this port speaks TLS, else use {plain}://"
    spoken = "MQTT" if address.path is None else "HTTP"
    return f"check that this port speaks plain {spoken}, else use {secure}://"
