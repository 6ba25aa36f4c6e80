"""`edgeveil trust`: a root's whole life on the command line, and its log."""

import json
import shutil

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
        keys = self.keys
        return self(
            "init",
            *("--cloud-jobs", keys["jobs"], "--cloud-releases", keys["releases"]),
            *("--proxy-rosters", keys["rosters"], *options),
        )

    def extend(self, cell):
        """As an apply of a fleet's plan does."""
        folder = TrustFolder(self.folder, lambda _path: b"correct horse")
        folder.extend({cell: VerifyKey.load(self.keys[cell])})

    def bundle(self):
        return TrustBundle.load(self.folder / "trust.json")

    def believed(self):
        bundle = self.bundle()
        found = TrustedMetadata(bundle.roots[0])
        found.take(bundle.roots[1:], bundle.delegations, now_utc())
        return found


@pytest.fixture
def root(tmp_path, keys):
    return Root(tmp_path, keys)


def test_a_rotation_follows_what_parties_hold(root, keys, capsys):
    assert root.init() == 0
    party = root.believed()
    assert root("rotate", "cloud-jobs", keys["next"]) == 0
    bundle = root.bundle()
    assert party.take(bundle.roots, bundle.delegations, now_utc())
    assert party.delegated.roles["cloud-jobs"].epoch == 1
    assert party.delegated.roles["cloud-releases"].epoch == 0
    capsys.readouterr()
    assert root("show", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["problem"] == "" and shown["delegations"]["version"] == 2
    assert root("log") == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()] == ["init", "rotate"]


def test_keys_on_several_machines_sign_one_after_the_other(root, keys, tmp_path, capsys):
    assert root.init("--keys", 3, "--threshold", 2) == 0
    away = tmp_path / "away"
    away.mkdir()
    for number in (2, 3):
        shutil.move(root.folder / "keys" / f"root-{number}.key", away)
    before = root.bundle()
    assert root("rotate", "proxy-rosters", keys["next"]) == 0
    assert "1 more signature needed" in capsys.readouterr().out
    assert root.bundle() == before, "nothing is in effect yet"
    assert root("sign") == 0 and root.bundle() == before, "the same key twice is one"
    shutil.move(away / "root-3.key", root.folder / "keys")
    assert root("sign") == 0
    assert root.believed().delegated.roles["proxy-rosters"].epoch == 1
    assert root("sign") == 2 and "nothing is pending" in capsys.readouterr().err


def test_what_awaits_signatures_is_not_replaced_by_the_next_change(root, keys, tmp_path, capsys):
    assert root.init("--keys", 2, "--threshold", 2) == 0
    away = tmp_path / "root-2.key"
    (root.folder / "keys" / "root-2.key").rename(away)
    assert root("rotate", "cloud-jobs", keys["next"]) == 0
    SigningKey.generate().public().save(tmp_path / "other.pub")
    assert root("rotate", "cloud-releases", tmp_path / "other.pub") == 2
    assert root("sign", "--renew") == 2
    assert "a change awaits signatures. edgeveil trust sign" in capsys.readouterr().err
    new = VerifyKey.load(keys["next"]).fingerprint()
    assert root("show") == 0
    pending = capsys.readouterr().out.partition("awaiting signatures:\n")[2]
    assert f"+     cloud-jobs: {{key: {new}, epoch: 1}}" in pending
    assert "cloud-releases" not in pending and "root" not in pending
    away.rename(root.folder / "keys" / "root-2.key")
    assert root("sign") == 0
    assert f"+     cloud-jobs: {{key: {new}" in capsys.readouterr().out, "who signs sees it"
    assert root("show") == 0 and "awaiting" not in capsys.readouterr().out
    jobs = root.believed().delegated.roles["cloud-jobs"]
    assert jobs.key == VerifyKey.load(keys["next"])


def test_the_root_s_own_keys_are_rotated_and_a_lost_one_left_out(root, capsys):
    assert root.init("--keys", 3, "--threshold", 2) == 0
    party = root.believed()
    capsys.readouterr()
    root("show", "--json")
    lost = json.loads(capsys.readouterr().out)["root"]["keys"][0]
    (root.folder / "keys" / "root-1.key").unlink()
    assert root("rotate", "root", "--without", lost) == 0
    assert root("rotate", "root", "--keys", 2, "--threshold", 2) == 0
    bundle = root.bundle()
    assert party.take(bundle.roots, bundle.delegations, now_utc())
    assert party.root_version == 3 and party.problem(now_utc()) == ""
    assert root("sign", "--renew") == 0 and root.believed().root_version == 4


