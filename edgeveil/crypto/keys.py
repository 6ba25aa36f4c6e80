"""Key types, one for each use: secrets are hidden in `repr`, not picklable, not hashable.

Every key is 32 bytes. A key file holds one line, `<tag> <hex>`; the tag identifies the type.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NoReturn, Self, TypeVar, cast

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgeveil.crypto import labels
from edgeveil.crypto.labels import separated
from edgeveil.errors import CryptoError
from edgeveil.storage import write_durably

KEY_BYTES = 32

L = TypeVar("L")


def derived(secret: bytes, info: bytes) -> bytes:
    """Derive 32 bytes by HKDF-SHA256 (RFC 5869), without salt, bound to `info`."""
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


class Key:
    """32 bytes with a purpose. Immutable; equality is by type and in constant time."""

    __slots__ = ("_library", "_raw")  # saves memory: a proxy has many of them
    tag: ClassVar[str]
    secret: ClassVar[bool]
    _raw: bytes
    _library: object

    def __init__(self, raw: bytes) -> None:
        if len(raw) != KEY_BYTES:
            what = f"{type(self).__name__} must be {KEY_BYTES} bytes, got {len(raw)}"
            raise CryptoError(what, fix="copy the whole key file again")
        object.__setattr__(self, "_raw", bytes(raw))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and hmac.compare_digest(self._raw, other._raw)

    def to_bytes(self) -> bytes:
        return self._raw

    def _made(self, make: Callable[[bytes], L]) -> L:
        """Cache the library's key: creating it costs as much as using it."""
        if not hasattr(self, "_library"):
            object.__setattr__(self, "_library", make(self._raw))
        return cast(L, self._library)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        return cls(raw)

    def save(self, path: Path, *, overwrite: bool = False) -> None:
        """Write the file atomically, a secret with mode 0600. Raises CryptoError if it exists."""
        mode = 0o600 if self.secret else 0o644
        write_key(path, self.tag, self._raw, mode=mode, replace=overwrite)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a key file. Raises CryptoError: missing, another type, damaged, open to others."""
        return cls(read_key(path, cls.tag, KEY_BYTES, secret=cls.secret))


class SecretKey(Key):
    """A key that is hidden in `repr` and cannot be pickled."""

    __slots__ = ()
    secret = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(hidden)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied")

    @classmethod
    def generate(cls) -> Self:
        return cls(os.urandom(KEY_BYTES))


class PublicKey(Key):
    """A key that may be published; `repr` shows its fingerprint."""

    __slots__ = ()
    secret = False

    def __hash__(self) -> int:
        return hash((self.tag, self._raw))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.fingerprint()})"

    def __reduce__(self) -> tuple[type[Self], tuple[bytes]]:
        return type(self), (self._raw,)

    def fingerprint(self) -> str:
        """Return the first 16 hexadecimal digits of the key's SHA-256."""
        return hashlib.sha256(self._raw).hexdigest()[:16]


class VerifyKey(PublicKey):
    __slots__ = ()
    tag = "edgeveil-verify-key-1"

    def library_key(self) -> Ed25519PublicKey:
        return self._made(Ed25519PublicKey.from_public_bytes)


class SigningKey(SecretKey):
    tag = "edgeveil-signing-key-1"

    def library_key(self) -> Ed25519PrivateKey:
        return self._made(Ed25519PrivateKey.from_private_bytes)

    def public(self) -> VerifyKey:
        return VerifyKey(self.library_key().public_key().public_bytes_raw())


class SealingKey(PublicKey):
    """HPKE X25519 public key, for sealing."""

    __slots__ = ()
    tag = "edgeveil-sealing-key-1"

    def library_key(self) -> X25519PublicKey:
        return self._made(X25519PublicKey.from_public_bytes)


class OpeningKey(SecretKey):
    """HPKE X25519 private key, for opening."""

    tag = "edgeveil-opening-key-1"

    def library_key(self) -> X25519PrivateKey:
        return self._made(X25519PrivateKey.from_private_bytes)

    def public(self) -> SealingKey:
        return SealingKey(self.library_key().public_key().public_bytes_raw())


class ContentKey(SecretKey):
    """Symmetric key of one encrypted stream, never reused."""

    __slots__ = ()
    tag = "edgeveil-content-key-1"


