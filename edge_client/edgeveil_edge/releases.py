"""Final models on a device: swapped in atomically, kept, and rolled back on request.

    releases/
      versions/0001-quickstart/{model.onnx, manifest.json}
      current.json            {"history": ["0001-quickstart"], "withdrawn": [digest, ...],
                               "marks": {"0001-quickstart": {"sequences": [...], "expires_s": ...}},
                               "broken": [digest, ...], "on_expired": "warn"}

`current.json` alone determines the release in use. It is replaced by a rename, so a crash leaves
the old or the new version. `marks` hold the sequence numbers under which the cloud sealed a
version, and its expiry (seconds since 1970; 0: never).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import structs

from edgeveil.errors import DataError, EdgeVeilError, UsageError
from edgeveil.parts.round import personal_weights
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from edgeveil.storage import file_mark, sync_folder, write_durably

KEEP_VERSIONS = 5
SEQUENCES_KEPT = 64  # of one version
_NAME = re.compile(r"[0-9]{4,}-[a-z0-9_-]{1,64}")
_Name = Annotated[str, msgspec.Meta(pattern=rf"^{_NAME.pattern}\Z")]


PERSONAL_FOLDER = "personal"  # inside a device's state folder


def keep_personal(state_dir: Path, job_id: str, kept: bytes) -> None:
    """Store an ending job's weights of this box's own, in place of an earlier job's."""
    weights = personal_weights(unpack_tensors(kept)) if kept else {}
    if not weights:
        return
    path = personal_file(state_dir, job_id)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(path, pack_tensors(weights), mode=0o600)
    for other in set(path.parent.glob(f"*{path.suffix}")) - {path}:
        other.unlink()


def personal_file(state_dir: Path, job_id: str) -> Path:
    return state_dir / PERSONAL_FOLDER / f"{job_id}.safetensors"


@dataclass(frozen=True)
class InstalledRelease:
    """A model on this device. `meta` is the signed manifest's content at installation."""

    version: str  # "0001-quickstart"
    job: str
    digest: str  # SHA-256 of the ONNX file, hex
    path: Path
    meta: Mapping[str, Any]
    expires_s: float = 0.0  # since 1970; 0: never

    def stale(self, now_s: float) -> str:
        if not 0 < self.expires_s <= now_s:
            return ""
        since = datetime.fromtimestamp(self.expires_s, UTC)
        return f"the release {self.version} is stale since {since:%F %R} UTC: it was not renewed"


class _Marks(msgspec.Struct):
    sequences: list[int] = []
    expires_s: float = 0.0


class _Pointer(msgspec.Struct):
    history: list[_Name]
    withdrawn: list[str]
    marks: dict[str, _Marks] = {}
    broken: list[str] = []  # those of `withdrawn` that no longer ran
    on_expired: str = "warn"  # the owner's policy for stale releases: "warn" or "stop"


