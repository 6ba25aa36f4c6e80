"""A device's own keys: generated on the box at first use, never sent anywhere."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey
from edgeveil.data.split import SPLIT_KEY_FILE, load_split_key
from edgeveil.enrolment import Enrolment
from edgeveil.errors import UsageError
from edgeveil.transport.process import key_gone, refuse_lost_state

IDENTITY_FILE = "identity.key"
OPENING_FILE = "opening.key"
BEFORE_FILE = "opening-before.key"  # kept until the new key opened something


@dataclass(frozen=True)
class DeviceIdentity:
    """Secrets of one device: identity, decryption and record split."""

    signing: SigningKey = field(repr=False)  # identity, Ed25519
    opening: OpeningKey = field(repr=False)  # HPKE X25519
    split_key: bytes = field(repr=False)  # 32 bytes; splits training and evaluation records
    opening_before: OpeningKey | None = field(repr=False, default=None)

    @property
    def device_id(self) -> str:
        """Fingerprint of the public identity key, 16 hexadecimal digits."""
        return self.signing.public().fingerprint()

    def settled(self, state_dir: Path) -> DeviceIdentity:
        """Return the identity without the previous opening key, and delete that key's file."""
        (state_dir / BEFORE_FILE).unlink(missing_ok=True)
        return replace(self, opening_before=None)

    @property
    def sealing_keys(self) -> tuple[SealingKey, ...]:
        """Keys to which the cloud may seal; also the previous one, until the new one was used."""
        keys = (self.opening, self.opening_before)
        return tuple(key.public() for key in keys if key is not None)

    def enrolment(self) -> Enrolment:
        return Enrolment.make(self.signing, self.opening)

    @classmethod
    def load(cls, state_dir: Path) -> DeviceIdentity:
        """Load the keys. Raises SystemFault without an identity; else as `load_or_create`."""
        if not (state_dir / IDENTITY_FILE).exists():
            raise key_gone(state_dir / IDENTITY_FILE, "edgeveil keys")
        return cls.load_or_create(state_dir)

    @classmethod
    def load_or_create(cls, state_dir: Path) -> DeviceIdentity:
        """Load the keys, or generate them (mode 0600). Raises UsageError or CryptoError."""
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(state_dir):
                return cls._load_or_create(state_dir)
        except OSError as error:
            what = f"the state folder cannot be used ({error.strerror})"
            fix = "check state_dir in the device's site file and its rights"
            raise UsageError(what, where=str(state_dir), fix=fix) from error

    @classmethod
    def _load_or_create(cls, state_dir: Path) -> DeviceIdentity:
        identity, opening = state_dir / IDENTITY_FILE, state_dir / OPENING_FILE
        split = state_dir / SPLIT_KEY_FILE
        if identity.exists():
            # The identity is generated last, so any other missing key was lost. A new split key
            # would let one record count for training and for evaluation.
            lost = [path.name for path in (opening, split) if not path.exists()]
            if lost:
                new = "create a new one: edgeveil keys --next"
                new = new if lost == [OPENING_FILE] else "enrol a new device with a new state_dir"
                fix = f"restore it from a backup, or {new}"
                raise UsageError(f"{' and '.join(lost)} is gone", where=str(state_dir), fix=fix)
        else:
            refuse_lost_state(identity)
            load_split_key(split)
            if not opening.exists():
                OpeningKey.generate().save(opening)
            SigningKey.generate().save(identity)
        before = state_dir / BEFORE_FILE
        return cls(
            SigningKey.load(identity),
            OpeningKey.load(opening),
            load_split_key(split),
            OpeningKey.load(before) if before.exists() else None,
        )


def renew_opening(state_dir: Path) -> OpeningKey:
    """Replace the opening key in `state_dir`, also a lost one. Raises UsageError or CryptoError.

    Identity and ledger stay; the previous key still opens until something was opened with the new
    one.
    """
    if not (state_dir / IDENTITY_FILE).exists():
        fix = "enrol the device: edgeveil keys"
        raise UsageError("holds no identity", where=str(state_dir), fix=fix)
    new, path = OpeningKey.generate(), state_dir / OPENING_FILE
    if path.exists():
        OpeningKey.load(path).save(state_dir / BEFORE_FILE, overwrite=True)
    new.save(path, overwrite=True)
    return new


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that two processes cannot both generate keys."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
