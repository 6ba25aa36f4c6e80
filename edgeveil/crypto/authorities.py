"""Certificate authorities, one independent authority for each broker domain (X.509, P-256).

An authority certifies its domain's broker and clients. A certificate is for one of these two uses;
a client's common name is its user: a device's id, `cloud` or `proxy`. A client's serial numbers are
derived from its name, so that certificates can be revoked without a record of them.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from edgeveil.errors import UsageError
from edgeveil.storage import read_private, write_durably

DAYS = 825  # limit of common TLS clients
AUTHORITY_DAYS = 3650
CRL_DAYS = 3650  # a broker rejects all clients once its list has expired
RENEWALS = 64  # certificates of one holder under one authority, revoked together
_SKEW = datetime.timedelta(hours=1)  # tolerance for clock drift
_P256 = ec.SECP256R1()

PublicKey = ec.EllipticCurvePublicKey


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(_P256)


def key_pem(
    key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey, passphrase: bytes | None = None
) -> bytes:
    """Return PKCS#8 in PEM, encrypted if a passphrase is given."""
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase is not None:
        how = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Authority:
    """Signs certificates and the revocation list."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, name: str, *, days: int = AUTHORITY_DAYS) -> Authority:
        key, subject = new_key(), _name(name)
        certificate = (
            _builder(subject, subject, key.public_key(), x509.random_serial_number(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: Path, key: Path, passphrase: bytes | None = None) -> Authority:
        """Load two PEM files. Raises UsageError if damaged, or for a wrong passphrase."""
        raw = read_private(key, "private key", UsageError)
        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
            secret = serialization.load_pem_private_key(raw, passphrase)
        except (ValueError, TypeError):
            raise _damaged(key.parent) from None
        kind = ec.EllipticCurvePrivateKey
        if not isinstance(secret, kind) or secret.public_key() != found.public_key():
            raise _damaged(key.parent)
        return cls(found, secret)

    def save(self, certificate: Path, key: Path, passphrase: bytes | None = None) -> None:
        write_durably(certificate, certificate_pem(self.certificate), mode=0o644)
        write_durably(key, key_pem(self.key, passphrase), mode=0o600)

    @property
    def expired(self) -> bool:
        return self.certificate.not_valid_after_utc <= datetime.datetime.now(datetime.UTC)

    def server(
        self, name: str, key: PublicKey, hosts: Sequence[str], *, days: int = DAYS
    ) -> x509.Certificate:
        """Certify a broker with these DNS names and IP addresses."""
        named = x509.SubjectAlternativeName([_host(host) for host in hosts])
        serial = x509.random_serial_number()
        builder = self._leaf(name, key, serial, days, ExtendedKeyUsageOID.SERVER_AUTH)
        return builder.add_extension(named, critical=False).sign(self.key, hashes.SHA256())

    def client(
        self, name: str, key: PublicKey, *, issue: int = 0, days: int = DAYS
    ) -> x509.Certificate:
        """Certify the user `name`. Raises UsageError if `issue` reaches RENEWALS."""
        if not 0 <= issue < RENEWALS:
            fix = "rotate the authority"
            raise UsageError(f"has had {RENEWALS} certificates", where=name, fix=fix)
        serial = serial_number(name, issue)
        builder = self._leaf(name, key, serial, days, ExtendedKeyUsageOID.CLIENT_AUTH)
        return builder.sign(self.key, hashes.SHA256())

    def revocations(self, names: Iterable[str]) -> bytes:
        """Return the signed list (PEM) of all certificates of these names, up to RENEWALS each."""
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - _SKEW)
            .next_update(now + datetime.timedelta(days=CRL_DAYS))
        )
        revoked = x509.RevokedCertificateBuilder().revocation_date(now - _SKEW)
        for name in names:
            for issue in range(RENEWALS):
                one = revoked.serial_number(serial_number(name, issue)).build()
                builder = builder.add_revoked_certificate(one)
        signed = builder.sign(self.key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def _leaf(
        self, name: str, key: PublicKey, serial: int, days: int, use: x509.ObjectIdentifier
    ) -> x509.CertificateBuilder:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            _builder(_name(name), self.certificate.subject, key, serial, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(issuer, critical=False)
        )


def serial_number(name: str, issue: int) -> int:
    """Return a client's serial number: 159 bits, the last 6 are `issue` (RFC 5280, 4.1.2.2)."""
    digest = hashlib.sha256(f"edgeveil certificate {name}".encode()).digest()
    return (1 << 158) | (int.from_bytes(digest[:19], "big") << 6) | issue


def make_certificates(folder: Path, hosts: list[str], domains: Iterable[str]) -> None:
    """Write CA and broker certificates and keys per domain; an unexpired CA is reused."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for domain in domains:
        certificate, key = folder / f"{domain}-ca.crt", folder / f"{domain}-ca.key"
        kept = certificate.exists() and key.exists()
        authority = Authority.load(certificate, key) if kept else None
        if authority is None or authority.expired:
            authority = Authority.make(f"EdgeVeil {domain} authority", days=DAYS)
            authority.save(certificate, key)
        secret = new_key()
        shown = authority.server(f"broker-{domain}", secret.public_key(), hosts)
        write_durably(folder / f"broker-{domain}.crt", certificate_pem(shown), mode=0o644)
        write_durably(folder / f"broker-{domain}.key", key_pem(secret), mode=0o600)


def _damaged(folder: Path) -> UsageError:
    what = "the authority's key or certificate is damaged, or the passphrase is another"
    fix = "put back both, or remove both: then every client needs the new certificate"
    return UsageError(what, where=str(folder), fix=fix)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: PublicKey, serial: int, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(serial)
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
