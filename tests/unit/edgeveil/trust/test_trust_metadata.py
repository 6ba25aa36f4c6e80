"""The attacks on metadata that TUF names, played on what a party holds."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from edgeveil.crypto.keys import SigningKey
from edgeveil.trust.bundle import StoredTrust, TrustBundle
from edgeveil.trust.metadata import (
    DOCUMENT_BYTES,
    ROLES,
    CellProxy,
    Delegated,
    RoleKey,
    TrustedMetadata,
    TrustError,
    document_bytes,
    make_delegations,
    make_root,
    read_delegations,
    root_keys,
    sign_document,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ROOT = [SigningKey(bytes([n]) * 32) for n in (1, 2, 3)]
OTHER = SigningKey(bytes([9]) * 32)
ROLE_KEYS = {role: SigningKey(bytes([n]) * 32).public() for n, role in enumerate(ROLES, 20)}


def root(version=1, keys=ROOT, threshold=2, by=ROOT[:2], days=365):
    made = make_root(version, [k.public() for k in keys], threshold, NOW + timedelta(days=days))
    for key in by:
        sign_document(made, key)
    return document_bytes(made)


def delegate(version=1, *, days=90, by=ROOT[:2], epoch=0, **changed):
    roles = {role: RoleKey(key, epoch) for role, key in ROLE_KEYS.items()}
    fields = {"roles": roles} | changed
    made = make_delegations(Delegated(version, NOW + timedelta(days=days), **fields))
    for key in by:
        sign_document(made, key)
    return document_bytes(made)


def held(version=1, **changed):
    trusted = TrustedMetadata(root())
    trusted.take((), delegate(version, **changed), NOW)
    return trusted


def refused(trusted, roots, document=b""):
    before = dict(trusted.__dict__)
    with pytest.raises(TrustError) as caught:
        trusted.take(roots, document, NOW)
    assert trusted.__dict__ == before, "what is refused changes nothing"
    return caught.value.reason


def test_what_the_root_signed_is_read_back():
    authorities = {"edge": "-----BEGIN-----\n", "edge-north": "B"}
    site = RoleKey(SITE, 2)
    trusted = held(lineage="5e" * 16, authorities=authorities, cells=cells(), site=site)
    roles = {role: RoleKey(key) for role, key in ROLE_KEYS.items()}
    ends, found = NOW + timedelta(days=90), trusted.delegated
    assert found == Delegated(1, ends, roles, "5e" * 16, authorities, cells(), site)
    assert trusted.problem(NOW) == "" and root_keys(trusted.roots[0])[1] == 2
    owners = [found.cell_of(key) for key in (SOUTH, ROLE_KEYS["proxy-rosters"], SITE)]
    assert owners == ["south", "", None]
    with pytest.raises(TrustError) as caught:
        found.proxy_of("east")
    assert caught.value.reason == "unknown_cell"


@pytest.mark.parametrize("by", [(), ROOT[:1], [ROOT[0], ROOT[0]], [ROOT[0], OTHER]])
def test_too_few_signatures_are_refused(by):
    assert refused(held(), (), delegate(2, by=by)) == "too_few_signatures"
    assert refused(held(), (root(2, by=by),)) == "too_few_signatures"


def test_rollback_and_a_second_text_of_one_version_are_refused():
    trusted = held(3)
    for version in (2, 3):
        assert refused(trusted, (), delegate(version, days=91)) == "metadata_rollback"
    assert trusted.take((), delegate(3), NOW) is False, "the same document is no rollback"
    assert refused(held(1, epoch=4), (), delegate(2, epoch=3)) == "metadata_rollback"
    assert refused(held(), (root(1, days=400),)) == "metadata_rollback"


def test_expired_metadata_are_refused_and_what_expires_later_is_believed_no_more():
    assert refused(held(), (), delegate(2, days=0)) == "metadata_expired"
    assert refused(held(), (root(2, days=0),)) == "metadata_expired"
    trusted = held()
    assert "delegations expired" in trusted.problem(NOW + timedelta(days=91))
    assert "root expired" in trusted.problem(NOW + timedelta(days=366))


NEW = [SigningKey(bytes([n]) * 32) for n in (4, 5)]


def test_a_root_follows_the_one_before_and_needs_both_signatures():
    for by in (NEW, ROOT[:2]):
        assert refused(held(), (root(2, keys=NEW, by=by),)) == "too_few_signatures"
    second = root(2, keys=NEW, by=[*ROOT[:2], *NEW])
    third = root(3, keys=NEW, by=NEW)
    assert refused(held(), (third,)) == "metadata_gap"
    trusted = held()
    assert trusted.take((second, third), delegate(2, by=NEW), NOW)
    assert (trusted.root_version, trusted.version) == (3, 2)
    assert refused(trusted, (), delegate(9, by=ROOT)) == "too_few_signatures", (
        "the old keys are out"
    )


def test_delegations_end_with_the_root_that_signed_them():
    second = root(2, keys=NEW[:1], threshold=1, by=[*ROOT[:2], NEW[0]])
    assert refused(held(), (second,), delegate(2)) == "too_few_signatures"
    assert refused(held(3), (root(2, days=400),), delegate(2)) == "metadata_rollback"
    trusted = held()
    trusted.take((second,), b"", NOW)
    assert trusted.delegated is None and trusted.problem(NOW)
    trusted.take((), delegate(1, by=NEW[:1]), NOW)
    assert trusted.problem(NOW) == "", "a fast-forwarded version is repaired by a new root"
    for version in (1, 2, 3):
        assert refused(trusted, (), delegate(version)) == "too_few_signatures"


@pytest.mark.parametrize("role", ROLES)
def test_one_role_s_key_of_another_version_is_refused(role):
    """Each document is right by itself; the key of one role is taken from the one before."""
    rotated = {name: RoleKey(key) for name, key in ROLE_KEYS.items()}
    rotated[role] = RoleKey(OTHER.public(), 1)
    before, after = json.loads(delegate(1)), json.loads(delegate(2, roles=rotated))
    old, new = (one["signed"]["delegations"] for one in (before, after))
    (place,) = (n for n, one in enumerate(new["roles"]) if one["name"] == role)
    (known,) = (one for one in old["roles"] if one["name"] == role)
    new["roles"][place] = known
    new["keys"] |= {keyid: old["keys"][keyid] for keyid in known["keyids"]}
    mixed = json.dumps(after).encode()
    assert read_delegations(mixed).roles[role].key == ROLE_KEYS[role], "it is in good form"
    assert refused(held(), (), mixed) == "too_few_signatures"
    trusted = held()
    trusted.take((), delegate(2, roles=rotated), NOW)
    assert refused(trusted, (), mixed) == "too_few_signatures"
    assert trusted.delegated.roles[role].key == OTHER.public()


@pytest.mark.parametrize(
    "raw",
    [
        b"{}",
        b"[" * 100_000,
        b"\xff",
        bytes(DOCUMENT_BYTES + 1),
        b'{"signed": {"_type": "timestamp"}, "signatures": []}',
    ],
    ids=range(5),
)
def test_what_is_no_metadata_is_refused(raw):
    assert refused(held(), (raw,)) == refused(held(), (), raw) == "malformed_metadata"


OTHER_CELLS = ["x", ["north"], {"north": 3}, {"north": {"keyid": "x", "epoch": 0}}]


@pytest.mark.parametrize("change", ["role", "epoch", "lineage", "pem", "scheme", *OTHER_CELLS])
def test_signed_delegations_of_another_form_are_refused(change):
    roles = {role: RoleKey(key) for role, key in ROLE_KEYS.items()}
    content = Delegated(2, NOW + timedelta(days=9), roles, authorities={"edge": "PEM"})
    made = make_delegations(content)
    delegations = made.signed.delegations
    match change:
        case "role":
            del delegations.roles["cloud-releases"]
        case "epoch":
            delegations.roles["cloud-jobs"].unrecognized_fields["epoch"] = -1
        case "lineage":
            delegations.roles["proxy-rosters"].unrecognized_fields["lineage"] = "../x"
        case "pem":
            made.signed.targets["authorities/edge.pem"].unrecognized_fields["custom"]["pem"] = "X"
        case "scheme":
            for key in delegations.keys.values():
                key.keytype = "rsa"
        case cells:
            made.signed.unrecognized_fields["cells"] = cells
    for key in ROOT[:2]:
        sign_document(made, key)
    assert refused(held(), (), document_bytes(made)) == "malformed_metadata"


def test_who_is_behind_is_sent_exactly_what_is_missing():
    trusted, second = held(), root(2, by=ROOT)
    trusted.take((second,), delegate(2), NOW)
    for known, missing in (
        ((1, 1), ((second,), delegate(2))),
        ((2, 1), ((), delegate(2))),
        ((2, 2), ((), b"")),
        ((0, 0), ((root(), second), delegate(2))),
    ):
        assert trusted.after(*known) == missing


# --- cells ---

NORTH, SOUTH, SITE = (SigningKey(bytes([n]) * 32).public() for n in (30, 31, 32))


def cells(**changed):
    both = {"north": CellProxy(RoleKey(NORTH), "0a" * 16), "south": CellProxy(RoleKey(SOUTH))}
    return both | changed


def test_parties_of_before_read_a_document_with_cells():
    plain = json.loads(delegate())["signed"]
    assert "cells" not in plain and "site" not in plain
    signed = json.loads(delegate(cells=cells(), site=RoleKey(SITE)))["signed"]
    assert [one["name"] for one in signed["delegations"]["roles"]] == list(ROLES)


def test_one_cells_key_is_replaced_and_no_epoch_goes_back():
    north = CellProxy(RoleKey(OTHER.public(), 1))
    trusted = held(cells=cells(), site=RoleKey(SITE, 1))
    trusted.take((), delegate(2, cells=cells(north=north), site=RoleKey(SITE, 1)), NOW)
    assert trusted.delegated.cell_of(OTHER.public()) == "north"
    assert trusted.delegated.cell_of(NORTH) is None
    assert trusted.delegated.proxy_of("south") == cells()["south"]
    for after, site in (
        (cells(), 1),  # an epoch before
        ({"south": cells()["south"]}, 1),  # taken out
        (cells(north=north), 0),
    ):
        late = delegate(3, cells=after, site=RoleKey(SITE, site))
        assert refused(trusted, (), late) == "metadata_rollback"


@pytest.mark.parametrize(
    "bad",
    [
        cells(north=CellProxy(RoleKey(SOUTH))),
        cells(north=CellProxy(RoleKey(ROLE_KEYS["proxy-rosters"]))),
        {"North": CellProxy(RoleKey(NORTH))},
        {"": CellProxy(RoleKey(NORTH))},
        cells(north=CellProxy(RoleKey(NORTH), "../x")),
        cells(north=CellProxy(RoleKey(NORTH, -1))),
    ],
    ids=["shared key", "the unnamed cell's key", "capitals", "no name", "lineage", "epoch"],
)
def test_cells_of_another_form_are_refused(bad):
    assert refused(held(), (), delegate(2, cells=bad)) == "malformed_metadata"


# --- on disk ----------------------------------------------------------------------------------


def bundle(path, *roots, document):
    path.write_text(TrustBundle(roots, document).to_text())
    return path


@pytest.fixture
def given(tmp_path):
    return bundle(tmp_path / "given.json", root(), document=delegate(1))


def party(tmp_path, given, now=NOW):
    (tmp_path / "state").mkdir(exist_ok=True)
    return StoredTrust(tmp_path / "state", given, lambda: now)


def test_a_party_keeps_what_it_verified_and_takes_newer_files_while_it_runs(tmp_path, given):
    first = party(tmp_path, given)
    assert first.take((), delegate(5)) and first.look() is False
    again = party(tmp_path, given)  # its file is older than what it holds
    assert again.metadata.version == 5 and again.complaint
    assert (tmp_path / "state" / "trust.json").stat().st_mode & 0o077 == 0
    bundle(given, root(), document=delegate(6))
    assert again.look() is True and again.metadata.version == 6
    bundle(given, root(), document=delegate(7, by=ROOT[:1]))
    assert again.look() is False and "too few signatures" in again.complaint
    bundle(given, root(keys=[OTHER], threshold=1, by=[OTHER]), document=delegate(9, by=[OTHER]))
    assert "another root" in party(tmp_path, given).complaint
    given.write_text("{}")
    assert party(tmp_path, given).complaint and party(tmp_path, given).metadata.version == 6


def test_a_first_start_needs_a_file_that_is_valid(tmp_path):
    bundle(tmp_path / "old.json", root(), document=delegate(1, days=0))
    for name in ("nowhere.json", "old.json"):
        with pytest.raises(TrustError):
            party(tmp_path, tmp_path / name)


def test_an_end_is_announced_and_what_expired_is_kept(tmp_path, given):
    ages = [party(tmp_path, given, NOW + timedelta(days=days)) for days in (0, 70, 100)]
    assert [bool(one.warning) for one in ages[:2]] == [False, True]
    assert [bool(one.problem) for one in ages] == [False, False, True]