def test_a_revoked_role_speaks_no_more_and_a_registry_is_named(root, capsys):
    assert root.init() == 0
    before = root.believed().delegated.roles["cloud-releases"].key
    assert root("rotate", "cloud-releases", "none") == 0
    assert root.believed().delegated.roles["cloud-releases"].key != before
    assert root("rotate", "registry", "5e" * 16) == 0
    assert root.believed().delegated.lineage == "5e" * 16
    assert root("rotate", "registry", "nonsense") == 2
    assert "32 hexadecimal digits" in capsys.readouterr().err


def test_bad_input_is_refused_by_name_and_nothing_changes(root, keys, tmp_path, capsys):
    assert root.init("--keys", 1, "--threshold", 2) == 2
    assert "1 keys cannot sign" in capsys.readouterr().err and not root.folder.exists()
    assert root.init() == 0
    before = root.bundle()
    assert root.init() == 2 and "is not empty" in capsys.readouterr().err
    assert root("rotate", "cloud-jobs", keys["jobs"]) == 2
    assert "has this key already" in capsys.readouterr().err
    assert root("rotate", "cloud-jobs") == 2 and "needs a value" in capsys.readouterr().err
    assert root("rotate", "proxy-rosters", keys["jobs"]) == 2
    assert "the cloud's" in capsys.readouterr().err, "who hides senders is not who reads uploads"
    root.passphrase.write_text("wrong\n")
    assert root("rotate", "cloud-jobs", keys["next"]) == 8
    assert "cannot be decrypted" in capsys.readouterr().err
    (root.folder / "keys" / "root-1.key").chmod(0o640)
    assert root("sign", "--renew") == 8 and "chmod 600" in capsys.readouterr().err
    assert root.bundle() == before


def written(path, count=4):
    key = SigningKey.generate()
    for number in range(count):
        AuditLog(path, key).append("admit", {"device": f"d{number}"})
    return path.read_bytes().splitlines(), key


def test_cells_come_and_are_rotated_and_recovered_one_by_one(root, keys, tmp_path, capsys):
    for name in ("north", "south", "site"):
        keys[name] = tmp_path / f"{name}.pub"
        SigningKey.generate().public().save(keys[name])
    assert root.init() == 0
    root.extend("north")
    party = root.believed()
    root.extend("south")
    assert root("rotate", "site", keys["site"]) == 0
    assert root("rotate", "proxy-rosters", keys["next"], "--cell", "north") == 0
    assert root("rotate", "registry", "5f" * 16, "--cell", "south") == 0
    bundle = root.bundle()
    party.take(bundle.roots, bundle.delegations, now_utc())
    found = party.delegated
    assert found.cell_of(VerifyKey.load(keys["next"])) == "north"
    assert found.cell_of(VerifyKey.load(keys["rosters"])) == ""
    north, south = found.cells["north"], found.cells["south"]
    assert (north.rosters.epoch, north.lineage) == (1, "")
    assert (south.rosters.epoch, south.lineage, found.lineage) == (0, "5f" * 16, "")
    assert found.site.key == VerifyKey.load(keys["site"]) and found.site.epoch == 0
    assert root("rotate", "proxy-rosters", "none", "--cell", "south") == 0
    assert root.believed().delegated.cell_of(VerifyKey.load(keys["south"])) is None
    capsys.readouterr()
    assert root("show", "--json") == 0
    shown = json.loads(capsys.readouterr().out)["delegations"]
    assert shown["cells"]["south"]["epoch"] == 1 and shown["site"]["epoch"] == 0


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("rotate", "proxy-rosters", "next", "--cell", "east"), "names no cell 'east'"),
        (("rotate", "cloud-jobs", "next", "--cell", "north"), "cloud-jobs has no key per cell"),
        (("rotate", "proxy-rosters", "rosters", "--cell", "north"), "also another cell's key"),
        (("rotate", "proxy-rosters", "jobs", "--cell", "north"), "also the cloud's key"),
        (("rotate", "registry", "5f" * 16, "--cell", "east"), "names no cell 'east'"),
    ],
)
def test_what_no_cell_may_be_is_refused(root, keys, capsys, command, told):
    keys["north"] = keys["next"].with_name("north.pub")
    SigningKey.generate().public().save(keys["north"])
    assert root.init() == 0
    root.extend("north")
    before = root.bundle()
    keys.pop("north")
    given = [keys.get(word, word) for word in command]
    assert root(*given) == 2
    assert told in capsys.readouterr().err
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
