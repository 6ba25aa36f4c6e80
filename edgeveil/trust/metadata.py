"""Metadata of the offline root (The Update Framework, TUF specification 1.0), by python-tuf.

The *root* lists its own keys and a signature threshold; version N + 1 also needs the threshold of
version N. The *delegations* (TUF's top-level `targets`) list the key of each online role, the
lineage of the proxy's registry, the certificate authorities of both broker domains, the proxy of
each named cell, and the key that moves devices. TUF's `timestamp` and `snapshot` roles belong to
the root and are unused: freshness follows from the expiry of delegations and rosters.

A role's `epoch` grows with each replacement of its key. Sequence numbers count within an epoch, so
a rotation invalidates the messages of a leaked key. Cells are never removed, so no epoch restarts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import (
    TOP_LEVEL_ROLE_NAMES,
    DelegatedRole,
    Delegations,
    Key,
    Metadata,
    Root,
    TargetFile,
    Targets,
)
from tuf.api.serialization import DeserializationError
from tuf.api.serialization.json import JSONSerializer

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import CryptoError, EdgeVeilError

ROLES = ("cloud-jobs", "cloud-releases", "proxy-rosters")
MOST_CELLS = 64
DOCUMENT_BYTES = 32 << 10
_LINEAGE = re.compile(r"[0-9a-f]{32}")
CELL = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_AUTHORITY = re.compile(r"authorities/((?:edge|cloud)(?:-[a-z0-9][a-z0-9-]{0,31})?)\.pem")
_COMPACT = JSONSerializer(compact=True)


class TrustError(EdgeVeilError):
    """Metadata was rejected; `reason` is a code for counts and logs."""

    exit_code = 2

    def __init__(self, reason: str, what: str, *, where: str = "", fix: str = "") -> None:
        self.reason = reason
        super().__init__(what, where=where, fix=fix)


@dataclass(frozen=True)
class RoleKey:
    key: VerifyKey
    epoch: int = 0  # number of replacements


@dataclass(frozen=True)
class CellProxy:
    """Key of a cell's proxy, and its registry's lineage (32 hex digits; "": the first seen)."""

    rosters: RoleKey
    lineage: str = ""


@dataclass(frozen=True)
class Delegated:
    """Content of the delegations.

    `lineage` is of the unnamed cell's registry, `authorities` are PEM by broker domain (`edge`,
    `edge-north`), `site` is the key that moves devices between cells, if any.
    """

    version: int
    expires: datetime
    roles: Mapping[str, RoleKey]
    lineage: str = ""
    authorities: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, CellProxy] = field(default_factory=dict)
    site: RoleKey | None = None

    def proxy_of(self, cell: str) -> CellProxy:
        """Return a cell's proxy. Raises TrustError `unknown_cell`."""
        if not cell:
            return CellProxy(self.roles["proxy-rosters"], self.lineage)
        if cell not in self.cells:
            what = f"the root names no cell '{cell}'; it names {', '.join(self.cells) or 'none'}"
            fix = "correct cell in the site file, or add it to the plan: edgeveil site apply"
            raise TrustError("unknown_cell", what, fix=fix)
        return self.cells[cell]

    def cell_of(self, key: VerifyKey) -> str | None:
        """Return the cell whose proxy has this key, or None."""
        cells = (one for one in ("", *self.cells) if self.proxy_of(one).rosters.key == key)
        return next(cells, None)


