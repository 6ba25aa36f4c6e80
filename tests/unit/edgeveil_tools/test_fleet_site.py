"""From plan to bundles, again and again: what changes, what stays, and what is never kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from edgeveil.audit_log import AuditLogError
from edgeveil.config.site_files import load_site
from edgeveil.crypto.authorities import Authority, serial_number
from edgeveil.errors import CryptoError, UsageError
from edgeveil.trust.bundle import TrustBundle
from edgeveil_proxy.devices_file import read_devices
from edgeveil_tools.cli import main
from edgeveil_tools.site import bundles
from edgeveil_tools.site.bundles import Bundle, install
from tests.kits.earlier_code import earlier_code
from tests.kits.site_folders import (
    PowerFailure,
    contents,
    cut_after,
    opened,
    plan,
    planned,
    shown,
)

EVERYBODY = ["broker-edge", "broker-cloud", "cloud", "proxy", "box-0001", "box-0002", "box-0003"]


@pytest.fixture
def folder(tmp_path):
    return planned(tmp_path / "site")


def test_every_party_gets_a_whole_bundle_with_its_own_files_alone(folder):
    done = opened(folder).apply()
    assert [(one.what, one.name) for one in done] == [("new", name) for name in EVERYBODY]
    secrets = {}
    for name in EVERYBODY:
        bundle = folder / "bundles" / name
        inventory = Bundle.open(bundle).inventory
        assert (inventory.fleet, inventory.name) == ("site", name)
        load_site(bundle / "edgeveil.yaml")
        for path, content in contents(bundle).items():
            assert str(folder).encode() not in content, "no path of the site's own machine"
            if path.endswith(".key"):
                assert secrets.setdefault(content, name) == name, "nobody else's key"
                assert (bundle / path).stat().st_mode & 0o077 == 0
    for party in opened(folder).parties:
        if party.kind == "edge":
            certificate = shown(folder / "bundles" / party.name / "tls" / "edge.crt")
            assert certificate.subject.rfc4514_string() == f"CN={party.device_id}"
    elsewhere = {path: raw for path, raw in contents(folder).items() if "bundles/" not in path}
    assert not [path for path, raw in elsewhere.items() if any(s in raw for s in secrets)]


NEW_DEVICE = {"list": [{"name": "ward-7"}]}
CLAIMS = {"claims": {"admit": "at_once"}, "data": {"name": "own", "source": "digits"}}


@pytest.mark.parametrize(
    ("authentication", "changes", "others"),
    [
        ("certificates", {"devices": NEW_DEVICE}, {"proxy"}),
        ("passwords", {"devices": NEW_DEVICE}, {"proxy", "broker-edge"}),
        ("certificates", {"devices": CLAIMS}, {"proxy", "broker-edge"}),
        ("certificates", {"proxy": {"min_batch_floor": 5}}, {"proxy"}),
    ],
)
def test_the_difference_is_whole_before_anything_is_written(
    folder, authentication, changes, others
):
    plan(folder, authentication=authentication)
    opened(folder).apply()
    plan(folder, **changes)
    before = contents(folder)
    announced = [(one.what, one.name) for one in opened(folder).changes()]
    assert contents(folder) == before
    done = opened(folder).apply()
    assert announced == [(one.what, one.name) for one in done]
    assert others <= {one.name for one in done if one.what == "changed"}
    touched = {f"bundles/{one.name}" for one in done}
    after = contents(folder)
    changed = {path for path in after if after[path] != before.get(path) and "bundles/" in path}
    assert {"/".join(path.split("/")[:2]) for path in changed} == touched
    assert opened(folder).changes() == opened(folder).apply() == []


def test_bundles_that_were_handed_over_come_back_without_keys(folder, tmp_path):
    opened(folder).apply()
    place = tmp_path / "etc"
    install(folder / "bundles" / "box-0001", place)
    keys = {path: raw for path, raw in contents(place).items() if "state/" in path}
    shutil.rmtree(folder / "bundles")
    plan(folder, devices={"limits": {"jobs": 50}, "policy": {"lifetime_epsilon": 9}})
    opened(folder).apply()
    assert sorted(path.name for path in (folder / "bundles").iterdir()) == EVERYBODY[4:]
    assert not [path for path in contents(folder / "bundles") if path.endswith(".key")]
    install(folder / "bundles" / "box-0001", place)
    assert {path: raw for path, raw in contents(place).items() if "state/" in path} == keys
    site = load_site(place / "edgeveil.yaml")
    assert (site.limits.jobs, site.policy.lifetime_epsilon) == (50, 50)


def keys_of(folder):
    return {raw for path, raw in contents(folder).items() if path.endswith(".key")}


def write_half(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (os, "sync", 0),
        *((Path, "rename", n) for n in (0, 1)),
        *((bundles, "_write", n) for n in (0, 5, 30)),
    ],
)
def test_bundles_are_whole_wherever_an_apply_was_cut_short(
    folder, tmp_path, monkeypatch, owner, name, number, later
):
    if later:
        opened(folder).apply()
        plan(folder, edge_broker={"public": "other:8883"}, cloud_broker={"public": "other:8884"})
    before = keys_of(folder)
    half = write_half if name == "_write" else lambda *_: None
    with monkeypatch.context() as patch, pytest.raises(PowerFailure):
        patch.setattr(owner, name, cut_after(number, getattr(owner, name), half))
        opened(folder).apply()
    kept = keys_of(folder) if name == "sync" else before
    opened(folder).apply()
    assert kept <= keys_of(folder)
    for party in opened(folder).parties:
        made = folder / "bundles" / party.name
        assert Bundle.open(made).inventory.files == party.files
        install(made, tmp_path / "places" / party.name)
    assert sorted(path.name for path in (folder / "bundles").iterdir()) == sorted(EVERYBODY)
    trust = TrustBundle.load(folder / "trust" / "trust.json")
    assert TrustBundle.load(folder / "bundles" / "cloud" / "trust" / "trust.json") == trust
    tls = folder / "bundles" / "proxy" / "tls"
    authorities = {domain: (tls / f"{domain}-ca.crt").read_text() for domain in ("edge", "cloud")}
    assert trust.verified().delegated.authorities == authorities


def readable(folder):
    for path in (folder / "authorities").glob("*.key"):
        path.chmod(0o640)


SPOILT = {
    "no root": (lambda folder: (folder / "trust").rename(folder.parent / "away"), "apply"),
    "no record": (lambda folder: (folder / "record.json").unlink(), "apply"),
    "an authority's key that others may read": (readable, "revoke"),
    "a damaged log": (lambda folder: (folder / "audit.jsonl").write_text("{}\n"), "revoke"),
}


@pytest.mark.parametrize(("spoil", "act"), SPOILT.values(), ids=SPOILT)
def test_with_files_of_the_site_gone_or_damaged_nothing_is_changed(folder, spoil, act):
    opened(folder).apply()
    plan(folder, proxy={"min_batch_floor": 9})
    spoil(folder)
    before = contents(folder)
    with pytest.raises((UsageError, AuditLogError)):
        getattr(opened(folder), act)(*["box-0002"][: act == "revoke"])
    assert contents(folder) == before
    if (folder.parent / "away").exists():  # public metadata alone are enough to go on
        (folder / "trust").mkdir()
        shutil.copy(folder.parent / "away" / "trust.json", folder / "trust")
        assert [one.name for one in opened(folder).apply()] == ["proxy"]


def test_with_an_older_record_numbers_go_on_and_a_raised_least_batch_is_never_lowered(
    folder, tmp_path
):
    def floor_once_planned(floor):
        plan(folder, proxy={"min_batch_floor": floor})
        opened(folder).apply()
        install(folder / "bundles" / "proxy", tmp_path / "etc")
        return load_site(file).min_batch_floor

    file = tmp_path / "etc" / "edgeveil.yaml"
    opened(folder).apply()
    older = (folder / "record.json").read_bytes()
    assert floor_once_planned(4) == 4
    (folder / "record.json").write_bytes(older)
    assert floor_once_planned(5) == 5, "whose number is above that of the bundle before"
    file.write_text(file.read_text().replace("min_batch_floor: 5", "min_batch_floor: 7"))
    assert [floor_once_planned(floor) for floor in (6, 9)] == [7, 9]


def revoked_at(folder, serial):
    """Whether each list that the edge broker's bundle holds names this certificate."""
    end = b"-----END X509 CRL-----\n"
    lists = (folder / "bundles/broker-edge/tls/revoked.pem").read_bytes().split(end)[:-1]
    each = [x509.load_pem_x509_crl(one + end) for one in lists]
    return all(one.get_revoked_certificate_by_serial_number(serial) for one in each)


