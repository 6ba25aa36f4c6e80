"""Bundles: all files of one party of a fleet, to install on its machine.

    edgeveil.yaml      the party's site file; its paths are relative to this folder
    inventory.json     the party, and the SHA-256 digest of each file
    inventory.sig      the site's signature over the inventory
    tls/ trust/ …      files named by the site file
    state/             a new party's own keys; the only folder written to later

*Given* files (keys, passwords, the proposed policy) are installed once; later bundles omit them.
All writers of site files keep the owner's settings (`keep_owner_settings`)."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
import yaml
from cryptography import x509

from edgeveil.config.file import parsed, read
from edgeveil.config.proxy import ProxySite
from edgeveil.config.site_files import load_site
from edgeveil.crypto.keys import SigningKey, VerifyKey, sign, verify
from edgeveil.crypto.labels import BUNDLE
from edgeveil.errors import CryptoError, EdgeVeilError, UsageError
from edgeveil.storage import write_durably

FORMAT = 1
INVENTORY, SIGNATURE = "inventory.json", "inventory.sig"
UNDER_WAY = ".installing"  # the new inventory, while an installation is incomplete
STATE = "state"
SITE_FILE = "edgeveil.yaml"
GIVEN_FILE = ".edgeveil.yaml.given"  # the original of a site file that its owner changed
TRUST_FILE = "trust/trust.json"
OWNERS_BLOCKS = (
    *("role", "device", "log"),
    *("data", "policy", "policy_file", "conditions", "inference", "page"),
)
"""Keys of a device's site file that belong to its owner."""
IDENTITY = f"{STATE}/identity.key"
INVENTORY_BYTES = 4 << 20
FILE_BYTES = 256 << 20
_SECRET = ("passwords/", f"{STATE}/")
_FLOOR = "min_batch_floor"
_FIX = "install the party's newest bundle (edgeveil site apply)"


class BundleError(EdgeVeilError):
    """A bundle is damaged, forged, too old, or for another place."""

    exit_code = 2


class Inventory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signed list of a bundle, with a `sequence` that grows with each applied change.

    `files` and `given` map paths to SHA-256 digests (hex)."""

    format: int = FORMAT
    fleet: str
    party: str
    name: str
    host_kind: str
    sequence: int
    host: str | None = None
    device_id: str | None = None
    files: dict[str, str]
    given: dict[str, str] = {}

    def to_bytes(self) -> bytes:
        ordered = msgspec.structs.replace(
            self, files=dict(sorted(self.files.items())), given=dict(sorted(self.given.items()))
        )
        return msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> Inventory:
        try:
            found = msgspec.json.decode(raw, type=cls)
        except (msgspec.DecodeError, RecursionError):
            found = None
        if found is not None and found.format != FORMAT:
            fix = "install the edgeveil that wrote it"
            raise BundleError("is of another format", where=where, fix=fix)
        if found is None or not named_inside(found.files | found.given):
            raise BundleError("is no inventory", where=where, fix="get the bundle again")
        return found


def keep_owner_settings(settings: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return new settings merged with the owner's in `file`; raises ConfigError.

    Kept are the `OWNERS_BLOCKS` of a device, and a larger `min_batch_floor` of a proxy."""
    ((party, planned),) = settings.items()
    if party not in ("edge", "proxy") or not isinstance(planned, dict) or not file.exists():
        return settings
    found = parsed(read(file), str(file)).value
    kept = found.get(party) if isinstance(found, dict) else None
    if not isinstance(kept, dict):
        return settings
    if party == "proxy":
        floor = kept.get(_FLOOR)
        least = planned.get(_FLOOR, ProxySite.model_fields[_FLOOR].default)
        raised = type(floor) is int and floor > least
        return {party: {**planned, _FLOOR: floor}} if raised else settings
    new = {key: value for key, value in planned.items() if key not in OWNERS_BLOCKS}
    return {"edge": {**new, **{key: kept[key] for key in OWNERS_BLOCKS if key in kept}}}


