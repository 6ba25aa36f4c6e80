"""Bundles: whole and signed or refused, and never over what is the owner's."""

from contextlib import nullcontext

import msgspec
import pytest
import yaml

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import ConfigError, UsageError
from edgeveil_tools.site import bundles
from edgeveil_tools.site.bundles import (
    INVENTORY,
    Bundle,
    BundleError,
    Inventory,
    altered,
    digest,
    install,
    inventory_of,
    write_bundle,
)
from tests.kits.site_folders import PowerFailure, contents, cut_after

SITE = SigningKey.generate()


@pytest.fixture
def make(tmp_path):
    """A device's bundle, with its own keys unless it is an update."""

    def made(number=1, *, name="box", key=SITE, text=b"edge: 1\n", given=True, **facts):
        folder = tmp_path / f"{name}-{number}-{len(list(tmp_path.iterdir()))}"
        files = {"edgeveil.yaml": text, "tls/ca.crt": b"ca"}
        own = {"state/identity.key": b"secret of " + name.encode(), "policy.yaml": b"policy: {}\n"}
        for path, content in own.items() if given else ():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        inventory = Inventory(
            **{"fleet": "clinics", "party": "edge", "name": name, "host_kind": "plain"} | facts,
            device_id="a" * 16,
            sequence=number,
            files={path: digest(content) for path, content in files.items()},
            given={path: digest(content) for path, content in own.items()} if given else {},
        )
        write_bundle(folder, inventory, files, key)
        return folder

    return made


@pytest.fixture
def place(tmp_path):
    return tmp_path / "etc" / "box"


def test_it_is_put_in_its_place_whole_and_leaves_there_what_is_the_owners(make, place):
    bundle = make()
    assert len(install(bundle, place).changed) == 4
    assert contents(place) == contents(bundle)
    assert (place / "state" / "identity.key").stat().st_mode & 0o077 == 0
    assert (place / "state").stat().st_mode & 0o777 == 0o700
    assert install(bundle, place).changed == []
    checked = Bundle.open(bundle)
    (bundle / "tls" / "ca.crt").write_bytes(b"another's")
    assert checked.contents["tls/ca.crt"] == b"ca", "what is put is what was checked"
    (place / "policy.yaml").write_bytes(b"policy: mine\n")
    (place / "state" / "ledger.sqlite").write_bytes(b"paid")
    for update in (make(2, text=b"edge: 2\n", given=False), make(3, text=b"edge: 2\n")):
        install(update, place)
        assert (place / "edgeveil.yaml").read_bytes() == b"edge: 2\n"
        assert (place / "policy.yaml").read_bytes() == b"policy: mine\n"
        assert (place / "state" / "ledger.sqlite").read_bytes() == b"paid"


def test_a_later_one_leaves_an_owners_word_in_the_site_file_and_renews_the_rest(make, place):
    given = {"name": "box", "data": {"source": "digits"}, "conditions": {"charging": False}}
    install(make(1, text=yaml.safe_dump({"edge": given}).encode()), place)
    later = {"edge": {**given, "name": "box 2", "conditions": {"charging": True}}}
    install(make(2, text=yaml.safe_dump(later).encode(), given=False), place)
    file = place / "edgeveil.yaml"
    assert yaml.safe_load(file.read_text()) == later  # nobody has changed it here
    own = {"page": {"port": 8799}, "policy": {"lifetime_epsilon": 3.0}, "data": {"source": "csv"}}
    file.write_text(yaml.safe_dump({"edge": {**later["edge"], **own}}))
    newest = {"edge": {**given, "name": "box 3", "policy_file": "policy.yaml"}}
    for number in (3, 4):
        install(make(number, text=yaml.safe_dump(newest).encode(), given=False), place)
        now = yaml.safe_load(file.read_text())["edge"]
        assert now == {"name": "box 3", "conditions": {"charging": True}, **own}
        assert altered(place) == []
    file.write_text(yaml.safe_dump({"edge": {**now, "data": {"source": "npz"}}}))
    assert altered(place) == []
    file.write_text(yaml.safe_dump({"edge": {**now, "name": "box 4"}}))
    assert altered(place) == ["edgeveil.yaml"]
    file.write_text("edge: {policy: [")
    before = contents(place)
    with pytest.raises(ConfigError):
        install(make(5, text=b"edge: {name: box}\n", given=False), place)
    assert contents(place) == before


