"""Backup of a process's state in one archive, and its restoration.

    manifest.json      role, owner, time, and the SHA-256 digest of each file
    state/…            the state folder, with secret keys; a consistent copy of each SQLite file

A *device* never gets an older ledger than the one in place; on an empty disk its owner must vouch
that it answered nothing since. A *proxy* may have lost revocations: its registry gets a new
lineage, which root or operator must confirm, and unused claims end. A *cloud* numbers signatures by
its clock, so that none counts as a replay."""

from __future__ import annotations

import datetime
import fcntl
import hashlib
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edgeveil.config.broker import BrokerSite
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import CryptoError, EdgeVeilError, PrivacyError, UsageError
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.privacy.ledger_chain import ChainHead
from edgeveil.storage import copy_database, sync_folder
from edgeveil.transport.process import LOCK_FILE, OwnFolder
from edgeveil_proxy.spool import SPOOL_FILE, Spool
from edgeveil_tools.site.bundles import named_inside

if TYPE_CHECKING:
    from edgeveil.config.site_files import Site

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state"
MANIFEST_BYTES = 64 << 20
_TRIES = 20
_SQLITE = b"SQLite format 3\0"
_LEFT_OUT = re.compile(
    rf"^{re.escape(LOCK_FILE)}$|^\.|\.before-|\.sqlite-(wal|shm|journal)$|^health\.probe$"
)
_KEYS = {"cloud": "cloud.key", "proxy": "proxy.key", "edge": "identity.key"}


class BackupError(EdgeVeilError):
    """An archive is damaged, another party's, or older than the ledger in place."""

    exit_code = 2


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The list of an archive; `owner` is the fingerprint of the role's own key."""

    format: int = FORMAT
    role: str
    owner: str
    made: str
    files: dict[str, str]


def _state_of(site: Site) -> tuple[str, Path]:
    if isinstance(site, BrokerSite):
        fix = "name the site file of the cloud, the proxy or a device"
        raise UsageError("has no state", where="broker", fix=fix)
    return type(site).__name__.removesuffix("Site").lower(), site.state_dir


def back_up(site: Site, archive: Path) -> BackupManifest:
    """Write the archive, mode 0600; raises UsageError, BackupError or OSError."""
    role, state = _state_of(site)
    if archive.exists():
        raise UsageError("already exists", where=str(archive), fix="name a new file")
    owner = _owner(state, role)
    with tempfile.TemporaryDirectory(dir=archive.absolute().parent, prefix=".backup-") as scratch:
        copies = _copied(state, Path(scratch))
        files = {path: _digest(file) for path, file in sorted(copies.items())}
        now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
        manifest = BackupManifest(role=role, owner=owner, made=now, files=files)
        listed, made = Path(scratch) / MANIFEST, Path(scratch) / "archive"
        listed.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        with tarfile.open(made, "x", format=tarfile.PAX_FORMAT) as tar:
            made.chmod(0o600)
            tar.add(listed, MANIFEST, filter=_plain)
            for path in files:
                tar.add(copies[path], f"{STATE}/{path}", filter=_plain)
        made.rename(archive)
    sync_folder(archive.absolute().parent)
    return manifest


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.mode, info.uid, info.gid, info.uname, info.gname, info.mtime = 0o600, 0, 0, "", "", 0
    return info


def _owner(state: Path, role: str) -> str:
    path = state / _KEYS[role]
    try:
        return SigningKey.load(path).public().fingerprint()
    except (OSError, CryptoError) as error:
        fix = "start the process once, or check state_dir"
        raise UsageError("holds no state to back up", where=str(state), fix=fix) from error


def _copied(state: Path, scratch: Path) -> dict[str, Path]:
    """Copy every file of the state folder, ledger and head of one moment."""
    for _ in range(_TRIES):
        path = (state / LEDGER_FILE).with_suffix(".head")
        head = path.read_bytes() if path.exists() else b""
        found = dict(_copies(state, scratch))
        if (path.read_bytes() if path.exists() else b"") == head:  # else a link was added meanwhile
            return found
    fix = "try again when the device is not in a round"
    raise BackupError("its ledger changes all the time", where=str(state), fix=fix)