def test_who_is_revoked_stays_out_and_stays_known(folder):
    opened(folder).apply()
    done = opened(folder).revoke("box-0002")
    assert [(one.what, one.name) for one in done] == [
        ("revoked", "box-0002"),
        ("changed", "broker-edge"),
        ("changed", "proxy"),
    ]
    gone = next(party for party in opened(folder).parties if party.name == "box-0002")
    certificate = x509.load_pem_x509_certificate(gone.certificates["edge"].encode())
    for serial in (certificate.serial_number, serial_number(gone.device_id, 3)):
        assert revoked_at(folder, serial)
    listed = read_devices(folder / "bundles" / "proxy" / "devices.jsonl")
    assert [one.note for one in listed if one.revoked] == ["box-0002"] and len(listed) == 3
    assert opened(folder).apply() == []
    plan(folder, devices=CLAIMS)
    opened(folder).apply()
    opened(folder).revoke("0123456789abcdef")  # which came with a claim
    assert revoked_at(folder, serial_number("0123456789abcdef", 0))
    for name in (gone.device_id, "0123456789abcdef", "ward-7", "proxy"):
        with pytest.raises(UsageError):
            opened(folder).revoke(name)


def test_passwords_are_listed_for_a_broker_of_ours_until_revoked_or_for_anothers(folder, tmp_path):
    plan(folder, authentication="passwords")
    opened(folder).apply()
    users = folder / "bundles" / "broker-edge" / "passwords" / "users"
    assert len(users.read_text().splitlines()) == 4  # three devices and the proxy
    opened(folder).revoke("box-0002")
    assert len(users.read_text().splitlines()) == 3
    own, folder, url = folder, planned(tmp_path / "another"), "mqtts://x.example:8883"
    plan(folder, authentication="passwords")
    plan(folder, edge_broker={"listen": None, "public": None, "url": url})
    opened(folder).apply()
    assert not (folder / "bundles" / "broker-edge").exists()
    accounts = (folder / "accounts-edge.csv").read_text().splitlines()
    users = {line.partition(",")[0]: line.partition(",")[2] for line in accounts}
    box = load_site(folder / "bundles" / "box-0001" / "edgeveil.yaml")
    assert box.broker.url == url
    assert users[box.broker.username] == box.broker.password_file.read_text().strip()
    # The broker becomes an external one: accounts are listed once, while the bundles are here.
    plan(own, edge_broker={"listen": None, "public": None, "url": url})
    opened(own).apply()
    secret, accounts = own / "bundles/box-0001/passwords/edge", own / "accounts-edge.csv"
    assert f",{secret.read_text()}" in accounts.read_text()
    accounts.unlink()
    secret.unlink()
    assert {one.what for one in opened(own).apply()} == {"unplanned"}
    plan(own, edge_broker={"listen": None, "public": None, "url": "mqtts://y.example:8883"})
    with pytest.raises(UsageError, match="box-0001"):
        opened(own).apply()