@pytest.mark.parametrize("link", ["state", "tls", "edgeveil.yaml", "inventory.json"])
def test_who_owns_the_place_does_not_choose_where_else_it_is_put(make, place, tmp_path, link):
    outside = tmp_path / "outside"
    outside.mkdir()
    place.mkdir(parents=True)
    (place / link).symlink_to(outside)
    with pytest.raises(BundleError):
        install(make(), place)
    assert list(outside.iterdir()) == [] and [path.name for path in place.iterdir()] == [link]
    linked = tmp_path / "linked"
    linked.symlink_to(tmp_path / "disk")
    with pytest.raises(BundleError):  # the place itself may be a link, but not to nowhere
        install(make(), linked)
    (tmp_path / "disk").mkdir()
    install(make(), linked)
    assert (tmp_path / "disk" / "edgeveil.yaml").exists()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tls/ca.crt", b"other"),
        ("policy.yaml", None),
        ("tls/more.crt", b"more"),
        ("tls/ca.crt", "/etc/passwd"),
        (INVENTORY, b"{}"),
        ("inventory.sig", b"{}"),
    ],
)
def test_a_tampered_bundle_is_refused_and_nothing_is_half_done(make, place, file, content):
    bundle = make()
    (bundle / file).unlink(missing_ok=True)
    if isinstance(content, str):
        (bundle / file).symlink_to(content)
    elif content:
        (bundle / file).write_bytes(content)
    with pytest.raises(BundleError):
        install(bundle, place)
    assert not place.exists()


def test_it_goes_to_its_own_place_alone(make, place, tmp_path):
    known, foreign = SITE.public().fingerprint(), make(2, key=SigningKey.generate())
    inventory = Inventory.from_bytes((make() / INVENTORY).read_bytes(), "here")
    outside = msgspec.structs.replace(inventory, files={"../escape": "0" * 64})
    refused = [
        lambda: install(foreign, place, site=known),
        lambda: install(make(host="ward-3"), place, host="ward-4"),
        lambda: install(make(2, given=False), place),  # no keys for a new device
        lambda: Inventory.from_bytes(outside.to_bytes(), "here"),
    ]
    for attempt in refused:
        with pytest.raises(BundleError):
            attempt()
    assert not place.exists()
    install(make(host="ward-3"), place, site=known, host="ward-3")
    before = contents(place)
    for other in (foreign, make(2, name="other"), make(2, fleet="schools")):
        with pytest.raises(BundleError):
            install(other, place)
    assert contents(place) == before
    (place / "state" / "identity.key").write_bytes(b"of another box")
    with pytest.raises(BundleError):
        install(make(2), place)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError):
        install(make(), tmp_path / "home")


@pytest.mark.parametrize("update", [False, True])
@pytest.mark.parametrize("whole", [0, 1, 3, 6])
def test_an_installation_that_was_cut_short_is_done_again(make, place, monkeypatch, whole, update):
    if update:
        install(make(), place)
    bundle = make(2, text=b"edge: 2\n")

    def half(path, content):
        path.with_name(f".{path.name}.0123456789abcdef").write_bytes(content[:1])

    with monkeypatch.context() as patch:
        patch.setattr(bundles, "write_durably", cut_after(whole, bundles.write_durably, half))
        ends = whole >= (4 if update else 7)
        with nullcontext() if ends else pytest.raises(PowerFailure):
            install(bundle, place)
    if whole:  # what was begun goes on, and not back
        with pytest.raises(BundleError):
            install(make(1), place)
    newest = make(3, text=b"edge: 3\n")
    install(newest, place)
    assert (altered(place), inventory_of(place).sequence) == ([], 3)
    for path in Bundle.open(newest).inventory.given:
        assert (place / path).read_bytes() == (newest / path).read_bytes()
    assert not (place / bundles.UNDER_WAY).exists()