def _copies(state: Path, scratch: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(state.rglob("*")):
        name = path.relative_to(state).as_posix()
        if path.is_symlink() or not path.is_file() or _LEFT_OUT.search(path.name):
            continue
        copy = scratch / STATE / name
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy.unlink(missing_ok=True)
        try:
            with path.open("rb") as file:
                database = file.read(len(_SQLITE)) == _SQLITE
            if database:
                copy_database(path, copy)
            else:
                copy.write_bytes(path.read_bytes())
        except FileNotFoundError:  # deleted meanwhile
            continue
        yield name, copy


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def restore(
    site: Site, archive: Path, *, replace: bool = False, vouched: bool = False
) -> BackupManifest:
    """Replace the state folder by an archive; with `replace` the former one is kept beside.

    `vouched`: a device's owner asserts that it answered nothing since the backup, or that its proxy
    will report its answers. Raises BackupError for an archive that is damaged, of another party,
    older than the ledger in place, or not vouched for without one; UsageError if the folder is in
    use."""
    role, state = _state_of(site)
    state.parent.mkdir(parents=True, exist_ok=True)
    with _scratch(state) as scratch:
        used = _is_used(state)
        if used and not replace:
            raise _in_use(state)
        manifest = _unpacked(archive, scratch)
        new = scratch / STATE
        _check_party(manifest, role, state if used else None, str(archive))
        if role == "edge":
            _check_ledger(new, state, vouched=vouched)
        with OwnFolder(state):
            if _is_used(state) != used:  # another restore was faster
                raise _in_use(state)
            _renew_proxy(role, new)
            if used:
                state.rename(_kept_folder(state, 1))
            else:
                (state / LOCK_FILE).unlink()
                state.rmdir()
            new.rename(state)
    sync_folder(state.absolute().parent)
    return manifest


def _is_used(state: Path) -> bool:
    return state.exists() and any(path.name != LOCK_FILE for path in state.iterdir())


def _in_use(state: Path) -> UsageError:
    fix = "pass --replace: the existing state is then kept as …-before-restore"
    return UsageError("is in use", where=str(state), fix=fix)


@contextmanager
def _scratch(state: Path) -> Iterator[Path]:
    """Lock an empty folder beside the state, after undoing an interrupted restore."""
    folder = state.absolute().with_name(f".restore-{state.name}")
    folder.mkdir(mode=0o700, exist_ok=True)
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        mine = folder.exists() and os.path.samestat(os.fstat(held), folder.stat())
    except BlockingIOError:
        mine = False
    try:
        if not mine:
            raise UsageError("another restore is running", where=str(state), fix="wait for it")
        kept = _kept_folder(state, 0)
        if (folder / STATE).exists():
            if not state.exists() and kept.exists():
                kept.rename(state)
            shutil.rmtree(folder / STATE)
        yield folder
    finally:
        if mine:
            shutil.rmtree(folder)
        os.close(held)


def _unpacked(archive: Path, scratch: Path) -> BackupManifest:
    (scratch / STATE).mkdir(mode=0o700)
    try:
        with tarfile.open(archive, "r:") as tar:
            first, *members = tar.getmembers() or [tarfile.TarInfo()]
            manifest = _manifest(first, tar, archive)
            left = {f"{STATE}/{name}" for name in manifest.files}
            for member in members:
                if not member.isreg() or member.name not in left:
                    raise _damaged(archive, f"holds {member.name[:200]}, which is not in its list")
                left.remove(member.name)
                to, content = scratch / member.name, tar.extractfile(member)
                to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with to.open("xb") as out:
                    to.chmod(0o600)
                    if content is not None:
                        shutil.copyfileobj(content, out)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(archive, "is no whole archive") from error
    for name, wanted in manifest.files.items():
        if f"{STATE}/{name}" in left or _digest(scratch / STATE / name) != wanted:
            raise _damaged(archive, f"{name} is missing or differs from the backup")
    return manifest


def _manifest(member: tarfile.TarInfo, tar: tarfile.TarFile, archive: Path) -> BackupManifest:
    content = tar.extractfile(member) if member.isreg() and member.name == MANIFEST else None
    if content is None:
        raise _damaged(archive, "is no backup")
    if member.size > MANIFEST_BYTES:
        raise _damaged(archive, f"has a list of over {MANIFEST_BYTES} bytes")
    try:
        manifest = msgspec.json.decode(content.read(), type=BackupManifest)
    except (msgspec.DecodeError, RecursionError):
        raise _damaged(archive, "has no sound list of its files") from None
    if manifest.format != FORMAT:
        fix = "restore it with the version of edgeveil that made it"
        raise BackupError("is of another format", where=str(archive), fix=fix)
    if not named_inside(manifest.files):
        raise _damaged(archive, "names files outside its folder")
    return manifest


def _damaged(archive: Path, what: str) -> BackupError:
    return BackupError(what, where=str(archive), fix="use another archive")


def _check_party(manifest: BackupManifest, role: str, state: Path | None, where: str) -> None:
    if manifest.role != role:
        fix = f"name the {manifest.role}'s site file"
        raise BackupError(f"is a backup of the {manifest.role}", where=where, fix=fix)
    there = state is not None and (state / _KEYS[role]).exists()
    if state is not None and there and manifest.owner != _owner(state, role):
        fix = "restore it to a folder of its own"
        raise BackupError("is another party's than the one in place", where=where, fix=fix)


def _check_ledger(new: Path, state: Path, *, vouched: bool) -> None:
    archived, here = new / LEDGER_FILE, state / LEDGER_FILE
    if archived.exists():
        read_ledger(archived)  # its whole chain
    try:
        head = ChainHead.load(here.with_suffix(".head"))
        mine = (head.number, head.mac) if head is not None and head.number else None
    except (OSError, CryptoError, PrivacyError):  # the database itself may be whole
        mine = None
    if mine is None and not vouched:
        what = "there is no intact ledger, so the budget spent since the backup is unknown"
        fix = "pass --ask-proxy where its proxy is the one that it had, --nothing-since where it"
        fix += " has surely answered nothing; else enrol a new device in a state_dir of its own"
        raise BackupError(what, where=str(state), fix=fix)
    mine = mine or _link(here, "SELECT number, mac FROM links ORDER BY number DESC LIMIT 1")
    if mine and not _link(archived, "SELECT 1 FROM links WHERE number = ? AND mac = ?", *mine):
        what = f"the ledger in place continues to link {mine[0]}, which the archive lacks"
        fix = "keep the existing state, or enrol a new device if its ledger.head is lost"
        raise BackupError(what, where=str(here), fix=fix)


def _link(ledger: Path, query: str, *values: Any) -> Any:
    """Return a row of a ledger; None if it has none or cannot be read."""
    try:
        with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
            return db.execute(query, values).fetchone()
    except sqlite3.Error:
        return None


def _renew_proxy(role: str, new: Path) -> None:
    """Begin a proxy's new lineage, end unused claims, and put its uploads back."""
    if role != "proxy":
        return
    if (new / SPOOL_FILE).exists():
        with closing(Spool(new / SPOOL_FILE)) as spool:
            spool.put_back()
        for earlier in new.glob(f"{SPOOL_FILE}.before-*"):  # in archives of earlier versions
            earlier.unlink()
    for name, statement in (
        ("registry.sqlite", "UPDATE roster SET lineage = lower(hex(randomblob(16)))"),
        ("claims.sqlite", "DELETE FROM claim WHERE device IS NULL"),
    ):
        if (new / name).exists():
            with closing(sqlite3.connect(new / name)) as db, db:
                db.execute(statement)


def _kept_folder(state: Path, following: int) -> Path:
    """Return the newest kept folder, or the one `following` numbers after it."""
    name = f"{state.name}-before-restore-"
    ends = [path.name.removeprefix(name) for path in state.parent.glob(f"{name}*")]
    newest = max((int(end) for end in ends if end.isdecimal()), default=0)
    return state.with_name(f"{name}{newest + following}")
