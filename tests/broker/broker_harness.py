"""Links, ears and certificates for these tests."""

import asyncio
import datetime
import ipaddress
from contextlib import asynccontextmanager

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil_tools.site.brokers import ListenerTls

PASSWORDS = {"proxy": "proxy-word", "cloud": "cloud-word", "ada": "ada-word", "bob": "bob-word"}
UP, DOWN, ALL = "edgeveil/v1/d/{}/up", "edgeveil/v1/d/{}/down", "edgeveil/v1/all/down"
WAIT_S = 10


class Ear:
    """Collects what a link hears and says."""

    def __init__(self):
        self.messages = asyncio.Queue()
        self.states = asyncio.Queue()

    def on_message(self, topic, payload):
        self.messages.put_nowait((topic, payload))

    def on_state(self, connected, reason):
        self.states.put_nowait((connected, reason))

    async def message(self):
        return await asyncio.wait_for(self.messages.get(), WAIT_S)

    async def state(self):
        return await asyncio.wait_for(self.states.get(), WAIT_S)


def make_link(broker, user, *, ear=None, client_id=None, **changes):
    ear = ear or Ear()
    settings = {"password": PASSWORDS.get(user), "username": user, "url": broker.url} | changes
    settings = LinkSettings(client_id=client_id or f"{user}-1", **settings)
    return MqttLink(settings, on_message=ear.on_message, on_state=ear.on_state)


@asynccontextmanager
async def linked(broker, user, topics=(), **changes):
    """A connected link and its ear."""
    ear = Ear()
    link = make_link(broker, user, ear=ear, **changes)
    await link.subscribe(list(topics))
    await link.connect_or_raise()
    try:
        yield link, ear
    finally:
        await link.close()


def issue(folder, name, *, issuer=None, hosts=()):
    """A key and a certificate as PEM files; without `issuer`, a CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    signer_key, signer_name = (key, subject) if issuer is None else issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if hosts:
        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if host[0].isdigit() else x509.DNSName(host)
            for host in hosts
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(signer_key, hashes.SHA256())
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    (folder / f"{name}.key").chmod(0o600)
    return key, subject


def listener_tls(folder, name="here", *, ca=False):
    return ListenerTls(
        folder / f"{name}.crt", folder / f"{name}.key", folder / "ca.crt" if ca else None
    )
