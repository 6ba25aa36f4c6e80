"""`edgeveil trust`: a root's whole life on the command line, and its log."""

import json
from functools import partial

import pytest

from edgeveil.audit_log import AuditLog, AuditLogError, read_audit
from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.trust.bundle import TrustBundle
from edgeveil.trust.metadata import TrustedMetadata, now_utc
from edgeveil_tools.cli import main
from edgeveil_tools.site.trust_folder import TrustFolder


@pytest.fixture
def keys(tmp_path):
    found = {}
    for name in ("jobs", "releases", "rosters", "next"):
        found[name] = tmp_path / f"{name}.pub"
        SigningKey.generate().public().save(found[name])
    return found


class Root:
    def __init__(self, tmp_path, keys):
        self.folder, self.keys = tmp_path / "root", keys
        self.passphrase = tmp_path / "passphrase"
        self.passphrase.write_text("correct horse\n")

    def __call__(self, name, *rest):
        if name == "log":
            return main(["log", str(self.folder)])
        how = () if name == "show" else ("--passphrase-file", self.passphrase)
        return main(["trust", name, *map(str, (self.folder, *rest, *how))])

    def init(self, *options):
        roles = {"cloud-jobs": "jobs", "cloud-releases": "releases", "proxy-rosters": "rosters"}
        given = [word for role, key in roles.items() for word in (f"--{role}", self.keys[key])]
        return self("init", *given, *options)

    def extend(self, cell, key):
        """As an apply of a fleet's plan does."""
        TrustFolder(self.folder, lambda _path: b"correct horse").extend({cell: VerifyKey.load(key)})

    def bundle(self):
        return TrustBundle.load(self.folder / "trust.json")

    def believed(self):
        """What a party believes that holds the first root."""
        found = TrustedMetadata(self.bundle().roots[0])
        self.taken_by(found)
        return found

    def taken_by(self, party):
        bundle = self.bundle()
        return party.take(bundle.roots, bundle.delegations, now_utc())


@pytest.fixture
def root(tmp_path, keys):
    return Root(tmp_path, keys)


def test_a_rotation_follows_what_parties_hold_and_a_revoked_role_speaks_no_more(root, keys, capsys):
    assert root.init() == 0
    party = root.believed()
    assert root("rotate", "cloud-jobs", keys["next"]) == 0
    assert root.taken_by(party)
    assert party.delegated.roles["cloud-jobs"].epoch == 1
    assert party.delegated.roles["cloud-releases"].epoch == 0
    before = root.believed().delegated.roles["cloud-releases"].key
    assert root("rotate", "cloud-releases", "none") == 0
    assert root("rotate", "registry", "5e" * 16) == 0
    found = root.believed().delegated
    assert (found.roles["cloud-releases"].key != before, found.lineage) == (True, "5e" * 16)
    capsys.readouterr()
    assert root("log") == 0
    done = [line.split()[2] for line in capsys.readouterr().out.splitlines()]
    assert done == ["init", "rotate", "rotate", "recover"]


def test_a_change_takes_effect_once_enough_keys_signed_it_and_no_other_replaces_it(
    root, keys, tmp_path, capsys
):
    assert root.init("--keys", 3, "--threshold", 2) == 0
    for number in (2, 3):
        (root.folder / "keys" / f"root-{number}.key").rename(tmp_path / f"{number}")
    before = root.bundle()
    assert root("rotate", "cloud-jobs", keys["next"]) == 0
    SigningKey.generate().public().save(tmp_path / "other.pub")
    assert root("rotate", "cloud-releases", tmp_path / "other.pub") == 2
    assert root("sign", "--renew") == 2
    assert root("sign") == 0 and root.bundle() == before, "the same key twice is one"
    new = VerifyKey.load(keys["next"])
    capsys.readouterr()
    assert root("show") == 0
    pending = capsys.readouterr().out.partition("awaiting signatures:\n")[2]
    assert f"+     cloud-jobs: {{key: {new.fingerprint()}, epoch: 1}}" in pending
    assert "cloud-releases" not in pending and "root" not in pending
    (tmp_path / "3").rename(root.folder / "keys" / "root-3.key")
    assert root("sign") == 0
    assert f"cloud-jobs: {{key: {new.fingerprint()}" in capsys.readouterr().out
    assert root.believed().delegated.roles["cloud-jobs"].key == new
    assert root("sign") == 2