def test_certificates_are_renewed_for_the_same_keys(folder):
    opened(folder).apply()
    tls = folder / "bundles" / "box-0001" / "tls"
    old, key = shown(tls / "edge.crt"), (tls / "edge.key").read_bytes()
    plan(folder, certificate_days=400, renew_days=398)
    announced = {(one.what, one.name) for one in opened(folder).changes()}
    assert announced == {("renewed", name) for name in EVERYBODY}
    opened(folder).apply()
    new = shown(tls / "edge.crt")
    assert new.public_key() == old.public_key()
    assert new.serial_number == old.serial_number + 1
    assert (tls / "edge.key").read_bytes() == key


def test_authorities_are_rotated_in_two_steps(folder):
    opened(folder).apply()
    bundles, place = folder / "bundles", folder.parent / "proxy"
    box, broker, proxy = (bundles / name / "tls" for name in ("box-0001", "broker-edge", "proxy"))
    first, server = (box / "edge-ca.crt").read_bytes(), shown(broker / "broker.crt")
    opened(folder).rotate_authority("edge")
    both = (box / "edge-ca.crt").read_bytes()
    assert both.endswith(first)
    new = x509.load_pem_x509_certificate(both)
    shown(box / "edge.crt").verify_directly_issued_by(new)
    assert shown(broker / "broker.crt") == server
    assert (broker / "revoked.pem").read_text().count("BEGIN") == 2
    with pytest.raises(UsageError):
        opened(folder).rotate_authority("edge")
    opened(folder).rotate_authority("edge", finish=True)
    assert (box / "edge-ca.crt").read_bytes() == both.removesuffix(first)
    shown(broker / "broker.crt").verify_directly_issued_by(new)
    for name, finish in (("edge", True), ("claims", False)):
        with pytest.raises(UsageError):
            opened(folder).rotate_authority(name, finish=finish)
    plan(folder, devices=CLAIMS)
    opened(folder).apply()
    first = (proxy / "claims-ca.crt").read_bytes()
    (key,) = proxy.glob("claims-ca-*.key")
    install(bundles / "proxy", place)
    opened(folder).rotate_authority("claims")
    install(bundles / "proxy", place)
    second = (place / "tls" / "claims-ca.crt").read_bytes()
    desk = load_site(place / "edgeveil.yaml").claims
    assert desk.authority_key_file.name != key.name
    Authority.load(desk.authority_cert_file, desk.authority_key_file)
    image = shown(bundles / "image/tls/claim.crt")
    image.verify_directly_issued_by(x509.load_pem_x509_certificate(second))
    clients = broker / "clients-ca.crt"
    assert first in clients.read_bytes() and second in clients.read_bytes()
    opened(folder).rotate_authority("claims", finish=True)
    assert first not in clients.read_bytes() and second in clients.read_bytes()


