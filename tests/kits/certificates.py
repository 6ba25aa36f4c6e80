"""Certificates signed by a test's own authority, as PEM files."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOUR = datetime.timedelta(hours=1)


def issue(folder, name, *, issuer=None, hosts=(), begins=-HOUR, ends=HOUR):
    """Return a key and a certificate (PEM) valid for this period; without `issuer`, a CA."""
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
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
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
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (folder / f"{name}.key").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    (folder / f"{name}.key").chmod(0o600)
    return key, subject


class Authority:
    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.cert_file = folder, folder / "ca.crt"
        self._issuer = issue(folder, "ca")

    def issue(self, name):
        """Return certificate and key for host `name`."""
        issue(self.folder, name, issuer=self._issuer, hosts=[name])
        return self.folder / f"{name}.crt", self.folder / f"{name}.key"

    @staticmethod
    def encrypt(key_file, password):
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        form = serialization.PrivateFormat.PKCS8
        hidden = serialization.BestAvailableEncryption(password)
        key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, hidden))