def test_the_root_s_own_keys_are_rotated_and_a_lost_one_left_out(root, capsys):
    assert root.init("--keys", 3, "--threshold", 2) == 0
    party = root.believed()
    capsys.readouterr()
    root("show", "--json")
    lost = json.loads(capsys.readouterr().out)["root"]["keys"][0]
    (root.folder / "keys" / "root-1.key").unlink()
    assert root("rotate", "root", "--without", lost) == 0
    assert root("rotate", "root", "--keys", 2, "--threshold", 2) == 0
    assert root.taken_by(party)
    assert party.root_version == 3 and party.problem(now_utc()) == ""
    assert root("sign", "--renew") == 0 and root.believed().root_version == 4


def written(path, count=4):
    key = SigningKey.generate()
    for number in range(count):
        AuditLog(path, key).append("admit", {"device": f"d{number}"})
    return path.read_bytes().splitlines(), key


def test_cells_come_and_are_rotated_and_recovered_one_by_one(root, keys, tmp_path):
    for name in ("north", "south", "site"):
        keys[name] = tmp_path / f"{name}.pub"
        SigningKey.generate().public().save(keys[name])
    assert root.init() == 0
    root.extend("north", keys["north"])
    party = root.believed()
    root.extend("south", keys["south"])
    assert root("rotate", "site", keys["site"]) == 0
    assert root("rotate", "proxy-rosters", keys["next"], "--cell", "north") == 0
    assert root("rotate", "registry", "5f" * 16, "--cell", "south") == 0
    root.taken_by(party)
    found = party.delegated
    assert found.cell_of(VerifyKey.load(keys["next"])) == "north"
    assert found.cell_of(VerifyKey.load(keys["rosters"])) == ""
    north, south = found.cells["north"], found.cells["south"]
    assert (north.rosters.epoch, north.lineage) == (1, "")
    assert (south.rosters.epoch, south.lineage, found.lineage) == (0, "5f" * 16, "")
    assert found.site.key == VerifyKey.load(keys["site"]) and found.site.epoch == 0
    assert root("rotate", "proxy-rosters", "none", "--cell", "south") == 0
    assert root.believed().delegated.cell_of(VerifyKey.load(keys["south"])) is None


@pytest.mark.parametrize(
    ("code", "command"),
    [
        (2, "rotate proxy-rosters next --cell east"),
        (2, "rotate cloud-jobs next --cell north"),
        (2, "rotate proxy-rosters rosters --cell north"),  # another cell's key
        (2, "rotate proxy-rosters jobs --cell north"),
        (2, "rotate proxy-rosters jobs"),  # who hides senders is not who reads uploads
        (2, "rotate registry nonsense"),
        (2, "rotate cloud-jobs jobs"),  # its key already
        (2, "init --keys 1 --threshold 2"),
        (2, "init"),
        (8, "rotate cloud-jobs next, with a wrong passphrase"),
        (8, "sign --renew, with a key that others may read"),
    ],
)
def test_what_may_not_be_is_refused_and_nothing_changes(root, keys, code, command):
    command, _, how = command.partition(", with ")
    name, *rest = command.split()
    north = keys["next"].with_name("north.pub")
    SigningKey.generate().public().save(north)
    assert root.init() == 0
    root.extend("north", north)
    before = root.bundle()
    if how == "a wrong passphrase":
        root.passphrase.write_text("wrong\n")
    elif how:
        (root.folder / "keys" / "root-1.key").chmod(0o640)
    call = root.init if name == "init" else partial(root, name)
    assert call(*(keys.get(word, word) for word in rest)) == code
    assert root.bundle() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda lines, _: [lines[0], lines[1].replace(b"d1", b"d9"), *lines[2:]],
        lambda lines, _: [lines[0], *lines[2:]],
        lambda lines, _: [lines[0], lines[2], lines[1], lines[3]],
        lambda _, tmp_path: written(tmp_path / "other.jsonl", 2)[0],
        lambda lines, _: [*lines[:3], b"{}"],
    ],
    ids=["edit", "drop", "swap", "other key", "garbage"],
)
def test_every_change_of_the_log_is_found(tmp_path, change):
    path = tmp_path / "audit.jsonl"
    lines, key = written(path)
    assert len(read_audit(path, frozenset({key.public()}))) == 4
    path.write_bytes(b"\n".join(change(lines, tmp_path)) + b"\n")
    with pytest.raises(AuditLogError):
        read_audit(path, frozenset({key.public()}))