def site_text(settings: dict[str, Any]) -> str:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(settings, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text


def named_inside(digests: Mapping[str, str]) -> bool:
    pure = [PurePosixPath(path) for path in digests]
    outside = any(path.is_absolute() or ".." in path.parts for path in pure)
    whole = all(path and "\0" not in path and len(sha) == 64 for path, sha in digests.items())
    return whole and not outside


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_secret(path: str) -> bool:
    return path.endswith(".key") or path.startswith(_SECRET)


def write_bundle(
    folder: Path, inventory: Inventory, files: Mapping[str, bytes], key: SigningKey
) -> None:
    """Replace the bundle in `folder` as a whole, keeping its given files."""
    new, old = _swap_folders(folder)
    settle(folder)
    for path in inventory.given:
        (new / path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            (new / path).hardlink_to(folder / path)
        except OSError:  # a disk without links
            shutil.copy2(folder / path, new / path)
    for path, content in files.items():
        _write(new / path, content, secret=is_secret(path))
    raw = inventory.to_bytes()
    signature = {"key": key.public().to_bytes().hex(), "signature": sign(key, BUNDLE, raw).hex()}
    _write(new / INVENTORY, raw)
    _write(new / SIGNATURE, (json.dumps(signature) + "\n").encode())
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    settle(folder)


def settle(folder: Path) -> None:
    """Complete or undo an interrupted `write_bundle`."""
    new, old = _swap_folders(folder)
    if old.exists() and not folder.exists():
        new.rename(folder)
    for left in (new, old):
        if left.exists():
            shutil.rmtree(left)


def _swap_folders(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f".new-{folder.name}"), folder.with_name(f".old-{folder.name}")


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Write without syncing: the caller syncs all bundles at once."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    mode = 0o600 if secret else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


@dataclass(frozen=True)
class Bundle:
    folder: Path
    inventory: Inventory
    signer: VerifyKey
    signed: Mapping[str, str]  # texts of inventory and signature
    contents: Mapping[str, bytes]  # of all listed files

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        """Read and check all files, but not the identity of `signer`; raises BundleError."""
        signed = _read_signed(folder)
        inventory, signer = _verified(folder, signed)
        listed = {**inventory.files, **inventory.given}
        there = (one for one in folder.rglob("*") if one.is_symlink() or not one.is_dir())
        found = {one.relative_to(folder).as_posix() for one in there}
        for path in sorted(found - {INVENTORY, SIGNATURE, *listed}):
            raise _tampered(folder / path, "is not in the inventory")
        contents = {}
        for path, wanted in sorted(listed.items()):
            file = folder / path
            if file.is_symlink() or not file.is_file():
                raise _tampered(file, "is missing")
            contents[path] = b"" if file.stat().st_size > FILE_BYTES else file.read_bytes()
            if digest(contents[path]) != wanted:
                raise _tampered(file, "differs from the inventory")
        return cls(folder, inventory, signer, signed, contents)


def _read_signed(folder: Path) -> dict[str, str]:
    try:
        return {name: _read(folder / name).decode() for name in (INVENTORY, SIGNATURE)}
    except FileNotFoundError:
        fix = "name a folder of `edgeveil site apply`"
        raise BundleError("is no bundle", where=str(folder), fix=fix) from None
    except UnicodeDecodeError:
        raise _tampered(folder / INVENTORY, "is no text") from None


def _verified(folder: Path, signed: Mapping[str, str]) -> tuple[Inventory, VerifyKey]:
    file = folder / INVENTORY
    try:
        raw, found = signed[INVENTORY].encode(), json.loads(signed[SIGNATURE])
        key, signature = VerifyKey(bytes.fromhex(found["key"])), bytes.fromhex(found["signature"])
    except (ValueError, TypeError, KeyError, RecursionError, CryptoError):
        raise _tampered(folder / SIGNATURE, "is no signature") from None
    if not verify(key, BUNDLE, raw, signature):
        raise _tampered(file, "differs from the signed content")
    return Inventory.from_bytes(raw, str(file)), key


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        raw = file.read(INVENTORY_BYTES + 1)
    if len(raw) > INVENTORY_BYTES:
        raise _tampered(path, f"is over {INVENTORY_BYTES} bytes")
    return raw


def _tampered(path: Path, what: str) -> BundleError:
    fix = "the bundle was changed or damaged: copy it again"
    return BundleError(what, where=str(path), fix=fix)


def inventory_of(folder: Path) -> Inventory:
    """Return the verified inventory of a bundle or installation; raises BundleError."""
    return _verified(folder, _read_signed(folder))[0]


def altered(place: Path) -> list[str]:
    """Return the changed files of an installed bundle, ignoring the owner's blocks."""
    found = []
    for path, wanted in sorted(inventory_of(place).files.items()):
        same = (place / path).is_file() and digest((place / path).read_bytes()) == wanted
        if not same and not (path == SITE_FILE and _differs_by_owner_only(place, wanted)):
            found.append(path)
    return found


def _differs_by_owner_only(place: Path, wanted: str) -> bool:
    """Return whether a site file differs from the given one only in the owner's blocks."""
    given, file = place / GIVEN_FILE, place / SITE_FILE
    if not (given.is_file() and file.is_file()) or digest(given.read_bytes()) != wanted:
        return False
    new = keep_owner_settings(parsed(given.read_bytes(), str(given)).value, file)
    return bool(new == parsed(file.read_bytes(), str(file)).value)


def problems_of(place: Path, days: int) -> list[str]:
    """Return problems of an installed bundle, now or within `days`; raises BundleError."""
    from edgeveil.trust.bundle import TrustBundle  # imports tuf, which a run does not need

    inventory = inventory_of(place)
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    found = [f"{path}: was changed after the installation. {_FIX}" for path in altered(place)]
    try:
        load_site(place / SITE_FILE)
    except EdgeVeilError as error:
        found += str(error).splitlines()
    for path in sorted([*inventory.files, f"{STATE}/edge.crt"]):
        if path.endswith(".crt") and (place / path).exists():
            try:
                pems = x509.load_pem_x509_certificates((place / path).read_bytes())
                ends = min(one.not_valid_after_utc for one in pems)
            except ValueError:
                found.append(f"{path}: holds no certificate. {_FIX}")
                continue
            found += [f"{path}: ends {ends:%Y-%m-%d}. {_FIX}"] if ends <= soon else []
    held = [path for path in (f"{STATE}/trust.json", TRUST_FILE) if (place / path).exists()]
    for path in held[:1]:
        fix = "at the root: edgeveil trust sign --renew"
        try:
            if problem := TrustBundle.load(place / path).verified().problem(soon):
                found.append(f"{path}: by {soon:%Y-%m-%d} {problem}. {fix}")
        except EdgeVeilError as error:
            found.append(f"{path}: {error}")
    return found


class Installed(NamedTuple):
    """The files that an installation changed, and the party's own files that it kept."""

    inventory: Inventory
    changed: list[str]
    kept: list[str]


def install(
    bundle: Path, to: Path, *, site: str | None = None, host: str | None = None
) -> Installed:
    """Install a bundle, fully checked before the first write; may be repeated after a crash.

    `site` is the expected fingerprint of the site's key, `host` this machine's name. Raises
    BundleError if the bundle is damaged, for another party or host, signed by another site, older
    than the installed one, or lacks a new party's keys; UsageError if the folder holds other
    files."""
    given = Bundle.open(bundle)
    new = given.inventory
    _check_links(to, [*new.files, *new.given, *given.signed])
    found = _in_place(to)
    for what, fix in _objections(given, to, found, site, host or socket.gethostname()):
        raise BundleError(what, where=str(bundle), fix=fix)
    before = [old for old, _ in found]
    contents = {path: given.contents[path] for path in new.files}
    if SITE_FILE in contents:
        contents[SITE_FILE] = _with_owner_blocks(contents[SITE_FILE], to / SITE_FILE, before)
    to.mkdir(mode=0o750, parents=True, exist_ok=True)
    _put(json.dumps(dict(given.signed)).encode(), to / UNDER_WAY)
    if not (to / STATE).exists():
        (to / STATE).mkdir(mode=0o700)
        _give_to_owner(to / STATE, to)
    changed, kept = list[str](), [path for path in sorted(new.given) if (to / path).exists()]
    first = {path: given.contents[path] for path in sorted(new.given) if path not in kept}
    for path, content in (first | dict(sorted(contents.items()))).items():
        if not (to / path).is_file() or (to / path).read_bytes() != content:
            changed.append(path)
            _put(content, to / path, secret=is_secret(path))
    if SITE_FILE in contents and contents[SITE_FILE] != given.contents[SITE_FILE]:
        _put(given.contents[SITE_FILE], to / GIVEN_FILE)
    for path in sorted({path for one in before for path in one.files} - {*new.files, *new.given}):
        (to / path).unlink(missing_ok=True)
    for path, text in given.signed.items():
        _put(text.encode(), to / path)
    (to / UNDER_WAY).unlink()
    return Installed(new, changed, kept)


def _with_owner_blocks(content: bytes, there: Path, before: list[Inventory]) -> bytes:
    installed = {one.files.get(SITE_FILE) for one in before}
    if not there.is_file() or digest(there.read_bytes()) in installed:
        return content
    new = parsed(content, SITE_FILE).value
    kept = keep_owner_settings(new, there)
    return content if kept == new else site_text(kept).encode()


def _check_links(to: Path, paths: Iterable[str]) -> None:
    """Refuse symbolic links: the folder's owner must not choose where root writes."""
    written = {part for path in paths for part in ((to / path), *(to / path).parents)}
    for part in sorted(written):
        if part.is_relative_to(to) and part.is_symlink() and (part != to or not part.exists()):
            fix = "create the folder, or mount it"
            raise BundleError("is a symbolic link", where=str(part), fix=fix)


def _objections(
    given: Bundle, to: Path, found: list[tuple[Inventory, VerifyKey]], site: str | None, host: str
) -> Iterator[tuple[str, str]]:
    new, signer = given.inventory, given.signer.fingerprint()
    mine, theirs = to / IDENTITY, given.contents.get(IDENTITY)
    if new.host not in (None, host):
        fix = "use the bundle of this machine, or correct its host in the fleet file"
        yield f"is for the machine {new.host}, and this is {host}", fix
    if site not in (None, signer):
        fix = "get the bundle and the key's fingerprint from the site's administrator"
        yield f"is signed by site {signer}, not by {site}", fix
    if new.device_id and not (theirs or mine.exists() or (to / INVENTORY).exists()):
        fix = f"name {new.name}'s folder, or revoke it and add a device of another name"
        yield "updates a device that is in place; it holds no keys for a new one", fix
    for old, known in found:
        if (old.fleet, old.party, old.name) != (new.fleet, new.party, new.name):
            here = f"here is {old.name} of fleet {old.fleet}"
            fix = "use the bundle of this party"
            yield f"is {new.name}'s of fleet {new.fleet}, and {here}", fix
        if known != given.signer:
            fix = "ask the site's administrator; if its key was replaced, remove inventory.sig and"
            yield "is signed by another site than the one before", f"{fix} inventory.json here"
        if new.sequence < old.sequence:
            what = f"is number {new.sequence}, older than number {old.sequence} in place"
            yield what, "use the newest bundle"
    if theirs is not None and mine.exists() and mine.read_bytes() != theirs:
        fix = "its ledger is another's: install to a new folder"
        yield "holds another identity than the device in place", fix


def _in_place(to: Path) -> list[tuple[Inventory, VerifyKey]]:
    """Return the inventory of an installed bundle, and of an interrupted installation."""
    found = []
    begun = to / UNDER_WAY
    if begun.exists():
        try:
            found.append(_verified(to, json.loads(_read(begun))))
        except (ValueError, TypeError, AttributeError):
            raise _tampered(begun, "is no inventory") from None
    if (to / INVENTORY).exists():
        try:
            found.append(_verified(to, _read_signed(to)))
        except BundleError:  # a crash may have left its two files inconsistent
            if not found:
                raise
    names = [path.name for path in to.iterdir()] if to.exists() else []
    scratch = f".{UNDER_WAY}."  # temporary files of write_durably
    if not found and not all(name == STATE or name.startswith(scratch) for name in names):
        fix = "name a new folder, or the one of this party"
        raise UsageError("is not empty and holds no bundle", where=str(to), fix=fix)
    return found


def _put(content: bytes, to: Path, *, secret: bool = False) -> None:
    made = [folder for folder in (to.parent, *to.parents) if not folder.exists()]
    to.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    write_durably(to, content, mode=0o600 if secret else 0o640)
    owner = next(folder for folder in to.parents if folder not in made)
    for path in (*reversed(made), to):
        _give_to_owner(path, owner)


def _give_to_owner(path: Path, folder: Path) -> None:
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
