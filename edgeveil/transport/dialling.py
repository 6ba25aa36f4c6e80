"""Reaching a broker: dialling, TLS, and in words why a broker cannot be used.

Dialling (DNS, TCP, TLS) blocks: it runs in a thread, and is given up after a time. Whatever goes
wrong on the way to a working connection is one `BrokerError` that says what, where and the fix.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from edgeveil.errors import BrokerError
from edgeveil.storage import open_to_others
from edgeveil.transport.link import BrokerAddress

_DIALLERS = ThreadPoolExecutor(max_workers=16, thread_name_prefix="edgeveil-dial")


async def dial_in_thread(
    dial: Callable[[], None],
    abandon: Callable[[], None],
    address: BrokerAddress,
    timeout_s: float,
) -> None:
    """Run `dial`; where nobody waits for it any more, `abandon` follows its end in the thread.

    Raises BrokerError that says what went wrong, also when it took longer than `timeout_s`.
    """
    job = _DIALLERS.submit(dial)
    try:
        await asyncio.wait_for(asyncio.wrap_future(job), timeout_s)
    except BaseException as error:
        job.add_done_callback(lambda _: abandon())
        if isinstance(error, (OSError, ValueError, TimeoutError)):
            raise dial_fault(error, address) from None
        raise


# --- TLS ------------------------------------------------------------------------------------


def client_context(
    ca_file: Path | None, cert_file: Path | None, key_file: Path | None
) -> ssl.SSLContext:
    """A context that checks the broker's certificate and name, with our own certificate if given.

    The system's roots or one CA; TLS 1.2 or newer. Raises BrokerError when a file is missing, is
    not what it should be, or holds a private key that others may read.
    """
    for path in (ca_file, cert_file, key_file):
        if path is not None and not Path(path).is_file():
            raise BrokerError("this TLS file does not exist", where=str(path), fix="check the path")
    _refuse_open_key(key_file or cert_file)
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise BrokerError(
            "no CA certificate can be read from this file",
            where=str(ca_file),
            fix="give a PEM file",
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if cert_file is not None:
        try:
            context.load_cert_chain(cert_file, key_file)
        except ssl.SSLError:
            raise BrokerError(
                "the client certificate and its key do not fit together",
                where=str(cert_file),
                fix="give the certificate's own unencrypted key as key_file",
            ) from None
    return context


def _refuse_open_key(path: Path | None) -> None:
    """BrokerError where others may read a private key; without key_file, cert_file holds it."""
    if path is None:
        return
    with Path(path).open("rb") as file:
        open_to_all = open_to_others(file.fileno())
    if open_to_all:
        raise BrokerError(
            "other users of this machine may read this private key",
            where=str(path),
            fix=f"chmod 600 {path}",
        )


# --- why a broker cannot be used, in words --------------------------------------------------

UNSUPPORTED_PROTOCOL = 132

_X509_HOSTNAME_MISMATCH = 62
_X509_IP_MISMATCH = 64
_X509_UNTRUSTED = (18, 19, 20, 21)  # self-signed, or no issuer found

# CONNACK reason codes of MQTT 5; the client library maps those of 3.1.1 onto them.
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
    unknown = (f"the broker refused the connection (reason {code})", "look at the broker's log")
    what, fix = _REFUSALS.get(code, unknown)
    return BrokerError(what, where=str(address), fix=fix)


def silence(address: BrokerAddress, timeout_s: float) -> BrokerError:
    """The error for a port that accepts and then says nothing."""
    return BrokerError(
        f"no answer to MQTT within {timeout_s:.0f} s",
        where=str(address),
        fix=f"check that this is an MQTT broker; {_other_scheme(address)}",
    )


def hung_up(address: BrokerAddress) -> BrokerError:
    """The error for a connection that ends before the broker answered."""
    return BrokerError(
        "the broker closed the connection without an answer",
        where=str(address),
        fix=f"{_other_scheme(address)}; a broker may also demand a client certificate, "
        "or another MQTT version",
    )


def subscription_refused(topic: str, address: BrokerAddress) -> BrokerError:
    """The error for a subscription that the broker's access list forbids."""
    return BrokerError(
        f"the broker refuses the subscription to {topic}",
        where=str(address),
        fix="check the broker's access list for this user",
    )


def dial_fault(error: BaseException, address: BrokerAddress) -> BrokerError:
    """The error for what went wrong in TCP or TLS."""
    what, fix = _explain(error, address)
    return BrokerError(what, where=str(address), fix=fix)


def _explain(error: BaseException, address: BrokerAddress) -> tuple[str, str]:
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(error, address)
    if isinstance(error, ssl.SSLError):
        return (
            f"TLS failed: {error.reason or 'the broker hung up'}",
            _other_scheme(address) + ", and that certificate and key are the right ones",
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
        return (
            f"the broker's certificate is not for '{address.host}'",
            "use the name in the certificate, or issue one for this name",
        )
    if error.verify_code in _X509_UNTRUSTED:
        return (
            "the broker's certificate is not signed by the trusted CA",
            "set ca_file to the CA that signed it",
        )
    return f"the broker's certificate is refused: {error.verify_message}", "renew the certificate"


def _other_scheme(address: BrokerAddress) -> str:
    if address.tls:
        return "check that this port speaks TLS, else use mqtt://"
    return "check that this port speaks plain MQTT, else use mqtts://"
