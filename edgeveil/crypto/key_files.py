"""One key in one file: written atomically, read with checks that name what is wrong."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from edgeveil.crypto.errors import CryptoError

_MAX_FILE_BYTES = 1024
_OTHERS = 0o007


def write_key(path: Path, tag: str, raw: bytes, *, mode: int, replace: bool) -> None:
    """Write `<tag> <hex>` to `path` in one step, with `mode` from the first byte on.

    Raises CryptoError when the file exists and `replace` is false, or cannot be written.
    """
    if not replace and path.exists():
        raise CryptoError(
            "a key file is there already",
            where=str(path),
            fix="choose another path, or remove the old key if nothing depends on it",
        )
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            os.fchmod(handle, mode)  # the umask must not widen or narrow it
            file.write(f"{tag} {raw.hex()}\n")
            file.flush()
            os.fsync(handle)
        scratch.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise CryptoError(
            f"the key file cannot be written: {error.strerror}",
            where=str(path),
            fix="check that the folder exists and may be written",
        ) from error


def read_key(path: Path, tag: str, *, secret: bool) -> bytes:
    """The key's bytes.

    Raises CryptoError: unreadable, of another type, damaged, or secret and open to everyone.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CryptoError(
            f"the key file cannot be read: {error.strerror}",
            where=str(path),
            fix="check the path in the site file, or provision the site first",
        ) from error
    raw = _parse(text, tag, str(path))
    if secret and mode & _OTHERS:
        raise CryptoError(
            "every user of this machine may read this secret key",
            where=str(path),
            fix=f"chmod 600 {path}",
        )
    return raw


def _parse(text: bytes, tag: str, where: str) -> bytes:
    words = text.split()
    if len(text) > _MAX_FILE_BYTES or len(words) != 2 or not words[0].startswith(b"edgeveil-"):
        raise CryptoError("this is not a key file", where=where, fix=f"it must hold '{tag} <hex>'")
    if words[0] != tag.encode("ascii"):
        found = words[0].decode("ascii", "replace")
        raise CryptoError(f"this holds a key of type {found}", where=where, fix=f"expected {tag}")
    try:
        return bytes.fromhex(words[1].decode("ascii"))
    except ValueError:
        raise CryptoError(
            "the key in this file is damaged", where=where, fix="copy the whole key file again"
        ) from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
