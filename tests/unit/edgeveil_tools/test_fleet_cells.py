"""A plan of several cells: who gets what, what one change touches, and moves between cells."""

import shutil

import pytest
import yaml
from cryptography import x509

from edgeveil.config.site_files import load_site
from edgeveil.crypto.authorities import serial_number
from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import ConfigError, UsageError
from edgeveil.trust.bundle import TrustBundle
from edgeveil.trust.moves import moved_cells, read_moves
from edgeveil_proxy.devices_file import read_devices
from edgeveil_tools.site.bundles import install
from edgeveil_tools.site.fleet_spec import FLEET_FILE
from edgeveil_tools.site.trust_folder import TrustFolder
from tests.kits.site_folders import opened, plan, planned, shown

OWN = {
    "edge_broker": {"listen": "0.0.0.0:8885", "public": "south.example:8885"},
    "cloud_broker": {"listen": "0.0.0.0:8886", "public": "south.example:8886"},
    "proxy": {"min_batch_floor": 7},
}


@pytest.fixture
def folder(tmp_path):
    return planned(tmp_path / "site", 4, "--cells", "north,south")


def moved(folder, name, to):
    """Plan the device in the cell `to`, in place of where it was."""
    listed = yaml.safe_load((folder / FLEET_FILE).read_text())["fleet"]["devices"].get("list", [])
    rest = [one for one in listed if one["name"] != name]
    plan(folder, devices={"list": [*rest, {"name": name, "cell": to}]})
    return opened(folder).apply()


def root_of(folder):
    return TrustFolder(folder / "trust", lambda _path: None)


def site_of(folder, name):
    return load_site(folder / "bundles" / name / "edgeveil.yaml")


def party(folder, name):
    return next(one for one in opened(folder).parties if one.name == name)


def cells_of(folder):
    return {one.name: one.cell for one in opened(folder).parties if one.device_id}


def names_of(changes):
    return {one.name for one in changes}


def listed(folder, cell):
    """The devices of a cell's proxy by their names."""
    lines = read_devices(folder / "bundles" / f"proxy-{cell}" / "devices.jsonl")
    return {one.note: one for one in lines}


def test_each_cell_has_a_proxy_and_its_own_devices(folder):
    opened(folder).apply()
    boxes = {"north": ["box-0001", "box-0003"], "south": ["box-0002", "box-0004"]}
    delegated = root_of(folder).delegated()
    for cell, names in boxes.items():
        assert {site_of(folder, name).cell for name in (*names, f"proxy-{cell}")} == {cell}
        assert list(listed(folder, cell)) == names
        proxy = folder / "bundles" / f"proxy-{cell}"
        subject = shown(proxy / "tls" / "edge.crt").subject
        assert subject.rfc4514_string() == f"CN=proxy-{cell}"
        assert delegated.cell_of(VerifyKey.load(proxy / "state" / "proxy.pub")) == cell
    assert site_of(folder, "broker-edge").cells == ("north", "south")
    assert [one.name for one in site_of(folder, "cloud").cells] == ["north", "south"]
    assert delegated.site.key == VerifyKey.load(folder / "site.pub")
    for name in ("box-0001", "proxy-south", "cloud"):
        given = TrustBundle.load(folder / "bundles" / name / "trust" / "trust.json").verified()
        assert given.delegated == delegated


def test_a_cell_with_brokers_of_its_own_has_authorities_of_its_own(folder):
    plan(folder, cells={"south": OWN})
    opened(folder).apply()
    north, south = (site_of(folder, f"broker-edge{cell}") for cell in ("", "-south"))
    assert (north.cells, south.cells) == (("north",), ("south",))
    assert south.limits == north.limits
    assert [site_of(folder, f"proxy-{c}").min_batch_floor for c in ("north", "south")] == [3, 7]
    cloud = site_of(folder, "cloud")
    assert cloud.broker.url == "mqtts://127.0.0.1:8884"
    assert cloud.cells[0].broker is None
    assert cloud.cells[1].broker.url == "mqtts://south.example:8886"
    north, south = (folder / "bundles" / box / "tls" for box in ("box-0001", "box-0002"))
    shown(south / "edge.crt").verify_directly_issued_by(shown(south / "edge-ca.crt"))
    with pytest.raises(ValueError, match=r"[Ii]ssuer"):
        shown(south / "edge.crt").verify_directly_issued_by(shown(north / "edge-ca.crt"))
    assert len(root_of(folder).delegated().authorities) == 4


