"""Durable state: SQLite files, and plain files for large bytes.

Writes are on disk when they return (`synchronous=FULL`); an SQLite error becomes an error that
names the file and the fix.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from edgeveil.errors import EdgeVeilError

BUSY_S = 5.0
MEMORY = ":memory:"
CHUNK_BYTES = 1 << 20
_DAMAGED = "restore it from a backup"
_FIXES = {
    sqlite3.SQLITE_FULL: "free some space on its disk, then start again",
    sqlite3.SQLITE_BUSY: "end the other process that uses it",
    sqlite3.SQLITE_LOCKED: "end the other process that uses it",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable for this user",
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists and belongs to this user",
    sqlite3.SQLITE_PERM: "make the file and its folder writable for this user",
    sqlite3.SQLITE_IOERR: "check the disk",
}
_PRIMARY = 0xFF  # the primary code within an extended one
# A damaged file may hold invalid UTF-8, which SQLite's error message quotes.
_FAULTS = (sqlite3.Error, UnicodeDecodeError)


class StorageError(EdgeVeilError):
    """A durable file cannot be used."""


def _identity(path: Path | str) -> tuple[int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class SqliteFile:
    """An SQLite file at `path` (created with mode 0600) with `schema`; errors call it `name`.

    Thread-safe. Raises `error` in place of `sqlite3.Error`; `damaged_fix` is for a file that is no
    database. `secure_delete` overwrites deleted data; without `keep_statements` none is cached with
    its values. With `version` an earlier file is copied to `<file>.before-<version>` and migrated
    by `steps` (`steps[n]`: from n to n + 1), all or none; other versions are refused."""

    def __init__(
        self,
        path: Path | str,
        name: str,
        schema: str = "",
        *,
        error: type[EdgeVeilError] = StorageError,
        damaged_fix: str = _DAMAGED,
        rollback_journal: bool = False,
        secure_delete: bool = False,
        keep_statements: bool = True,
        version: int | None = None,
        steps: Mapping[int, str] | None = None,
    ) -> None:
        self._path, self._name, self._error, self._damaged_fix = path, name, error, damaged_fix
        self._lock = threading.RLock()
        with self._converted_errors("used"):
            if str(path) != MEMORY:
                self._make()
            self._opened = _identity(path)
            # Autocommit: transactions begin and end in `transaction` alone.
            self.db = sqlite3.connect(
                path,
                timeout=BUSY_S,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=128 if keep_statements else 0,
            )
            self._prepare(schema, rollback_journal, secure_delete, version, steps or {})

    def close(self) -> None:
        with self._lock:
            self.db.close()

    def replaced(self) -> bool:
        """Return whether `path` now names another file or none, so that writes would be lost."""
        return self._path != MEMORY and _identity(self._path) != self._opened

    @contextmanager
    def guard(self, what: str = "used") -> Iterator[sqlite3.Connection]:
        """Hold the connection exclusively; `what` is the attempted action, for the error."""
        with self._lock, self._converted_errors(what):
            yield self.db

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Run an atomic, durable transaction; a nested one joins the outer one."""
        with self.guard("written") as db:
            if db.in_transaction:
                yield db
                return
            db.execute(begin)
            try:
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    with suppress(sqlite3.Error):  # report the first error
                        db.execute("ROLLBACK")

    @contextmanager
    def _converted_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except EdgeVeilError:
            raise
        except _FAULTS as error:
            why = "its disk is full" if lacks_room(error, Path(self._path)) else error
            raise self._error(
                f"{self._name} cannot be {what}: {why}", where=str(self._path), fix=self._fix(error)
            ) from error

    def _make(self) -> None:
        try:  # with its final mode, which SQLite copies to its log
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            what = f"{self._name} cannot be used: {error.strerror}"
            fix = "check its folder's rights"
            raise self._error(what, where=str(self._path), fix=fix) from error

    def _prepare(
        self,
        schema: str,
        rollback_journal: bool,
        secure_delete: bool,
        version: int | None,
        steps: Mapping[int, str],
    ) -> None:
        try:
            if version is not None:
                self._pending(schema, version, steps)  # raises before anything is written
            if not rollback_journal:
                self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=FULL")
            if secure_delete:
                self.db.execute("PRAGMA secure_delete=ON")
            if version is None:
                self.db.executescript(schema)
            elif self._pending(schema, version, steps):
                self._bring_up(schema, version, steps)
        except (*_FAULTS, OSError, EdgeVeilError):
            self.db.close()
            raise

    def _pending(self, schema: str, version: int, steps: Mapping[int, str]) -> list[str]:
        found = int(self.db.execute("PRAGMA user_version").fetchone()[0])
        if found == 0 and self._is_empty():  # a version without tables means that they were lost
            return [schema] if schema or found != version else []
        missing = range(found, version)
        if found > version or any(number not in steps for number in missing):
            what = f"{self._name} has version {found}, this program supports {version}"
            fix = "use the version of edgeveil that wrote it"
            raise self._error(what, where=str(self._path), fix=fix)
        return [steps[number] for number in missing]

    def _bring_up(self, schema: str, version: int, steps: Mapping[int, str]) -> None:
        with self.transaction() as db:
            scripts = self._pending(schema, version, steps)  # another process may have done it
            if scripts and not self._is_empty():
                before = Path(f"{self._path}.before-{version}")
                try:
                    copy_database(Path(self._path), before)
                except OSError as error:
                    what = f"{self._name} cannot be copied before its upgrade: {error.strerror}"
                    fix = "free some space on its disk, and check its folder's rights"
                    raise self._error(what, where=str(before), fix=fix) from error
            for script in scripts:
                for statement in _statements(script):
                    db.execute(statement)
            db.execute(f"PRAGMA user_version = {version}")

    def _is_empty(self) -> bool:
        return self.db.execute("SELECT 1 FROM sqlite_master").fetchone() is None

    def _fix(self, error: Exception) -> str:
        if isinstance(error, UnicodeDecodeError):
            return self._damaged_fix
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return "check the disk and the file's rights"
        full = lacks_room(error, Path(self._path))
        primary = sqlite3.SQLITE_FULL if full else code & _PRIMARY
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._damaged_fix
        return _FIXES.get(primary, "check the disk and the file's rights")