class TrustedMetadata:
    """Verified metadata from the pinned root on; versions only increase."""

    def __init__(self, pinned: bytes) -> None:
        """Pin a root. Raises TrustError unless it is signed by its own keys."""
        root, signed = _root(pinned)
        _verify(root, signed, "root")
        self._root = root
        self.roots: tuple[bytes, ...] = (pinned,)
        self.document = b""  # the delegations
        self.delegated: Delegated | None = None

    @property
    def root_version(self) -> int:
        return self._root.version

    @property
    def root_expires(self) -> datetime:
        return self._root.expires

    @property
    def version(self) -> int:
        """Version of the delegations, 0 without any that the root signed."""
        return self.delegated.version if self.delegated else 0

    def problem(self, now: datetime) -> str:
        """Return why no key is trusted at `now`, or ""."""
        if self.delegated is None:
            return "the root's delegations are missing"
        for what, ends in (("root", self.root_expires), ("delegations", self.delegated.expires)):
            if ends <= now:
                return f"the trust {what} expired on {ends:%Y-%m-%d}"
        return ""

    def after(self, root_version: int, version: int) -> tuple[tuple[bytes, ...], bytes]:
        """Return the roots above `root_version`, and the delegations if newer (else empty)."""
        first = self.root_version - len(self.roots) + 1
        roots = self.roots[max(0, root_version + 1 - first) :]
        newer = version < self.version or bool(roots)
        return roots, self.document if newer else b""

    def take(self, roots: Sequence[bytes], document: bytes, now: datetime | None) -> bool:
        """Advance to these documents as a whole; return False if none is new.

        `now`: None accepts expired ones. Raises TrustError `malformed_metadata`,
        `too_few_signatures`, `metadata_gap`, `metadata_rollback` or `metadata_expired`.
        """
        ahead = copy(self)
        changed = [ahead._take_root(raw) for raw in roots]
        if any(changed):
            _check_time("root", ahead.root_expires, now)
            ahead._drop_disowned()
        changed.append(bool(document) and ahead._take_delegations(document, now))
        if any(changed):
            self.__dict__.update(ahead.__dict__)
        return any(changed)

    def _take_root(self, raw: bytes) -> bool:
        root, signed = _root(raw)
        known = self.root_version
        if root.version <= known:
            place = root.version - known - 1
            if -place <= len(self.roots) and self.roots[place] != raw:
                raise TrustError("metadata_rollback", f"another root of version {root.version}")
            return False
        if root.version != known + 1:
            what = f"root {root.version} cannot follow root {known}"
            raise TrustError("metadata_gap", what, fix="hand over all roots in between")
        _verify(self._root, signed, "root")
        _verify(root, signed, "root")
        self._root, self.roots = root, (*self.roots, raw)
        return True

    def _drop_disowned(self) -> None:
        """Drop delegations that are not signed by a new root's keys."""
        try:
            if self.document:
                _verify(self._root, _document(self.document, Targets), "targets")
        except TrustError:
            self.delegated, self.document = None, b""

    def _take_delegations(self, raw: bytes, now: datetime | None) -> bool:
        if raw == self.document:
            return False
        signed = _document(raw, Targets)
        _verify(self._root, signed, "targets")
        found = _delegated(signed.signed)
        current = self.delegated
        if current is not None:
            if found.version <= current.version:
                what = f"delegations {found.version} do not follow delegations {current.version}"
                raise TrustError("metadata_rollback", what)
            after = _role_keys(found)
            for name, role in _role_keys(current).items():
                if name not in after or after[name].epoch < role.epoch:
                    raise TrustError("metadata_rollback", f"the epoch of {name} goes back")
        _check_time("delegations", found.expires, now)
        self.delegated, self.document = found, raw
        return True


# --- making documents --------------------------------------------------------------------------


def make_root(
    version: int, keys: Sequence[VerifyKey], threshold: int, expires: datetime
) -> Metadata[Root]:
    """Return an unsigned root. Raises TrustError if there are fewer keys than the threshold."""
    if not 1 <= threshold <= len(set(keys)):
        what = f"{threshold} of {len(set(keys))} root keys cannot sign"
        fix = "set 1 or more, and at most the number of keys"
        raise TrustError("bad_threshold", what, fix=fix)
    root = Root(version=version, expires=expires, consistent_snapshot=False)
    for name in sorted(TOP_LEVEL_ROLE_NAMES):
        for key in keys:
            root.add_key(_tuf_key(key), name)
        root.roles[name].threshold = threshold
    return Metadata(root)


