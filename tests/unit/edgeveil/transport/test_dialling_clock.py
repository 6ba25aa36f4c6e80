"""A certificate that is refused for its time: the clock is named, and only else the certificate."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport import dialling

DAY = datetime.timedelta(days=1)


def certificate(folder: Path, begins: datetime.timedelta, ends: datetime.timedelta) -> Path:
    """A self-signed one of localhost that is good between these, from now; its key beside it."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "broker.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def fault(path: Path) -> str:
    """What is told of a broker that shows this certificate, in a real handshake."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    client = ssl.create_default_context(cafile=str(path))
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, pytest.raises((ssl.SSLError, OSError)):
            server.wrap_socket(theirs, server_side=True)

    serving = threading.Thread(target=serve)
    serving.start()
    with ours, pytest.raises(ssl.SSLCertVerificationError) as caught:
        client.wrap_socket(ours, server_hostname="localhost")
    serving.join()
    return str(dialling.dial_fault(caught.value, BrokerAddress.parse("mqtts://localhost:8883")))


def test_not_yet_valid_is_the_clocks_matter(tmp_path: Path) -> None:
    said = fault(certificate(tmp_path, DAY, 2 * DAY))
    assert "not yet valid" in said and "set this machine's clock" in said
    assert datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d") in said
    assert "renew" not in said


def test_expired_names_the_clock_before_the_certificate(tmp_path: Path) -> None:
    said = fault(certificate(tmp_path, -2 * DAY, -DAY))
    assert said.index("set this machine's clock") < said.index("renew the certificate")
