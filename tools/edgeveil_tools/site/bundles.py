"""A bundle: all files of one party of a fleet, and nobody else's, to be put on its machine.

    edgeveil.yaml      the party's site file; every path in it counts from this folder
    inventory.json     whose bundle it is, and the SHA-256 digest of each file
    inventory.sig      the site's signature over it
    tls/ trust/ …      what the site file names
    state/             a new party's own keys; the one folder that is written to later

What is *given* (keys, passwords, the proposed policy) is installed once and never again: a later
bundle holds none of it, and leaves the owner's as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from edgeveil.crypto.keys import SigningKey, VerifyKey, sign, verify
from edgeveil.crypto.labels import BUNDLE
from edgeveil.errors import CryptoError, EdgeVeilError, UsageError
from edgeveil.storage import write_durably

FORMAT = 1
INVENTORY, SIGNATURE = "inventory.json", "inventory.sig"
STATE = "state"
IDENTITY = f"{STATE}/identity.key"
INVENTORY_BYTES = 4 << 20
FILE_BYTES = 256 << 20
_SECRET = ("passwords/", f"{STATE}/")


class BundleError(EdgeVeilError):
    """A bundle is damaged, forged, too old, or for another place."""

    exit_code = 2


@dataclass(frozen=True)
class Inventory:
    """Whose bundle it is. `files` are replaced by each bundle, `given` are put there once; both map
    paths to SHA-256 digests (hex). `sequence` grows with every change that the site applies."""

    fleet: str
    party: str
    name: str
    host_kind: str
    sequence: int
    files: Mapping[str, str]
    given: Mapping[str, str] = field(default_factory=dict)
    host: str | None = None
    device_id: str | None = None

    def to_bytes(self) -> bytes:
        """As it stands in the file and is signed."""
        said = {
            "format": FORMAT,
            **{key: value for key, value in vars(self).items() if key not in ("files", "given")},
            "files": dict(sorted(self.files.items())),
            "given": dict(sorted(self.given.items())),
        }
        return (json.dumps(said, indent=1) + "\n").encode()

    @classmethod
    def from_bytes(cls, raw: bytes, where: str) -> Inventory:
        """Raises BundleError for anything else."""
        try:
            said = json.loads(raw)
            if said.pop("format") != FORMAT:
                fix = "install the edgeveil that wrote it"
                raise BundleError("is of another format", where=where, fix=fix)
            found = cls(**said)
            text = (found.fleet, found.party, found.name, found.host_kind)
            sound = all(isinstance(one, str) for one in text) and isinstance(found.sequence, int)
            listed = {**found.files, **found.given}
            sound = sound and all(_inside(path) and len(d) == 64 for path, d in listed.items())
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            sound = False
        if not sound:
            raise BundleError("is no inventory", where=where, fix="take the bundle anew")
        return found


def _inside(path: str) -> bool:
    """Whether a path stays in the folder that it counts from."""
    pure = PurePosixPath(path)
    return bool(path) and not pure.is_absolute() and ".." not in pure.parts and "\0" not in path


def digest(content: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def is_secret(path: str) -> bool:
    """Whether nobody but the party may read it."""
    return path.endswith(".key") or path.startswith(_SECRET)


def write_bundle(
    folder: Path, inventory: Inventory, files: Mapping[str, bytes], key: SigningKey
) -> None:
    """Put `files` and the signed inventory in `folder`, and take out what it no longer lists."""
    for path, content in files.items():
        _write(folder / path, content, secret=is_secret(path))
    raw = inventory.to_bytes()
    said = {"key": key.public().to_bytes().hex(), "signature": sign(key, BUNDLE, raw).hex()}
    _write(folder / INVENTORY, raw)
    _write(folder / SIGNATURE, (json.dumps(said) + "\n").encode())
    listed = {*inventory.files, *inventory.given, INVENTORY, SIGNATURE}
    for extra in _paths(folder) - listed:
        (folder / extra).unlink()


def _write(path: Path, content: bytes, *, secret: bool = False) -> None:
    """Not yet durable: a thousand bundles wait for the disk together."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    mode = 0o600 if secret else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _paths(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_symlink() or not path.is_dir()
    }


@dataclass(frozen=True)
class Bundle:
    """A bundle as it was found: whole, and signed by `signer`."""

    folder: Path
    inventory: Inventory
    signer: VerifyKey

    @classmethod
    def open(cls, folder: Path) -> Bundle:
        """Read and check all of it. Raises BundleError that names the first file that is not right.

        Whether `signer` is the right one is another question.
        """
        inventory, signer = _signed(folder)
        listed = {**inventory.files, **inventory.given}
        found = _paths(folder) - {INVENTORY, SIGNATURE}
        for path in sorted(found - set(listed)):
            raise _tampered(folder / path, "is not in the inventory")
        for path, wanted in sorted(listed.items()):
            file = folder / path
            if file.is_symlink() or not file.is_file():
                raise _tampered(file, "is missing")
            if file.stat().st_size > FILE_BYTES or digest(file.read_bytes()) != wanted:
                raise _tampered(file, "is not what the inventory says")
        return cls(folder, inventory, signer)


