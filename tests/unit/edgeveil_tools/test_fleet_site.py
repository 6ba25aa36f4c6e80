"""From plan to bundles, again and again: what changes, what stays, and what is never kept."""

import shutil
import subprocess
import sys

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
from tests.kits.site_folders import contents, opened, plan, planned, shown

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
    told = [(one.what, one.name) for one in opened(folder).changes()]
    assert contents(folder) == before
    done = opened(folder).apply()
    assert told == [(one.what, one.name) for one in done]
    assert others <= {name for what, name in told if what == "changed"}
    touched = {f"bundles/{one.name}" for one in done}
    after = contents(folder)
    changed = {path for path in after if after[path] != before.get(path) and "bundles/" in path}
    assert {"/".join(path.split("/")[:2]) for path in changed} == touched
    assert opened(folder).changes() == opened(folder).apply() == []
    if "proxy" in changes:
        assert done[0].difference == "-  min_batch_floor: 3\n+  min_batch_floor: 5"


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


def test_an_apply_that_was_cut_short_goes_on(folder, monkeypatch):
    def cut(*_args):
        raise KeyboardInterrupt

    site = opened(folder)
    with monkeypatch.context() as patch:
        patch.setattr("edgeveil_tools.site.fleet_site.os.sync", cut)
        with pytest.raises(KeyboardInterrupt):
            site.apply()
    identity = (folder / "bundles" / "box-0001" / "state" / "identity.key").read_bytes()
    trust = TrustBundle.load(folder / "trust" / "trust.json")
    assert {one.what for one in opened(folder).apply()} == {"new"}
    assert (folder / "bundles/box-0001/state/identity.key").read_bytes() == identity
    assert TrustBundle.load(folder / "bundles" / "cloud" / "trust" / "trust.json") == trust
    for name in EVERYBODY:
        Bundle.open(folder / "bundles" / name)
    tls = folder / "bundles" / "proxy" / "tls"
    authorities = {domain: (tls / f"{domain}-ca.crt").read_text() for domain in ("edge", "cloud")}
    assert trust.verified().delegated.authorities == authorities


class _PowerFailure(BaseException):
    pass