@pytest.mark.parametrize("authentication", ["certificates", "passwords"])
def test_one_cells_change_touches_its_own_bundles(folder, authentication):
    plan(folder, authentication=authentication, cells={"south": OWN})
    opened(folder).apply()
    plan(folder, cells={"south": OWN | {"proxy": {"min_batch_floor": 9}}})
    assert names_of(opened(folder).apply()) == {"proxy-south"}
    plan(folder, devices={"list": [{"name": "ward", "cell": "south"}]})
    theirs = {"ward", "proxy-south"}
    theirs |= {"broker-edge-south"} if authentication == "passwords" else set()
    shards = {"box-0001", "box-0002", "box-0003", "box-0004"}  # the template counts all devices
    assert names_of(opened(folder).apply()) - shards == theirs
    root_of(folder).rotate_role("proxy-rosters", SigningKey.generate().public(), cell="south")
    touched = {"proxy-south", "cloud", "ward", "box-0002", "box-0004"}
    assert names_of(opened(folder).apply()) == touched
    assert opened(folder).changes() == []


def test_a_device_stays_in_its_cell_until_the_plan_says_otherwise(folder):
    opened(folder).apply()
    before = cells_of(folder)
    plan(folder, devices={"list": [{"name": "first"}, {"name": "next"}]})
    opened(folder).apply()
    after = cells_of(folder)
    assert before.items() <= after.items()
    assert sorted(after[name] for name in ("first", "next")) == ["north", "south"]
    plan(folder, devices={"csv": "boxes.csv", "count": 6}, cells={"east": {}})
    (folder / "boxes.csv").write_text("name,cell\nquay,south\n")
    opened(folder).apply()
    there = {"box-0005": "east", "box-0006": "east", "quay": "south"}
    assert cells_of(folder).items() >= there.items()
    (folder / "boxes.csv").write_text("name,cell\nquay,west\n")
    with pytest.raises(UsageError) as caught:
        opened(folder).changes()
    assert "boxes.csv:2 (quay)" in caught.value.where


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("devices.cell", {"devices": {"cell": "east"}}),
        ("cells.North", {"cells": {"North": {}}}),
        ("cells", {"cells": {"": {"proxy": {}}}}),
        ("cells", {"cells": {"south": {"edge_broker": {"listen": "0.0.0.0:1"}}}}),
        ("devices", {"devices": {"claims": {}, "data": {"name": "a", "source": "digits"}}}),
    ],
)
def test_what_cannot_be_is_told_with_its_key(folder, key, changes):
    plan(folder, **changes)
    with pytest.raises(ConfigError) as caught:
        opened(folder).changes()
    assert f" fleet.{key}" in str(caught.value) and FLEET_FILE in str(caught.value)


def test_claims_are_of_a_cell_with_a_broker_of_its_own(folder):
    own = {"listen": "0.0.0.0:8887", "public": "north.example:8887"}
    data = {"name": "digits", "source": "digits"}
    plan(folder, cells={"south": OWN, "north": {"edge_broker": own}})
    plan(folder, devices={"claims": {"admit": "at_once"}, "data": data})
    opened(folder).apply()
    assert site_of(folder, "image-south").cell == "south"
    roots = set()
    for cell in ("north", "south"):
        desk = site_of(folder, f"proxy-{cell}").claims
        assert desk.authority_key_file.exists()
        roots.add(desk.authority_cert_file.read_bytes())
        clients = folder / "bundles" / f"broker-edge-{cell}" / "tls" / "clients-ca.crt"
        assert desk.authority_cert_file.read_bytes() in clients.read_bytes()
    assert len(roots) == 2


def test_an_unnamed_cell_goes_on_beside_named_ones(tmp_path):
    folder = planned(tmp_path / "site", 2)
    opened(folder).apply()
    before = party(folder, "box-0001").text
    plan(folder, cells={"": {}, "north": {}})
    done = opened(folder).apply()
    assert {one.name for one in done if one.what == "new"} == {"proxy-north"}
    assert party(folder, "box-0001").text == before
    assert site_of(folder, "broker-edge").cells == ("", "north")
    assert root_of(folder).delegated().cells.keys() == {"north"}
    moved(folder, "box-0001", "north")
    assert site_of(folder, "box-0001").cell == "north"
    plan(folder, cells={"north": {}})
    said = yaml.safe_load((folder / FLEET_FILE).read_text())
    del said["fleet"]["cells"][""]
    (folder / FLEET_FILE).write_text(yaml.safe_dump(said))
    with pytest.raises(UsageError):
        opened(folder).changes()
    done = moved(folder, "box-0002", "north")
    assert ("unplanned", "proxy") in {(one.what, one.name) for one in done}


