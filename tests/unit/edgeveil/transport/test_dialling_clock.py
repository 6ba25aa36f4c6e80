"""A certificate that is refused for its time: the clock is named, and only else the certificate."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgeveil.errors import UsageError
from edgeveil.protocol.effects import WorkFailed
from edgeveil.protocol.transfer import FetchBeside, describe
from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport import dialling
from edgeveil.transport.blob_client import BlobClient
from edgeveil_tools.cloud_client import Cloud

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


@contextmanager
def refused(path: Path) -> Iterator[str]:
    """The URL of a server that shows this certificate once, and sees the handshake fail."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(path)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            theirs, _ = listening.accept()
            with theirs, pytest.raises((ssl.SSLError, OSError)):
                server.wrap_socket(theirs, server_side=True)

        serving = threading.Thread(target=serve)
        serving.start()
        yield f"https://localhost:{listening.getsockname()[1]}"
        serving.join()


def test_a_command_that_asks_the_cloud_names_the_clock_too(tmp_path: Path) -> None:
    path = certificate(tmp_path, DAY, 2 * DAY)
    (tmp_path / "token").write_text("t" * 43)
    (tmp_path / "token").chmod(0o600)
    with refused(path) as url, pytest.raises(UsageError, match="not yet valid") as caught:
        Cloud(url, tmp_path / "token", ca_file=path).list()
    assert "set this machine's clock" in caught.value.fix


@pytest.mark.parametrize(("begins", "ends"), [(-2, -1), (1, 2)])
def test_whoever_goes_to_a_store_of_blobs_names_it_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, begins: int, ends: int
) -> None:
    path = certificate(tmp_path, begins * DAY, ends * DAY)
    client, blob = BlobClient(path), describe(b"x", 65024)
    with refused(path) as url, closing(client):
        found = client.carry(FetchBeside(blob, f"{url}/b/x", 20.0))
    assert found == WorkFailed("untrusted_store")
    (line,) = caplog.records
    assert line.levelname == "WARNING" and "set this machine's clock" in line.fix


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(("begins", "ends"), [(-2, -1), (1, 2)])
def test_a_broker_that_refuses_ours_for_its_time_leaves_clock_and_renewal(
    tmp_path: Path, version: ssl.TLSVersion, begins: int, ends: int
) -> None:
    good, own = tmp_path / "good", tmp_path / "own"
    good.mkdir()
    own.mkdir()
    theirs_path, path = certificate(good, -DAY, DAY), certificate(own, begins * DAY, ends * DAY)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(theirs_path)
    server.load_verify_locations(path)
    server.verify_mode = ssl.CERT_REQUIRED
    server.maximum_version = version
    client = ssl.create_default_context(cafile=str(theirs_path))
    client.load_cert_chain(path)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs, pytest.raises((ssl.SSLError, OSError)):
            server.wrap_socket(theirs, server_side=True)

    serving = threading.Thread(target=serve)
    serving.start()
    with ours, pytest.raises(ssl.SSLError) as caught:
        client.wrap_socket(ours, server_hostname="localhost").recv(1)
    serving.join()
    said = dialling.dial_fault(caught.value, BrokerAddress.parse("mqtts://localhost:8883"))
    assert "clock of the broker" in said.fix and "renew" in said.fix and "mqtt://" not in said.fix


@pytest.mark.parametrize(
    ("begins", "ends", "clock"), [(DAY, 2 * DAY, 0), (-2 * DAY, -DAY, 20), (-DAY, DAY, None)]
)
def test_a_broker_that_hangs_up_on_ours_leaves_the_clock_where_its_time_does_not_hold(
    tmp_path: Path, begins: datetime.timedelta, ends: datetime.timedelta, clock: int | None
) -> None:
    path = certificate(tmp_path, begins, ends)
    found = dialling.hung_up(BrokerAddress.parse("mqtts://localhost:8883"), path)
    at = found.fix.find("set this machine's clock")
    assert at == (-1 if clock is None else at) and (clock is None or 0 <= at <= clock)
    assert ("bundle" in found.fix) is (clock != 0)
