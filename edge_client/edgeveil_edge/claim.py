"""Enrolment of a new box by a one-time claim, and renewal of its broker certificate."""

from __future__ import annotations

import asyncio
import datetime
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edgeveil.claim import ClaimAnswer, ClaimError, ClaimRequest, claim_key, claimed_key_id
from edgeveil.config.edge import EdgeSite
from edgeveil.crypto.authorities import key_pem, new_key
from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import BrokerError, CryptoError, SystemFault, UsageError
from edgeveil.storage import write_durably
from edgeveil.transport.link import Topics
from edgeveil.transport.mqtt_link import MqttLink, link_settings
from edgeveil.transport.process import OwnFolder
from edgeveil.trust.bundle import StoredTrust
from edgeveil.trust.trusted_keys import trusted_keys
from edgeveil_edge.identity import DeviceIdentity

ANSWER_S = 10.0
AGAIN_S = 15.0
_RENEW = datetime.timedelta(days=7)


TlsFiles = tuple[Path, Path]  # a certificate and its key


def is_unclaimed(site: EdgeSite) -> bool:
    certificate = site.broker.cert_file
    return site.claim is not None and certificate is not None and not certificate.exists()


async def take_up_claim(site: EdgeSite) -> str:
    """Claim until admitted; return the device id. Raises ClaimError, SystemFault, UsageError."""
    use, certificate, key_file = site.claim, site.broker.cert_file, site.broker.key_file
    if use is None or certificate is None or key_file is None:
        fix = "add claim, broker.cert_file and broker.key_file to its site file"
        raise UsageError("has no claim to use", where=site.name, fix=fix)
    folder = OwnFolder(site.state_dir)
    try:
        claim = _claim(use.claim_file)
        identity = DeviceIdentity.load_or_create(site.state_dir)
        image = (use.cert_file, use.key_file)
        await _certified(site, image, (certificate, key_file), identity, claim)
        use.claim_file.unlink(missing_ok=True)
        return identity.device_id
    finally:
        folder.release()


def due(site: EdgeSite, now: datetime.datetime) -> tuple[bool, bool]:
    """Return (renewal is due, the certificate expires soon) for a claim's certificate."""
    path = site.broker.cert_file
    if site.claim is None or path is None:
        return False, False
    try:
        shown = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return False, False  # the link reports it
    begins, ends = shown.not_valid_before_utc, shown.not_valid_after_utc
    soon = ends - now < (ends - begins) / 3
    return soon or now - begins > _RENEW, soon


async def renew(site: EdgeSite, identity: DeviceIdentity) -> None:
    """Replace the device's certificate. Raises ClaimError, BrokerError or CryptoError."""
    if site.claim is None or site.broker.cert_file is None or site.broker.key_file is None:
        return
    files = (site.broker.cert_file, site.broker.key_file)
    try:
        await _certified(site, files, files, identity, identity.signing)
    except BrokerError:  # the broker may reject the device's own; the image's is still valid
        image = (site.claim.cert_file, site.claim.key_file)
        await _certified(site, image, files, identity, identity.signing)


async def _certified(
    site: EdgeSite, shown: TlsFiles, files: TlsFiles, identity: DeviceIdentity, signing: SigningKey
) -> None:
    """Request a certificate, `shown` to the broker, until granted; store it in `files`."""
    certificate, key_file = files
    key = _tls_key(key_file)
    point = key.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    request = ClaimRequest.make(signing, identity.enrolment(), point).to_bytes()
    answer = await _asked(site, shown, request, identity.device_id)
    _check(answer.certificate, key, identity.device_id)
    write_durably(certificate, answer.certificate.encode(), mode=0o644)


async def _asked(site: EdgeSite, shown: TlsFiles, request: bytes, device_id: str) -> ClaimAnswer:
    proxy = _proxy_key(site)
    received: asyncio.Queue[bytes] = asyncio.Queue(maxsize=64)

    def on_message(_topic: str, payload: bytes) -> None:
        if not received.full():
            received.put_nowait(payload)

    broker = site.broker.model_copy(update=dict(zip(("cert_file", "key_file"), shown, strict=True)))
    settings = link_settings(broker, f"claim-{device_id}", site.limits.packet_bytes)
    topics = Topics(site.cell)
    own = shown[0] == site.broker.cert_file  # identifies the device to the broker
    asks_at = [
        topics.renewal(device_id) if own else topics.claim(claimed_key_id(request)),
        topics.claims_of_before,  # for a proxy of the previous version
    ]
    link = MqttLink(settings, on_message=on_message)
    link.subscribe([topics.claims_down])
    await link.connect_or_raise()
    running = asyncio.ensure_future(link.run_forever())
    try:
        while True:
            answer = ClaimAnswer(device_id, "waiting", "nobody answers")
            for topic in asks_at:
                with suppress(TimeoutError, BrokerError):
                    await link.publish(topic, request)
                    answer = await asyncio.wait_for(_answer(received, proxy, device_id), ANSWER_S)
                    break
            if answer.verdict == "admitted":
                return answer
            if answer.verdict == "refused":
                fix = "get a new claim from the proxy's operator"
                raise ClaimError(answer.why, where=site.name, fix=fix)
            print(f"{site.name}: waiting to be admitted: {answer.why}", flush=True)
            await asyncio.sleep(AGAIN_S * (0.5 + secrets.randbelow(1000) / 1000))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await link.close()


async def _answer(received: asyncio.Queue[bytes], proxy: VerifyKey, device_id: str) -> ClaimAnswer:
    while True:
        try:
            answer = ClaimAnswer.from_bytes(await received.get(), proxy)
        except ClaimError:
            continue  # not the proxy's: any holder of the image's certificate may write here
        if answer.device_id == device_id:
            return answer


def _proxy_key(site: EdgeSite) -> VerifyKey:
    trust = StoredTrust(site.state_dir, site.trust_file) if site.trust_file else None
    found = trusted_keys(trust, proxy=site.proxy_key_file, cell=site.cell).proxy
    if found is None:
        fix = "get the newest trust.json from the keeper of the root"
        raise UsageError("the trust file names no valid proxy key", where=site.name, fix=fix)
    return found


def _claim(path: Path) -> SigningKey:
    where, fix = str(path), "put the text of `edgeveil proxy admit --claim` into this file"
    try:
        return claim_key(path.read_text("ascii"))
    except ClaimError as error:
        raise ClaimError(error.what, where=where, fix=error.fix) from None
    except UnicodeDecodeError:
        raise UsageError("holds no claim", where=where, fix=fix) from None
    except OSError:
        fix += "; of a box that used its claim, mount the disk that holds its certificate"
        raise SystemFault("the box's claim is missing", where=where, fix=fix) from None


def _tls_key(path: Path) -> ec.EllipticCurvePrivateKey:
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(path, key_pem(new_key()), mode=0o600)
    try:
        found = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        fix = "remove it; a new one is created"
        raise CryptoError("is no P-256 key", where=str(path), fix=fix)
    return found


def _check(pem: str, key: ec.EllipticCurvePrivateKey, device_id: str) -> None:
    try:
        shown = x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise ClaimError("the proxy sent no certificate", fix="see the proxy's log") from error
    names = [one.value for one in shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if shown.public_key() != key.public_key() or names != [device_id]:
        raise ClaimError("the proxy sent another's certificate", fix="see the proxy's log")