def test_a_further_cell_waits_until_enough_root_keys_have_named_it(folder, tmp_path):
    plan(folder, root={"keys": 2, "threshold": 2})
    opened(folder).apply()
    away = tmp_path / "root-2.key"
    (folder / "trust" / "keys" / "root-2.key").rename(away)
    plan(folder, cells={"east": {}})
    for _ in range(2):
        site = opened(folder)
        site.apply()
        assert site.awaits_root
    away.rename(folder / "trust" / "keys" / "root-2.key")
    root_of(folder).sign()
    site = opened(folder)
    assert {"proxy-east", "cloud"} <= names_of(site.apply()) and not site.awaits_root
    given = folder / "bundles" / "proxy-east" / "trust" / "trust.json"
    assert "east" in TrustBundle.load(given).verified().delegated.cells


def test_each_move_is_numbered_and_needs_the_sites_key_and_a_new_key_signs_anew(folder):
    opened(folder).apply()
    root, moves = root_of(folder), folder / "bundles" / "cloud" / "moves.jsonl"
    for number, to in enumerate(("south", "north", "south"), 1):
        moved(folder, "box-0001", to)
        (move,) = read_moves(moves)
        assert (move.number, move.cell) == (number, to)
    assert party(folder, "box-0001").certificates.keys() == {"edge"}, "both share one broker"
    root.rotate_role("site", SigningKey.generate().public())
    with pytest.raises(UsageError):
        moved(folder, "box-0001", "north")
    assert party(folder, "box-0001").cell == "south"
    root.rotate_role("site", VerifyKey.load(folder / "site.pub"))
    moved(folder, "box-0001", "south")
    (move,) = read_moves(moves)
    assert move.epoch == root.delegated().site.epoch == 2
    move.verify(root.delegated().site)
    opened(folder).revoke("box-0001")
    assert all(listed(folder, cell)["box-0001"].revoked for cell in ("north", "south"))


def test_a_device_moves_with_its_keys_and_by_a_signed_note(folder, tmp_path):
    plan(folder, cells={"south": OWN})
    opened(folder).apply()
    place, bundles = tmp_path / "box", folder / "bundles"
    install(bundles / "box-0001", place)
    kept = {p: p.read_bytes() for p in (place / "state").rglob("*") if p.is_file()}
    kept[place / "tls" / "edge.key"] = (place / "tls" / "edge.key").read_bytes()
    shutil.rmtree(bundles)
    done = moved(folder, "box-0001", "south")
    assert (done[0].what, done[0].name) == ("moved", "box-0001")
    assert done[0].difference == "- cell: north\n+ cell: south"
    assert names_of(done) == {"box-0001", "proxy-north", "proxy-south", "cloud", "broker-edge"}
    install(bundles / "box-0001", place)
    site = load_site(place / "edgeveil.yaml")
    assert (site.cell, site.broker.url) == ("south", "mqtts://south.example:8885")
    assert {path: path.read_bytes() for path in kept} == kept
    box, line = party(folder, "box-0001"), listed(folder, "north")["box-0001"]
    gone = x509.load_pem_x509_crl((bundles / "broker-edge" / "tls" / "revoked.pem").read_bytes())
    assert gone.get_revoked_certificate_by_serial_number(serial_number(box.device_id, 0))
    file = bundles / "cloud" / "moves.jsonl"
    (move,) = moves = read_moves(file)
    wanted = {line.enrolment.sealing.to_bytes(): "south"}
    assert moved_cells(moves, root_of(folder).delegated()) == wanted
    assert box.device_id not in file.read_text() and "box-0001" not in file.read_text()
    assert line.move == move and not line.revoked
    assert listed(folder, "south")["box-0001"] == line and opened(folder).changes() == []


def test_a_cell_that_gets_a_broker_of_its_own_takes_its_devices_along(folder):
    opened(folder).apply()
    names = ("box-0002", "proxy-south")
    keys = {one: shown(folder / "bundles" / one / "tls" / "edge.crt").public_key() for one in names}
    plan(folder, cells={"south": {"edge_broker": OWN["edge_broker"]}})
    touched = {"broker-edge-south", "broker-edge", "proxy-south", "cloud", "box-0002", "box-0004"}
    done = names_of(opened(folder).apply())
    assert touched - {"cloud"} <= done <= touched
    for name, key in keys.items():
        certificates = party(folder, name).certificates
        after = x509.load_pem_x509_certificate(certificates["edge-south"].encode())
        assert "edge" not in certificates and after.public_key() == key
    assert set(root_of(folder).delegated().authorities) == {"edge", "cloud", "edge-south"}
    assert opened(folder).changes() == []