def make_delegations(content: Delegated) -> Metadata[Targets]:
    roles = {}
    for name, role in content.roles.items():
        own: dict[str, Any] = {"epoch": role.epoch}
        if name == "proxy-rosters":
            own["lineage"] = content.lineage
        keyid = _tuf_key(role.key).keyid
        roles[name] = DelegatedRole(name, [keyid], 1, True, [], None, own)
    named = (_tuf_key(role.key) for role in _role_keys(content).values())
    keys: dict[str, Key] = {key.keyid: key for key in named}
    more: dict[str, Any] = {}
    for name, cell in content.cells.items():
        own = {**_plain_role(cell.rosters), "lineage": cell.lineage}
        more.setdefault("cells", {})[name] = own
    if content.site is not None:
        more["site"] = _plain_role(content.site)
    files = {}
    for domain, pem in content.authorities.items():
        path = f"authorities/{domain}.pem"
        files[path] = TargetFile.from_data(path, pem.encode("ascii"))
        files[path].unrecognized_fields["custom"] = {"pem": pem}
    delegations = Delegations(keys, roles)
    return Metadata(Targets(content.version, None, content.expires, files, delegations, more))


def sign_document(document: Metadata[Any], key: SigningKey) -> None:
    private = Ed25519PrivateKey.from_private_bytes(key.to_bytes())
    document.sign(CryptoSigner(private), append=True)


def document_bytes(document: Metadata[Any]) -> bytes:
    """Serialise a document. Raises TrustError above 32 KiB."""
    raw = document.to_bytes(_COMPACT)
    if len(raw) > DOCUMENT_BYTES:
        raise TrustError("oversized_metadata", f"the document has {len(raw)} bytes")
    return raw


def root_keys(raw: bytes) -> tuple[tuple[VerifyKey, ...], int]:
    """Return the keys of a root document, and the threshold."""
    root, _ = _root(raw)
    role = root.roles["root"]
    return tuple(_verify_key(root.keys[keyid]) for keyid in role.keyids), role.threshold


def signed_by(raw: bytes) -> frozenset[str]:
    """Return the key ids of a document's signatures, also of invalid ones."""
    return frozenset(_document(raw, Root, Targets).signatures)


def key_id(key: VerifyKey) -> str:
    """Return TUF's key id, 64 hexadecimal digits."""
    return _tuf_key(key).keyid


def next_delegations(current: Delegated, expires: datetime, **changed: Any) -> Delegated:
    """Return the version after `current` with changed fields."""
    return replace(current, version=current.version + 1, expires=expires, **changed)


# --- reading them --------------------------------------------------------------------------------


def read_document(raw: bytes) -> Metadata[Any]:
    """Parse a root or delegations, unverified. Raises TrustError `malformed_metadata`."""
    return _document(raw, Root, Targets)


def read_delegations(raw: bytes) -> Delegated:
    """Parse delegations, unverified. Raises TrustError `malformed_metadata`."""
    return _delegated(_document(raw, Targets).signed)


def _document(raw: bytes, *kinds: type[Any]) -> Metadata[Any]:
    if len(raw) > DOCUMENT_BYTES:
        raise TrustError("malformed_metadata", f"a document of more than {DOCUMENT_BYTES} bytes")
    try:
        found: Metadata[Any] = Metadata.from_bytes(raw)
    except (DeserializationError, ValueError, RecursionError):
        raise TrustError("malformed_metadata", "no metadata of TUF") from None
    if not isinstance(found.signed, kinds):
        what = f"a document of the wrong type '{found.signed.type}'"
        raise TrustError("malformed_metadata", what)
    return found


def _root(raw: bytes) -> tuple[Root, Metadata[Root]]:
    found: Metadata[Root] = _document(raw, Root)
    return found.signed, found


def _verify(root: Root, signed: Metadata[Any], role: str) -> None:
    try:
        root.verify_delegate(role, signed.signed_bytes, signed.signatures)
    except (RepositoryError, ValueError, KeyError):
        what = f"version {signed.signed.version} has too few signatures of root {root.version}"
        fix = "sign it with more of the root's keys: edgeveil trust sign"
        raise TrustError("too_few_signatures", what, fix=fix) from None