def test_a_site_is_worked_on_by_one_command_at_a_time_that_has_its_passphrase(folder):
    opened(folder, b"open").apply()
    plan(folder, proxy={"min_batch_floor": 5})
    before = contents(folder)
    with pytest.raises(CryptoError):
        opened(folder, b"wrong").apply()
    command = [sys.executable, "-m", "edgeveil_tools.cli", "site", "apply", folder]
    asked = {"stdin": subprocess.DEVNULL, "capture_output": True, "start_new_session": True}
    done = subprocess.run(command, text=True, **asked)
    assert done.returncode == UsageError.exit_code and "--passphrase-file" in done.stderr
    with opened(folder).alone():
        assert main(["site", "apply", str(folder), "--no-passphrase"]) == 2
    assert {path: raw for path, raw in contents(folder).items() if ".lock" not in path} == before
    assert main(["site", "status", str(folder)]) == main(["log", str(folder)]) == 0


def test_a_site_of_the_earlier_code_goes_on(tmp_path, folder):
    environ = earlier_code(tmp_path / "earlier", "4bc41794")
    words = [sys.executable, "-m", "edgeveil_tools.cli", "site", "apply", folder, "--no-passphrase"]
    subprocess.run(words, env=environ, cwd=tmp_path, check=True, capture_output=True)
    place = tmp_path / "place"
    install(folder / "bundles" / "box-0001", place)
    before = contents(place)
    shutil.rmtree(folder / "bundles")
    site = opened(folder)
    assert {one.what for one in site.apply()} <= {"changed"}  # keys that came and went since
    assert site.changes() == []
    plan(folder, devices={"count": 4})
    done = {one.name: one.what for one in site.apply()}
    shares = dict.fromkeys(("box-0001", "box-0002", "box-0003"), "changed")
    assert done == {"box-0004": "new", "proxy": "changed", **shares}
    site.rotate_authority("edge")
    install(folder / "bundles" / "box-0001", place)
    after = contents(place)
    assert before.keys() <= after.keys()
    kept = ("state/", "policy.yaml", "tls/edge.key", "trust/")
    for path in (one for one in after if one.startswith(kept)):
        assert after[path] == before[path]
    assert after["tls/edge.crt"] != before["tls/edge.crt"]
