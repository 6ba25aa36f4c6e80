import ssl
import stat
import subprocess
import sys
from contextlib import suppress

import pytest
import yaml

from edgeveil.config.policy import Policy
from edgeveil.config.site_files import load_site
from edgeveil.errors import ConfigError, UsageError
from edgeveil_tools.cli import main
from edgeveil_tools.site.broker_rules import password_matches, read_users
from edgeveil_tools.site.provision import SiteSpec, provision
from tests.kits.earlier_code import earlier_code


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "site"


def small(folder, **changes):
    return SiteSpec(folder, policy=Policy(min_devices=3), **changes)


def changed(path, **keys):
    """Rewrite keys of a site file; None: without it."""
    ((kind, block),) = yaml.safe_load(path.read_text()).items()
    said = {key: value for key, value in (block | keys).items() if value is not None}
    path.write_text(yaml.safe_dump({kind: said}))


def test_a_device_logs_in_as_its_id_and_its_secrets_are_read_by_nobody_else(folder):
    site = provision(small(folder, tls=True))
    users = read_users(load_site(site.brokers["edge"]).users_file)
    assert set(users) == {"proxy", *site.device_ids}
    for edge, device in zip(map(load_site, site.edges), site.device_ids, strict=True):
        assert edge.broker.username == device
        password = edge.broker.password_file.read_text().splitlines()[0]
        assert password_matches(users[device], password)
    assert set(read_users(load_site(site.brokers["cloud"]).users_file)) == {"proxy", "cloud"}
    secret = [*(folder / "passwords").iterdir(), *(folder / "tls").glob("*.key")]
    secret += list((folder / "state").rglob("*.key"))
    assert len(secret) > 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    words = [word for users in site.passwords.values() for word in users.values()]
    assert len(set(words)) == len(words) == 6
    for path in (*folder.glob("*.yaml"), *folder.glob("passwords/*.users")):
        assert not any(word in path.read_text() for word in words), path


def test_a_site_is_written_over_only_with_force_and_where_it_can_be_read(folder):
    site = provision(small(folder, tls=True))
    job = folder / "job.yaml"
    with pytest.raises(UsageError):
        provision(site.spec)
    job.unlink()
    more = site.edges[1].read_text() + "more: 1\n"
    for path, damaged in ((site.edges[1], more), (folder / "tls" / "edge-ca.key", "damaged")):
        before = path.read_text()
        path.write_text(damaged)
        with pytest.raises((ConfigError, UsageError)):
            provision(site.spec, force=True)
        path.write_text(before)
    assert not job.exists()
    floors = []
    for in_place, planned in ((7, 3), (3, 5), (None, 2)):
        changed(site.proxy, min_batch_floor=in_place)
        again = provision(small(folder, tls=True, min_batch_floor=planned), force=True)
        floors.append(load_site(again.proxy).min_batch_floor)
    assert floors == [7, 5, 2]


def test_force_keeps_keys_passwords_and_the_authority(folder):
    first = provision(small(folder, tls=True))
    tls = folder / "tls"
    authority, server = (tls / "edge-ca.crt").read_bytes(), (tls / "broker-edge.crt").read_bytes()
    second = provision(small(folder, tls=True, devices=4), force=True)
    assert second.device_ids[:3] == first.device_ids
    assert first.passwords["edge"].items() < second.passwords["edge"].items()
    assert first.passwords["cloud"] == second.passwords["cloud"]
    assert (tls / "edge-ca.crt").read_bytes() == authority
    assert (tls / "broker-edge.crt").read_bytes() != server
    assert _handshake(tls, "localhost") and _handshake(tls, "127.0.0.1")
    for host, broker in (("elsewhere.example", "broker-edge"), ("localhost", "broker-cloud")):
        with pytest.raises(ssl.SSLCertVerificationError):
            _handshake(tls, host, broker)


OWNERS = {
    "role": "infer",
    "device": "cpu",
    "log": {"level": "debug", "format": "json"},
    "policy": {"lifetime_epsilon": 11.0, "min_devices": 4, "max_records": 77},
    "conditions": {"charging": True, "max_load": 0.5},
    "page": {"port": 8799},
    "inference": {"http": {"port": 8798}},
    "data": {"name": "my records", "source": "csv", "path": "mine.csv", "header": False},
}