class LedgerKey(SecretKey):
    """Key of the hash chain over a device's privacy ledger; never leaves the box."""

    tag = "edgeveil-ledger-key-1"

    def noise_key(self) -> NoiseKey:
        """Derive the key of this device's noise; neither key reveals the other."""
        return NoiseKey(derived(self._raw, separated(labels.NOISE_KEY)))

    def state_key(self) -> StateKey:
        """Derive the key of the encrypted state that the device stores at the proxy."""
        return StateKey(derived(self._raw, separated(labels.DEPOSIT_KEY)))


class NoiseKey(SecretKey):
    """Key from which all of a device's noise is derived: its holder can remove the noise."""

    tag = "edgeveil-noise-key-1"


class StateKey(SecretKey):
    """Key of the state that a device stores at the proxy, readable by the device only."""

    tag = "edgeveil-deposit-key-1"


class MaskSeed(SecretKey):
    """Seed of one device's masks of one round; known to the proxy, never to the cloud."""

    __slots__ = ()
    tag = "edgeveil-mask-seed-1"


class CheckKey(SecretKey):
    """Key of the factors of check sums; known to all that opened the round's package."""

    tag = "edgeveil-check-key-1"

    @classmethod
    def disclosable(cls, membership: bytes, at: bytes) -> CheckKey:
        """Derive the key of the round `at` from its membership tag.

        The key does not reveal the tag, so the proxy may receive it once it stores the round's
        batch.
        """
        return cls(derived(membership, labels.context(labels.CHECK_KEY, at)))

    def commitment(self, at: bytes) -> bytes:
        """Return 32 bytes that commit to this key in the round `at`."""
        return hashlib.sha256(labels.context(labels.CHECK_COMMITMENT, at, self._raw)).digest()


STATE_BYTES = 1024  # constant size of the encrypted state at the proxy

SIGNATURE_BYTES = 64


def sign(key: SigningKey, label: bytes, payload: bytes) -> bytes:
    """Return the 64-byte signature. Raises CryptoError for a label with a NUL."""
    return key.library_key().sign(separated(label) + payload)


def verify(key: VerifyKey, label: bytes, payload: bytes, signature: bytes) -> bool:
    """Return whether the signature is valid for label and payload; False for malformed input."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    try:
        key.library_key().verify(signature, separated(label) + payload)
    except (InvalidSignature, ValueError):
        return False
    return True


_MAX_FILE_BYTES = 1024


def write_key(path: Path, tag: str, raw: bytes, *, mode: int, replace: bool) -> None:
    """Write `<tag> <hex>` atomically, with `mode` from the first byte on. Raises CryptoError."""
    if not replace and path.exists():
        fix = "choose another path, or remove the old key if nothing depends on it"
        raise CryptoError("a key file already exists", where=str(path), fix=fix)
    try:
        write_durably(path, f"{tag} {raw.hex()}\n".encode("ascii"), mode=mode)
    except OSError as error:
        what, fix = f"the key file cannot be written: {error.strerror}", "check its folder"
        raise CryptoError(what, where=str(path), fix=fix) from error


def read_key(path: Path, tag: str, size: int, *, secret: bool) -> bytes:
    """Return `size` bytes. Raises CryptoError: unreadable, wrong type, damaged, open to others."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        what = f"the key file cannot be read: {error.strerror}"
        fix = "check the path in the site file, or provision the site first"
        raise CryptoError(what, where=str(path), fix=fix) from error
    raw = _parse(text, tag, size, str(path))
    if secret and mode & 0o077:
        what = "other users of this machine may read this secret key"
        raise CryptoError(what, where=str(path), fix=f"chmod 600 {path}")
    return raw


def _parse(text: bytes, tag: str, size: int, where: str) -> bytes:
    parts = text.split()
    if len(text) > _MAX_FILE_BYTES or len(parts) != 2 or not parts[0].startswith(b"edgeveil-"):
        raise CryptoError("this is not a key file", where=where, fix=f"it must hold '{tag} <hex>'")
    if parts[0] != tag.encode("ascii"):
        found = parts[0].decode("ascii", "replace")
        raise CryptoError(f"this holds a key of type {found}", where=where, fix=f"expected {tag}")
    with suppress(ValueError):
        if len(raw := bytes.fromhex(parts[1].decode("ascii"))) == size:
            return raw
    what = "the key in this file is damaged or cut off"
    raise CryptoError(what, where=where, fix="copy the whole key file again")