@pytest.mark.parametrize("number", [0, 1, 4, 5, 9, 17, 30])
@pytest.mark.parametrize("later", [False, True])
def test_bundles_are_whole_wherever_their_writing_was_cut_short(
    folder, tmp_path, monkeypatch, number, later
):
    write, left = bundles._write, iter(range(number))

    def cut(path, content, *, secret=False):
        if next(left, None) is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(content[: len(content) // 2])
            raise _PowerFailure
        return write(path, content, secret=secret)

    if later:
        opened(folder).apply()
        keys = {path: raw for path, raw in contents(folder).items() if path.endswith(".key")}
        plan(folder, edge_broker={"public": "other:8883"}, cloud_broker={"public": "other:8884"})
    with monkeypatch.context() as patch:
        patch.setattr(bundles, "_write", cut)
        with pytest.raises(_PowerFailure):
            opened(folder).apply()
    opened(folder).apply()
    for party in opened(folder).parties:
        made = folder / "bundles" / party.name
        assert Bundle.open(made).inventory.files == party.files
        install(made, tmp_path / "places" / party.name)
    assert sorted(path.name for path in (folder / "bundles").iterdir()) == sorted(EVERYBODY)
    if later:
        now = {path: raw for path, raw in contents(folder).items() if path.endswith(".key")}
        assert now == keys


def test_a_bundle_is_whole_where_only_its_place_was_not_taken_yet(folder):
    opened(folder).apply()
    made = folder / "bundles" / "box-0001"
    keys = (made / "state" / "identity.key").read_bytes()
    shutil.copytree(made, made.with_name(".new-box-0001"))
    made.rename(made.with_name(".old-box-0001"))  # and then the power failed
    opened(folder).apply()
    assert (made / "state" / "identity.key").read_bytes() == keys
    assert sorted(path.name for path in (folder / "bundles").iterdir()) == sorted(EVERYBODY)


def test_a_root_that_was_taken_away_is_never_made_anew(folder, tmp_path):
    opened(folder).apply()
    (folder / "trust").rename(tmp_path / "trust")
    plan(folder, proxy={"min_batch_floor": 9})
    before = contents(folder)
    with pytest.raises(UsageError, match=r"trust\.json: is missing.*copy the root's trust\.json"):
        opened(folder).apply()
    assert contents(folder) == before
    (folder / "trust").mkdir()
    shutil.copy(tmp_path / "trust" / "trust.json", folder / "trust")
    assert [one.name for one in opened(folder).apply()] == ["proxy"]


def test_an_authoritys_key_that_others_may_read_is_refused(folder):
    opened(folder).apply()
    for path in (folder / "authorities").glob("*.key"):
        path.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        opened(folder).revoke("box-0001")


def test_what_cannot_be_written_down_is_not_done(folder):
    opened(folder).apply()
    with (folder / "audit.jsonl").open("a") as log:
        log.write("{}\n")
    before = contents(folder)
    with pytest.raises(AuditLogError, match="damaged"):
        opened(folder).revoke("box-0002")
    assert contents(folder) == before
    assert all(party.active for party in opened(folder).parties)


def test_without_its_record_nobody_is_made_anew(folder):
    opened(folder).apply()
    (folder / "record.json").unlink()
    before = contents(folder)
    with pytest.raises(UsageError, match=r"record\.json: is missing.*restore it from a backup"):
        opened(folder).apply()
    assert contents(folder) == before


def test_with_an_older_record_numbers_go_on_from_what_was_applied(folder, tmp_path):
    opened(folder).apply()
    older = (folder / "record.json").read_bytes()
    for floor in (4, 5):
        plan(folder, proxy={"min_batch_floor": floor})
        opened(folder).apply()
    install(folder / "bundles" / "proxy", tmp_path / "etc")
    (folder / "record.json").write_bytes(older)
    plan(folder, proxy={"min_batch_floor": 6})
    opened(folder).apply()
    install(folder / "bundles" / "proxy", tmp_path / "etc")
    assert load_site(tmp_path / "etc" / "edgeveil.yaml").min_batch_floor == 6


def test_a_bundle_lowers_no_least_batch_that_a_proxys_operator_has_raised(folder, tmp_path):
    opened(folder).apply()
    install(folder / "bundles" / "proxy", tmp_path / "etc")
    file = tmp_path / "etc" / "edgeveil.yaml"
    file.write_text(file.read_text().replace("min_batch_floor: 3", "min_batch_floor: 7"))
    for floor, kept in ((5, 7), (9, 9)):
        plan(folder, proxy={"min_batch_floor": floor})
        opened(folder).apply()
        install(folder / "bundles" / "proxy", tmp_path / "etc")
        assert load_site(file).min_batch_floor == kept


def test_who_came_with_a_claim_is_revoked_by_its_id(folder):
    plan(folder, devices=CLAIMS)
    opened(folder).apply()
    device = "0123456789abcdef"
    assert "broker-edge" in [one.name for one in opened(folder).revoke(device)]
    lists = (folder / "bundles/broker-edge/tls/revoked.pem").read_bytes()
    end, serial = b"-----END X509 CRL-----\n", serial_number(device, 0)
    for one in lists.split(end)[:-1]:
        found = x509.load_pem_x509_crl(one + end)
        assert found.get_revoked_certificate_by_serial_number(serial)
    with pytest.raises(UsageError, match="was revoked on"):
        opened(folder).revoke(device)
    with pytest.raises(UsageError, match="there is no device"):
        opened(folder).revoke("ward-7")


def test_who_is_revoked_stays_out_and_stays_known(folder):
    opened(folder).apply()
    done = opened(folder).revoke("box-0002")
    assert [(one.what, one.name) for one in done] == [
        ("revoked", "box-0002"),
        ("changed", "broker-edge"),
        ("changed", "proxy"),
    ]
    gone = next(party for party in opened(folder).parties if party.name == "box-0002")
    lists = x509.load_pem_x509_crl((folder / "bundles/broker-edge/tls/revoked.pem").read_bytes())
    serial = x509.load_pem_x509_certificate(gone.certificates["edge"].encode()).serial_number
    assert lists.get_revoked_certificate_by_serial_number(serial) is not None
    assert lists.get_revoked_certificate_by_serial_number(serial_number(gone.device_id, 3))
    listed = read_devices(folder / "bundles" / "proxy" / "devices.jsonl")
    assert [one.note for one in listed if one.revoked] == ["box-0002"] and len(listed) == 3
    assert opened(folder).apply() == []
    with pytest.raises(UsageError, match="was revoked on"):
        opened(folder).revoke(gone.device_id)
    with pytest.raises(UsageError, match="no device"):
        opened(folder).revoke("proxy")


def test_passwords_leave_the_list_with_their_device(folder):
    plan(folder, authentication="passwords")
    opened(folder).apply()
    users = folder / "bundles" / "broker-edge" / "passwords" / "users"
    assert len(users.read_text().splitlines()) == 4  # three devices and the proxy
    opened(folder).revoke("box-0002")
    assert len(users.read_text().splitlines()) == 3


def test_certificates_are_renewed_for_the_same_keys(folder):
    opened(folder).apply()
    tls = folder / "bundles" / "box-0001" / "tls"
    old, key = shown(tls / "edge.crt"), (tls / "edge.key").read_bytes()
    plan(folder, certificate_days=400, renew_days=398)
    told = {(one.what, one.name) for one in opened(folder).changes()}
    assert told == {("renewed", name) for name in EVERYBODY}
    done = opened(folder).apply()
    assert {one.name for one in done} == set(EVERYBODY)
    new = shown(tls / "edge.crt")
    assert new.public_key() == old.public_key()
    assert new.serial_number == old.serial_number + 1
    assert (tls / "edge.key").read_bytes() == key


def test_an_authority_is_rotated_in_two_steps(folder):
    opened(folder).apply()
    box, broker = (folder / "bundles" / name / "tls" for name in ("box-0001", "broker-edge"))
    first, server = (box / "edge-ca.crt").read_bytes(), shown(broker / "broker.crt")
    opened(folder).rotate_authority("edge")
    both = (box / "edge-ca.crt").read_bytes()
    assert both.endswith(first)
    new = x509.load_pem_x509_certificate(both)
    shown(box / "edge.crt").verify_directly_issued_by(new)
    assert shown(broker / "broker.crt") == server
    assert (broker / "revoked.pem").read_text().count("BEGIN") == 2
    with pytest.raises(UsageError, match="being rotated already"):
        opened(folder).rotate_authority("edge")
    opened(folder).rotate_authority("edge", finish=True)
    assert (box / "edge-ca.crt").read_bytes() == both.removesuffix(first)
    shown(broker / "broker.crt").verify_directly_issued_by(new)
    with pytest.raises(UsageError, match="not being rotated"):
        opened(folder).rotate_authority("edge", finish=True)


def test_the_authority_of_claims_is_rotated_too(folder):
    opened(folder).apply()
    with pytest.raises(UsageError, match="no claims authority yet"):
        opened(folder).rotate_authority("claims")
    plan(folder, devices=CLAIMS)
    opened(folder).apply()
    bundles, place = folder / "bundles", folder.parent / "proxy"
    first = (bundles / "proxy" / "tls" / "claims-ca.crt").read_bytes()
    (key,) = (bundles / "proxy" / "tls").glob("claims-ca-*.key")
    install(bundles / "proxy", place)
    opened(folder).rotate_authority("claims")
    install(bundles / "proxy", place)
    second = (place / "tls" / "claims-ca.crt").read_bytes()
    desk = load_site(place / "edgeveil.yaml").claims
    assert desk.authority_key_file.name != key.name
    Authority.load(desk.authority_cert_file, desk.authority_key_file)
    image = shown(bundles / "image/tls/claim.crt")
    image.verify_directly_issued_by(x509.load_pem_x509_certificate(second))
    clients = bundles / "broker-edge" / "tls" / "clients-ca.crt"
    assert first in clients.read_bytes() and second in clients.read_bytes()
    opened(folder).rotate_authority("claims", finish=True)
    assert first not in clients.read_bytes() and second in clients.read_bytes()
    assert (bundles / "broker-edge/tls/revoked.pem").read_text().count("BEGIN") == 2


def test_a_wrong_passphrase_or_none_changes_nothing(folder):
    opened(folder, b"open").apply()
    plan(folder, proxy={"min_batch_floor": 5})
    before = contents(folder)
    with pytest.raises(CryptoError, match="cannot be decrypted"):
        opened(folder, b"wrong").apply()
    command = [sys.executable, "-m", "edgeveil_tools.cli", "site", "apply", folder]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True
    )
    assert done.returncode == UsageError.exit_code, done.stderr
    assert "--passphrase-file" in done.stderr and "EOFError" not in done.stderr
    assert {path: raw for path, raw in contents(folder).items() if ".lock" not in path} == before


def test_somebody_elses_broker_gets_its_accounts_and_no_bundle(folder):
    plan(folder, authentication="passwords")
    plan(folder, edge_broker={"listen": None, "public": None, "url": "mqtts://x.example:8883"})
    opened(folder).apply()
    assert not (folder / "bundles" / "broker-edge").exists()
    accounts = (folder / "accounts-edge.csv").read_text().splitlines()
    users = {line.partition(",")[0]: line.partition(",")[2] for line in accounts}
    box = load_site(folder / "bundles" / "box-0001" / "edgeveil.yaml")
    assert box.broker.url == "mqtts://x.example:8883"
    assert users[box.broker.username] == box.broker.password_file.read_text().strip()


def test_commands_by_hand(folder, capsys):
    options = [str(folder), "--no-passphrase"]
    assert main(["site", "apply", *options]) == 0
    with opened(folder).alone():
        assert main(["site", "apply", *options]) == 2
    assert "another command works" in capsys.readouterr().err
    assert main(["site", "status", str(folder)]) == 0
    assert "box-0003" in capsys.readouterr().out
    assert main(["log", str(folder)]) == 0
    assert main(["log", str(folder), "--key", "0" * 16]) == 2
    assert "the site's key is" in capsys.readouterr().err


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