class ReleaseStore:
    """Folder of one device's models. One process writes, any may read."""

    def __init__(self, folder: Path, keep: int = KEEP_VERSIONS) -> None:
        self.folder, self._keep = folder, keep
        self._versions = folder / "versions"

    def install(self, job: str, onnx: bytes, meta: Mapping[str, Any]) -> InstalledRelease:
        """Put `onnx` in use durably, unless in use or rolled back before. Raises DataError."""
        pointer = self._pointer()
        digest = sha256(onnx).hexdigest()
        try:
            in_use = self.current()
        except DataError:  # replace a damaged version by the new one
            in_use = None
        if in_use is not None and (in_use.digest == digest or digest in pointer.withdrawn):
            if in_use.digest == digest:
                self._mark(pointer, in_use.version, meta)
                self._point(pointer)
            return in_use
        taken = self._versions.iterdir() if self._versions.is_dir() else ()
        numbers = [int(one.name.split("-")[0]) for one in taken if _NAME.fullmatch(one.name)]
        version = f"{max(numbers, default=0) + 1:04d}-{job}"
        if not _NAME.fullmatch(version):
            raise DataError(f"'{job[:70]}' cannot name a release", where="release")
        manifest = {"job": job, "digest": digest, "meta": dict(meta)}
        draft = self._versions / f".draft-{version}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        about = json.dumps(manifest, sort_keys=True).encode()
        for name, content in (("model.onnx", onnx), ("manifest.json", about)):
            write_durably(draft / name, content, mode=0o644)
        draft.rename(self._versions / version)
        sync_folder(self._versions)
        pointer.history.append(version)
        self._mark(pointer, version, meta)
        self._point(pointer)
        kept = set(self._pointer().history)
        for path in self._versions.iterdir():
            if path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)
        return self._load(version)

    @staticmethod
    def _mark(pointer: _Pointer, version: str, meta: Mapping[str, Any]) -> None:
        marks = pointer.marks.setdefault(version, _Marks())
        if isinstance(meta.get("sequence"), int):
            marks.sequences = [*marks.sequences, meta["sequence"]][-SEQUENCES_KEPT:]
        marks.expires_s = max(marks.expires_s, float(meta.get("expires_s", 0.0)))

    def adopt(self, sequence: int) -> None:
        """Record that the version in use was sealed again under this sequence number."""
        pointer = self._pointer()
        self._mark(pointer, pointer.history[-1], {"sequence": sequence})
        self._point(pointer)

    def apply(self, renewed: Collection[int], withdrawn: Collection[int], expires_s: float) -> bool:
        """Apply renewals and withdrawals; return True if the release in use was withdrawn."""
        pointer, before = self._pointer(), self._pointer()
        for version in before.history:
            marks = pointer.marks.get(version)
            known = set(marks.sequences) if marks else set()
            if known & set(withdrawn):
                pointer.history.remove(version)
                pointer.withdrawn.append(self._digest(version))
            elif marks and known & set(renewed):
                marks.expires_s = max(marks.expires_s, expires_s)
        if pointer != before:
            self._point(pointer)
        return pointer.history[-1:] != before.history[-1:]

    @property
    def stops_expired(self) -> bool:
        return self._pointer().on_expired == "stop"

    def follow(self, on_expired: str) -> None:
        pointer = self._pointer()
        if pointer.on_expired != on_expired:
            pointer.on_expired = on_expired
            self.folder.mkdir(parents=True, exist_ok=True)
            self._point(pointer)

    def mark(self) -> tuple[int, ...]:
        """Return a value that changes when another version may be in use."""
        return file_mark(self.folder / "current.json")

    def broke(self, digest: str) -> bool:
        return digest in self._pointer().broken

    def current(self) -> InstalledRelease | None:
        """Return the release in use with checked digest, or None. Raises DataError."""
        history = self._pointer().history
        return self._load(history[-1]) if history else None

    def rollback(self, *, broken: bool = False) -> InstalledRelease:
        """Return to the previous version; `broken` marks this one. Raises UsageError if none."""
        pointer = self._pointer()
        history = pointer.history
        if len(history) < 2:
            what, fix = "there is no earlier version to return to", "wait for the next release"
            raise UsageError(what, where=str(self.folder), fix=fix)
        earlier = self._load(history[-2])  # verify before any change
        left = self._digest(history.pop())
        pointer.withdrawn.append(left)
        if broken:
            pointer.broken.append(left)
        self._point(pointer)
        return earlier

    def leave_broken(self) -> str:
        """Roll back from a release that does not run; return a clause for the owner's line."""
        try:
            return f"{self.rollback(broken=True).version} replaces it"
        except EdgeVeilError:
            return "and there is no earlier version"

    def _digest(self, version: str) -> str:
        """Return the model's digest; "" if the version is lost, which must not block a rollback."""
        manifest = self._versions / version / "manifest.json"
        return str(_json(manifest).get("digest", "")) if manifest.is_file() else ""

    def history(self) -> list[str]:
        return list(self._pointer().history)

    def _load(self, version: str) -> InstalledRelease:
        folder = self._versions / version
        manifest = _json(folder / "manifest.json")
        path = folder / "model.onnx"
        try:
            digest = sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise DataError(f"cannot be read: {error}", where=str(path), fix=_FIX) from error
        if digest != manifest.get("digest"):
            raise DataError("was changed after it was installed", where=str(path), fix=_FIX)
        marks = self._pointer().marks.get(version)
        expires_s = marks.expires_s if marks else 0.0
        job = str(manifest["job"])
        return InstalledRelease(version, job, digest, path, manifest["meta"], expires_s)

    def _pointer(self) -> _Pointer:
        path = self.folder / "current.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=_Pointer)
        except FileNotFoundError:
            return _Pointer([], [])
        except OSError as error:
            raise DataError(f"cannot be read: {error}", where=str(path), fix=_FIX) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            what = f"is not a list of versions: {error}"
            raise DataError(what, where=str(path), fix="remove the file") from error

    def _point(self, pointer: _Pointer) -> None:
        kept = pointer.history[-self._keep :]
        marks = {version: marks for version, marks in pointer.marks.items() if version in kept}
        shortened = structs.replace(pointer, history=kept, marks=marks)
        write_durably(self.folder / "current.json", msgspec.json.encode(shortened), mode=0o644)


_FIX = "return to the previous release with edgeveil predict --rollback, or wait for the next"


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path), fix=_FIX) from error
    if not isinstance(found, dict):
        raise DataError("holds no mapping", where=str(path), fix=_FIX)
    return found