def _signed(folder: Path) -> tuple[Inventory, VerifyKey]:
    file = folder / INVENTORY
    try:
        raw, signed = _read(file), json.loads(_read(folder / SIGNATURE))
        key, signature = VerifyKey(bytes.fromhex(signed["key"])), bytes.fromhex(signed["signature"])
    except FileNotFoundError:
        fix = "name a folder that `edgeveil site apply` made"
        raise BundleError("is no bundle", where=str(folder), fix=fix) from None
    except (ValueError, TypeError, KeyError, RecursionError, CryptoError):
        raise _tampered(folder / SIGNATURE, "is no signature") from None
    if not verify(key, BUNDLE, raw, signature):
        raise _tampered(file, "is not what was signed")
    return Inventory.from_bytes(raw, str(file)), key


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        raw = file.read(INVENTORY_BYTES + 1)
    if len(raw) > INVENTORY_BYTES:
        raise BundleError(f"is over {INVENTORY_BYTES} bytes", where=str(path), fix="take it anew")
    return raw


def _tampered(path: Path, what: str) -> BundleError:
    fix = "the bundle was changed or damaged on its way: take it anew"
    return BundleError(what, where=str(path), fix=fix)


def inventory_of(folder: Path) -> Inventory:
    """Of a bundle or a place, its signature checked. Raises BundleError."""
    return _signed(folder)[0]


def altered(place: Path) -> list[str]:
    """Which files of an installed bundle are not what was installed; what is the owner's aside."""
    return [
        path
        for path, wanted in sorted(inventory_of(place).files.items())
        if not (place / path).is_file() or digest((place / path).read_bytes()) != wanted
    ]


@dataclass(frozen=True)
class Installed:
    """What an installation did: how many files are new or changed, and which were kept."""

    inventory: Inventory
    changed: tuple[str, ...]
    kept: tuple[str, ...]


def install(
    bundle: Path, to: Path, *, site: str | None = None, host: str | None = None
) -> Installed:
    """Put a bundle in its place. Everything is checked before the first file is written; doing it
    again after a crash ends it.

    `site`: the fingerprint of the site's key, where it is known; a folder in use knows it itself.
    `host`: this machine's name. Raises BundleError: tampered, for another party or host, signed by
    another site, older than what is there, without keys for a new party; UsageError for a folder
    that holds something else.
    """
    given = Bundle.open(bundle)
    _check_place(given, to, site, host or socket.gethostname())
    new = given.inventory
    to.mkdir(mode=0o750, parents=True, exist_ok=True)
    before = _signed(to)[0] if (to / INVENTORY).exists() else None
    changed, kept = [], []
    for path in sorted(new.given):
        if (to / path).exists():
            kept.append(path)
        else:
            changed.append(path)
            _put(bundle / path, to / path, secret=is_secret(path))
    for path, wanted in sorted(new.files.items()):
        if not (to / path).is_file() or digest((to / path).read_bytes()) != wanted:
            changed.append(path)
            _put(bundle / path, to / path, secret=is_secret(path))
    for path in sorted(set(before.files if before else ()) - {*new.files, *new.given}):
        (to / path).unlink(missing_ok=True)
    (to / STATE).mkdir(mode=0o700, exist_ok=True)
    for path in (SIGNATURE, INVENTORY):
        _put(bundle / path, to / path)
    return Installed(new, tuple(changed), tuple(kept))


def _check_place(given: Bundle, to: Path, site: str | None, host: str) -> None:
    new, where = given.inventory, str(given.folder)
    if new.host is not None and new.host != host:
        raise BundleError(
            f"is for the machine {new.host}, and this is {host}",
            where=where,
            fix="take the bundle of this machine, or correct its host in the plan",
        )
    if site is not None and site != given.signer.fingerprint():
        raise BundleError(
            f"is signed by site {given.signer.fingerprint()}, not by {site}",
            where=where,
            fix="ask who keeps the site for its bundle and its key's fingerprint",
        )
    mine = to / IDENTITY
    if not to.exists() or {path.name for path in to.iterdir()} <= {STATE}:
        if new.device_id is not None and IDENTITY not in new.given and not mine.exists():
            raise BundleError(
                "updates a device that is in place; it holds no keys for a new one",
                where=where,
                fix=f"name {new.name}'s folder, or revoke it and add a device of another name",
            )
        _check_identity(given, mine)
        return
    if not (to / INVENTORY).exists():
        fix = "name a new folder, or the one of this party"
        raise UsageError("is not empty and holds no bundle", where=str(to), fix=fix)
    old, signer = _signed(to)
    ours = (old.fleet, old.party, old.name)
    if ours != (new.fleet, new.party, new.name):
        raise BundleError(
            f"is {new.name}'s of fleet {new.fleet}, and here is {old.name} of fleet {old.fleet}",
            where=where,
            fix="take the bundle of this place",
        )
    if signer != given.signer:
        raise BundleError(
            "is signed by another site than the one before",
            where=where,
            fix="ask who keeps the site; where its key was replaced, remove inventory.sig and"
            " inventory.json here",
        )
    if new.sequence < old.sequence:
        raise BundleError(
            f"is number {new.sequence}, older than number {old.sequence} in place",
            where=where,
            fix="take the newest bundle",
        )
    _check_identity(given, mine)


def _check_identity(given: Bundle, mine: Path) -> None:
    theirs = given.folder / IDENTITY
    new = IDENTITY in given.inventory.given
    if new and mine.exists() and mine.read_bytes() != theirs.read_bytes():
        raise BundleError(
            "holds another identity than the device in place",
            where=str(given.folder),
            fix="its ledger is another's: install to a new folder",
        )


def _put(source: Path, to: Path, *, secret: bool = False) -> None:
    made = [folder for folder in (to.parent, *to.parents) if not folder.exists()]
    to.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    write_durably(to, source.read_bytes(), mode=0o600 if secret else 0o640)
    if os.geteuid() == 0:  # who owns the place owns what is put there
        owner = next(folder for folder in to.parents if folder not in made).stat()
        for path in (*reversed(made), to):
            os.chown(path, owner.st_uid, owner.st_gid)