def lacks_room(error: BaseException | None, file: Path) -> bool:
    """Return whether SQLite failed to open a file or its log because the disk is full."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None or code & _PRIMARY != sqlite3.SQLITE_CANTOPEN:
        return False
    try:
        found = os.statvfs(file.parent)
    except OSError:
        return False
    return not found.f_bavail or (found.f_files > 0 and not found.f_favail)


def _statements(script: str) -> Iterator[str]:
    """Split a script, as sqlite3's `executescript` would commit the surrounding transaction."""
    statement = ""
    for part in script.split(";"):
        statement += part
        if sqlite3.complete_statement(statement + ";"):
            if statement.strip():
                yield statement
            statement = ""
        else:
            statement += ";"
    if statement.strip("; \n"):
        raise ValueError("the script ends inside a statement")


def copy_database(path: Path, copy: Path) -> None:
    """Copy a snapshot of an SQLite file durably, mode 0600. Raises OSError, sqlite3.Error."""
    scratch = copy.with_name(f".{copy.name}.{secrets.token_hex(8)}")
    try:
        os.close(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        with (
            closing(sqlite3.connect(path, timeout=BUSY_S)) as source,
            closing(sqlite3.connect(scratch)) as target,
        ):
            source.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # complete without a log file
        with scratch.open("rb") as file:
            os.fsync(file.fileno())
        scratch.replace(copy)
        sync_folder(copy.parent)
    except (OSError, sqlite3.Error):
        with suppress(OSError):
            scratch.unlink()
        raise


class FileData:
    """Bytes of a file from `offset`, `size_bytes` long (None: to the end), read when sliced."""

    def __init__(self, path: Path | int, offset: int = 0, size_bytes: int | None = None) -> None:
        flags = os.O_RDONLY | os.O_CLOEXEC
        self._file = path if isinstance(path, int) else os.open(path, flags)
        self.close = weakref.finalize(self, os.close, self._file)
        self._offset = offset
        self._size_bytes = (
            os.fstat(self._file).st_size - offset if size_bytes is None else size_bytes
        )

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        start, stop, step = part.indices(self._size_bytes)
        if step != 1:
            raise ValueError("a part has no step")
        return os.pread(self._file, max(0, stop - start), self._offset + start)

    @property
    def is_unlinked(self) -> bool:
        """Whether the file has no name any more, so that only this object keeps its disk space."""
        return os.fstat(self._file).st_nlink == 0

    def digest(self) -> bytes:
        found = hashlib.sha256()
        for start in range(0, self._size_bytes, CHUNK_BYTES):
            found.update(self[start : start + CHUNK_BYTES])
        return found.digest()


def write_durably(path: Path, content: bytes, *, mode: int) -> None:
    """Replace the file at `path` atomically and durably. Raises OSError."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            os.fsync(handle)
        scratch.replace(path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            scratch.unlink()
        raise


def read_private(path: Path, what: str, error: type[EdgeVeilError], most_bytes: int = -1) -> bytes:
    """Read a secret file. Raises `error` if other users may read it, and OSError."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            text = f"other users of this machine may read this {what}"
            raise error(text, where=str(path), fix=f"chmod 600 {path}")
        return file.read(most_bytes)


def json_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the object of a JSON text, None for anything else. No text raises."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def file_stamp(path: Path | None) -> tuple[int, int]:
    """Return time and size: a file that is emptied and rewritten may keep its time."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_size) if found else (0, 0)


def sync_folder(folder: Path) -> None:
    """Make created, renamed or removed names in `folder` durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_mark(path: Path) -> tuple[int, ...]:
    """Return a value that changes when the file does; empty if there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
