"""`trust.json`: the root documents in order and the newest delegations, for one party.

    {"format": "edgeveil-trust-1", "roots": [text, …], "delegations": text}

Each text is a document as it was signed, so the file holds no secret and its carrier cannot change
the content. A party pins the first root at its first start and stores verified documents in its own
state folder from then on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from edgeveil.storage import json_object, write_durably
from edgeveil.trust.metadata import Delegated, TrustedMetadata, TrustError, now_utc

FORMAT = "edgeveil-trust-1"
BUNDLE_BYTES = 4 << 20
STATE_FILE = "trust.json"
WARN = timedelta(days=30)  # before a document expires
_HOLD_FIX = "get trust.json again from the administrator of the root"


@dataclass(frozen=True)
class TrustBundle:
    """Unverified documents."""

    roots: tuple[bytes, ...]
    delegations: bytes = b""

    def to_text(self) -> str:
        texts = [root.decode() for root in self.roots]
        plain = {"format": FORMAT, "roots": texts, "delegations": self.delegations.decode()}
        return json.dumps(plain, indent=1) + "\n"

    def verified(self) -> TrustedMetadata:
        """Verify all documents from the first root on, expired or not. Raises TrustError."""
        found = TrustedMetadata(self.roots[0])
        found.take(self.roots[1:], self.delegations, None)
        return found

    @classmethod
    def load(cls, path: Path) -> TrustBundle:
        """Read a file. Raises TrustError `no_trust_file` or `malformed_metadata`."""
        try:
            with path.open("rb") as file:
                raw = file.read(BUNDLE_BYTES + 1)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            raise TrustError("no_trust_file", what, where=str(path), fix=_HOLD_FIX) from None
        return cls.parse(raw, path)

    @classmethod
    def parse(cls, raw: bytes, path: Path = Path("trust.json")) -> TrustBundle:
        """Parse the content of such a file. Raises TrustError `malformed_metadata`."""
        found = json_object(raw) if len(raw) <= BUNDLE_BYTES else None
        keys = {"format", "roots", "delegations"}
        if found is None or set(found) != keys or found["format"] != FORMAT:
            raise _no_bundle(path)
        roots, delegations = found["roots"], found["delegations"]
        if not isinstance(roots, list) or not roots or not isinstance(delegations, str):
            raise _no_bundle(path)
        if not all(isinstance(root, str) for root in roots):
            raise _no_bundle(path)
        return cls(tuple(root.encode() for root in roots), delegations.encode())


def _no_bundle(path: Path) -> TrustError:
    what = f"is no file of '{FORMAT}'"
    return TrustError("malformed_metadata", what, where=str(path), fix=_HOLD_FIX)


class StoredTrust:
    """One party's verified documents; the first start pins the first root of `given`."""

    def __init__(self, state_dir: Path, given: Path, now: Callable[[], datetime] = now_utc) -> None:
        self._file, self._given, self._now = state_dir / STATE_FILE, given, now
        self.complaint = ""  # why the newest documents were rejected
        if self._file.exists():  # also if it has expired since
            self.metadata = TrustBundle.load(self._file).verified()
        else:
            self.metadata = TrustedMetadata(TrustBundle.load(given).roots[0])
        self._seen: tuple[int, int] | None = None
        self.look(strict=True)

    @property
    def delegated(self) -> Delegated | None:
        return self.metadata.delegated

    @property
    def problem(self) -> str:
        """Why no key is trusted now, or ""."""
        return self.metadata.problem(self._now())

    @property
    def warning(self) -> str:
        """Documents that expire soon, or ""."""
        ends, now = self.expires, self._now()
        soon = {what: (at - now).days for what, at in ends.items() if at - now < WARN}
        return "; ".join(f"the trust {what} will expire in {n} days" for what, n in soon.items())

    @property
    def expires(self) -> Mapping[str, datetime]:
        """Expiry of each stored document."""
        ends = {"root": self.metadata.root_expires}
        delegated = self.metadata.delegated
        return ends if delegated is None else {**ends, "delegations": delegated.expires}

    def take(self, roots: Sequence[bytes], delegations: bytes) -> bool:
        """Advance durably; return False if nothing was new. Raises TrustError without a change."""
        changed = self.metadata.take(roots, delegations, self._now())
        if changed:
            self._keep()
        return changed

    def look(self, *, strict: bool = False) -> bool:
        """Take a changed `given` file; return True if new. An error is raised only if `strict`."""
        try:
            found = self._given.stat()
            mark = (found.st_mtime_ns, found.st_size)
            if mark == self._seen:
                return False
            self._seen = mark
            bundle = TrustBundle.load(self._given)
            if not set(bundle.roots) & set(self.metadata.roots):
                what = "begins with another root than the one that was pinned here"
                fix = "put back the file of this fleet"
                raise TrustError("another_root", what, where=str(self._given), fix=fix)
            changed = self.take(bundle.roots, bundle.delegations)
        except (TrustError, OSError) as error:
            self.complaint = str(error)
            if strict and not self.metadata.delegated:
                raise
            return False
        self.complaint = ""
        if not self._file.exists():
            self._keep()
        return changed

    def _keep(self) -> None:
        kept = TrustBundle(self.metadata.roots, self.metadata.document)
        write_durably(self._file, kept.to_text().encode(), mode=0o600)