def test_force_leaves_all_that_is_an_owners_word_and_renews_the_rest(folder):
    first = provision(small(folder))
    mine, other = first.edges[:2]
    assert "lifetime_epsilon: 50.0" in other.read_text()
    tests = [{"name": "mine", "source": "csv", "path": "mine.csv"}]
    changed(first.cloud, test_data=tests)
    changed(mine, **OWNERS, name="old", limits={"outbox_bytes": 65536})
    before = yaml.safe_load(other.read_text())["edge"]
    second = provision(small(folder, devices=4, host="::1"), force=True)
    assert yaml.safe_load(first.cloud.read_text())["cloud"]["test_data"] == tests
    now = yaml.safe_load(mine.read_text())["edge"]
    assert {key: now[key] for key in OWNERS} == OWNERS
    assert (now["name"], now["limits"]) == ("box-1", {"outbox_bytes": 1 << 28})
    assert now["broker"]["url"] == "mqtt://[::1]:21883"
    assert second.spec.url == "http://[::1]:8701"
    neighbour = yaml.safe_load(other.read_text())["edge"]
    shard = before["data"]["shard"]
    assert neighbour["data"] == {**before["data"], "shard": {**shard, "devices": 4}}
    assert neighbour["policy"] == before["policy"] and "page" not in neighbour
    changed(mine, page=None, policy=None)  # which is an owner's word too
    provision(second.spec, force=True)
    now = yaml.safe_load(mine.read_text())["edge"]
    assert not {"page", "policy"} & now.keys() and now["data"] == OWNERS["data"]


def _handshake(tls, host, broker="broker-edge"):
    """The name the server proved, by a handshake in memory."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tls / f"{broker}.crt", tls / f"{broker}.key")
    client = ssl.create_default_context(cafile=tls / "edge-ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (ours, theirs) * 4:
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return ours.getpeercert()["subject"]


def test_a_local_site_is_planned_written_and_goes_on_from_its_plan(folder, capsys):
    assert main(["site", "init", str(folder), "--local", "--devices", "2", "--tls"]) == 0
    first = capsys.readouterr().out
    assert f"edgeveil edge --config {folder / 'edge-2.yaml'}" in first
    keys = (folder / "state" / "cloud" / "cloud.key").read_bytes()
    path = folder / "fleet.yaml"
    path.write_text(path.read_text().replace("devices: 2", "devices: 3"))
    assert main(["site", "apply", str(folder)]) == 0
    assert load_site(folder / "edge-3.yaml").broker.ca_file == folder / "tls" / "edge-ca.crt"
    assert (folder / "state" / "cloud" / "cloud.key").read_bytes() == keys
    assert main(["site", "init", str(folder), "--local"]) == 2
    assert main(["site", "apply", str(folder), "--dry-run"]) == 2


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("127.0.0.1", "::", 5),
        ("  tls", "  infer_only: 3\n  tls", 6),
        ("  tls", "  ports: {edge: 8701}\n  tls", 6),
    ],
)
def test_a_local_plan_that_cannot_work_is_refused_by_its_line(folder, capsys, old, new, line):
    assert main(["site", "init", str(folder), "--local"]) == 0
    path, before = folder / "fleet.yaml", (folder / "cloud.yaml").read_bytes()
    path.write_text(path.read_text().replace(old, new, 1))
    assert main(["site", "apply", str(folder)]) == 2
    assert f"{path}:{line} local." in capsys.readouterr().err
    assert (folder / "cloud.yaml").read_bytes() == before


def test_what_provision_wrote_goes_on(tmp_path, folder, capsys):
    environ = earlier_code(tmp_path / "earlier", "4bc41794")
    words = [sys.executable, "-m", "edgeveil_tools.cli", "provision", folder, "--devices", "3"]
    more = ["--infer-only", "1", "--tls", "--edge-port", "22883", "--cloud-http-port", "8799"]
    subprocess.run([*words, *more], env=environ, cwd=tmp_path, check=True, capture_output=True)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert main(["site", "apply", str(folder)]) == 2
    assert "local: {devices: 3}" in capsys.readouterr().err
    ports = {"edge": 22883, "cloud_http": 8799}
    local = {"devices": 3, "infer_only": 1, "tls": True, "ports": ports}
    (folder / "fleet.yaml").write_text(yaml.safe_dump({"local": local}))
    assert main(["site", "apply", str(folder)]) == 0
    kept = ("state", "keys", "passwords")
    for path, content in before.items():
        part = path.relative_to(folder).parts[0]
        if part in kept and path.suffix not in (".users", ".sqlite"):
            assert path.read_bytes() == content, path
        elif part.endswith(".yaml") and part != "job.yaml":
            again, was = yaml.safe_load(path.read_text()), yaml.safe_load(content)
            for block in (again, was):
                block[next(iter(block))].pop("log", None)
                block.get("broker", {}).pop("limits", None)
            assert again == was, path
    roles = [load_site(folder / f"edge-{n}.yaml").role for n in (1, 2, 3)]
    assert roles == ["train", "train", "infer"]