def _check_time(what: str, ends: datetime, now: datetime | None) -> None:
    if now is not None and ends <= now:
        text = f"the {what} expired on {ends:%Y-%m-%d %H:%M} UTC"
        fix = "check this machine's clock, or renew it: edgeveil trust sign --renew"
        raise TrustError("metadata_expired", text, fix=fix)


def _delegated(content: Targets) -> Delegated:
    delegations = content.delegations
    roles = delegations.roles if delegations else None
    if delegations is None or roles is None or set(roles) != set(ROLES):
        raise TrustError("malformed_metadata", f"the roles must be {', '.join(ROLES)}")
    try:
        found = {}
        for name, role in roles.items():
            (keyid,), epoch = role.keyids, role.unrecognized_fields["epoch"]
            found[name] = _role_key(delegations, {"keyid": keyid, "epoch": epoch})
        lineage = roles["proxy-rosters"].unrecognized_fields["lineage"]
        named = ((_AUTHORITY.fullmatch(path), file) for path, file in content.targets.items())
        pems = {match[1]: _pem(file) for match, file in named if match}
        cells = _cells(delegations, content.unrecognized_fields.get("cells", {}))
        site = content.unrecognized_fields.get("site")
        mover = None if site is None else _role_key(delegations, site)
    except (KeyError, TypeError, ValueError, AttributeError, RepositoryError):
        raise TrustError("malformed_metadata", "a role or authority is malformed") from None
    for one in (lineage, *(cell.lineage for cell in cells.values())):
        if not isinstance(one, str) or not (not one or _LINEAGE.fullmatch(one)):
            raise TrustError("malformed_metadata", "the lineage is not 32 hexadecimal digits")
    made = Delegated(content.version, content.expires, found, lineage, pems, cells, mover)
    proxies = [made.proxy_of(cell).rosters.key for cell in ("", *cells)]
    if len(set(proxies)) < len(proxies):  # one proxy's statements would count for both
        raise TrustError("malformed_metadata", "two cells have one key")
    return made


def _cells(delegations: Delegations, raw: Mapping[str, Any]) -> dict[str, CellProxy]:
    if len(raw) > MOST_CELLS or not all(CELL.fullmatch(name) for name in raw):
        raise ValueError
    return {k: CellProxy(_role_key(delegations, one), one["lineage"]) for k, one in raw.items()}


def _role_keys(content: Delegated) -> dict[str, RoleKey]:
    """Return all role keys; those of cells and site under names outside TUF's roles."""
    cells = {f"cell {name}": cell.rosters for name, cell in content.cells.items()}
    return {**content.roles, **cells, **({"site": content.site} if content.site else {})}


def _plain_role(role: RoleKey) -> dict[str, Any]:
    return {"keyid": _tuf_key(role.key).keyid, "epoch": role.epoch}


def _role_key(delegations: Delegations, raw: Mapping[str, Any]) -> RoleKey:
    epoch = raw["epoch"]
    if type(epoch) is not int or not 0 <= epoch < 2**31:
        raise ValueError
    return RoleKey(_verify_key(delegations.keys[raw["keyid"]]), epoch)


def _pem(file: TargetFile) -> str:
    pem = file.custom["pem"] if file.custom else None
    if not isinstance(pem, str):
        raise ValueError
    file.verify_length_and_hashes(pem.encode("ascii"))
    return pem


def _tuf_key(key: VerifyKey) -> SSlibKey:
    return SSlibKey.from_crypto(key.library_key())


def _verify_key(key: Any) -> VerifyKey:
    try:
        if key.keytype != "ed25519":
            raise ValueError
        return VerifyKey(bytes.fromhex(key.keyval["public"]))
    except (KeyError, TypeError, ValueError, CryptoError):
        raise TrustError("malformed_metadata", "a key is no Ed25519 key") from None


def now_utc() -> datetime:
    """Return the time in whole seconds, the resolution of metadata."""
    return datetime.now(UTC).replace(microsecond=0)
