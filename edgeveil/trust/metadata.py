"""Metadata of the offline root (The Update Framework, TUF specification 1.0), by python-tuf.

The *root* names its own keys and how many must sign; version N + 1 is signed by as many of version
N's too. The *delegations* (TUF's top-level `targets`) name the key of each online role, the lineage
of the proxy's registry, the certificate authorities of both broker domains, each named cell's proxy
and the key that moves devices. TUF's `timestamp` and `snapshot` roles are the root's and unused:
freshness comes from the delegations' expiry, and from the rosters'.

A role's `epoch` grows whenever its key is replaced: sequence numbers count within one, so that a
rotation ends what a leaked key has said. No cell is ever taken out, so that no epoch begins anew.
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
    """Metadata that is not believed; `reason` is a code for counts and logs."""

    exit_code = 2

    def __init__(self, reason: str, what: str, *, where: str = "", fix: str = "") -> None:
        self.reason = reason
        super().__init__(what, where=where, fix=fix)


@dataclass(frozen=True)
class RoleKey:
    """The key of a role, and how often it was replaced."""

    key: VerifyKey
    epoch: int = 0


@dataclass(frozen=True)
class CellProxy:
    """The key of a cell's proxy, and its registry's lineage (32 hex digits; "": the first seen)."""

    rosters: RoleKey
    lineage: str = ""


@dataclass(frozen=True)
class Delegated:
    """The delegations. `lineage` is of the unnamed cell's registry, `authorities` are PEM by broker
    domain (`edge`, `edge-north`), `site` is the key that moves devices between cells, if any."""

    version: int
    expires: datetime
    roles: Mapping[str, RoleKey]
    lineage: str = ""
    authorities: Mapping[str, str] = field(default_factory=dict)
    cells: Mapping[str, CellProxy] = field(default_factory=dict)
    site: RoleKey | None = None

    def proxy_of(self, cell: str) -> CellProxy:
        """A cell's proxy. Raises TrustError `unknown_cell`."""
        if not cell:
            return CellProxy(self.roles["proxy-rosters"], self.lineage)
        if cell not in self.cells:
            what = f"the root names no cell '{cell}'; it names {', '.join(self.cells) or 'none'}"
            fix = "correct cell in the site file, or add it to the plan: edgeveil site apply"
            raise TrustError("unknown_cell", what, fix=fix)
        return self.cells[cell]

    def cell_of(self, key: VerifyKey) -> str | None:
        """The cell whose proxy speaks with this key."""
        cells = (one for one in ("", *self.cells) if self.proxy_of(one).rosters.key == key)
        return next(cells, None)


class TrustedMetadata:
    """What a party has verified, from the root that it pins; it only goes forward."""

    def __init__(self, pinned: bytes) -> None:
        """Raises TrustError unless `pinned` is a root that is signed by its own keys."""
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
        """Version of the delegations, 0 without any that the root vouches for."""
        return self.delegated.version if self.delegated else 0

    def problem(self, now: datetime) -> str:
        """Why nobody is believed at this moment, or ""."""
        if self.delegated is None:
            return "the root's delegations are not there"
        for what, ends in (("root", self.root_expires), ("delegations", self.delegated.expires)):
            if ends <= now:
                return f"the trust {what} expired on {ends:%Y-%m-%d}"
        return ""

    def after(self, root_version: int, version: int) -> tuple[tuple[bytes, ...], bytes]:
        """The roots above `root_version`, and the delegations where they are newer (else empty)."""
        first = self.root_version - len(self.roots) + 1
        roots = self.roots[max(0, root_version + 1 - first) :]
        newer = version < self.version or bool(roots)
        return roots, self.document if newer else b""

    def take(self, roots: Sequence[bytes], document: bytes, now: datetime | None) -> bool:
        """Go forward to these roots and delegations (may be empty), or not at all; False if nothing
        was new. Without `now` expired ones are taken too. Raises TrustError: `malformed_metadata`,
        `too_few_signatures`, `metadata_gap`, `metadata_rollback`, `metadata_expired`."""
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
        """Drop delegations that a new root no longer vouches for."""
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
        held = self.delegated
        if held is not None:
            if found.version <= held.version:
                what = f"delegations {found.version} do not follow delegations {held.version}"
                raise TrustError("metadata_rollback", what)
            after = _role_keys(found)
            for name, role in _role_keys(held).items():
                if name not in after or after[name].epoch < role.epoch:
                    raise TrustError("metadata_rollback", f"the epoch of {name} goes back")
        _check_time("delegations", found.expires, now)
        self.delegated, self.document = found, raw
        return True


# --- making documents --------------------------------------------------------------------------


def make_root(
    version: int, keys: Sequence[VerifyKey], threshold: int, expires: datetime
) -> Metadata[Root]:
    """An unsigned root. Raises TrustError for a threshold that its keys cannot reach."""
    if not 1 <= threshold <= len(set(keys)):
        what = f"{threshold} of {len(set(keys))} root keys cannot sign"
        fix = "ask for 1 or more, and at most as many as there are keys"
        raise TrustError("bad_threshold", what, fix=fix)
    root = Root(version=version, expires=expires, consistent_snapshot=False)
    for name in sorted(TOP_LEVEL_ROLE_NAMES):
        for key in keys:
            root.add_key(_tuf_key(key), name)
        root.roles[name].threshold = threshold
    return Metadata(root)


def make_delegations(said: Delegated) -> Metadata[Targets]:
    """Unsigned delegations."""
    roles = {}
    for name, role in said.roles.items():
        own: dict[str, Any] = {"epoch": role.epoch}
        if name == "proxy-rosters":
            own["lineage"] = said.lineage
        keyid = _tuf_key(role.key).keyid
        roles[name] = DelegatedRole(name, [keyid], 1, True, [], None, own)
    named = (_tuf_key(role.key) for role in _role_keys(said).values())
    keys: dict[str, Key] = {key.keyid: key for key in named}
    more: dict[str, Any] = {}
    for name, cell in said.cells.items():
        own = {**_plain_role(cell.rosters), "lineage": cell.lineage}
        more.setdefault("cells", {})[name] = own
    if said.site is not None:
        more["site"] = _plain_role(said.site)
    files = {}
    for domain, pem in said.authorities.items():
        path = f"authorities/{domain}.pem"
        files[path] = TargetFile.from_data(path, pem.encode("ascii"))
        files[path].unrecognized_fields["custom"] = {"pem": pem}
    delegations = Delegations(keys, roles)
    return Metadata(Targets(said.version, None, said.expires, files, delegations, more))


def sign_document(document: Metadata[Any], key: SigningKey) -> None:
    """Add the signature of one of the root's keys."""
    private = Ed25519PrivateKey.from_private_bytes(key.to_bytes())
    document.sign(CryptoSigner(private), append=True)


def document_bytes(document: Metadata[Any]) -> bytes:
    """As it is kept and sent. Raises TrustError above 32 KiB."""
    raw = document.to_bytes(_COMPACT)
    if len(raw) > DOCUMENT_BYTES:
        raise TrustError("oversized_metadata", f"the document has {len(raw)} bytes")
    return raw


def root_keys(raw: bytes) -> tuple[tuple[VerifyKey, ...], int]:
    """The keys of a root document, and how many of them must sign."""
    root, _ = _root(raw)
    role = root.roles["root"]
    return tuple(_verify_key(root.keys[keyid]) for keyid in role.keyids), role.threshold


def signed_by(raw: bytes) -> frozenset[str]:
    """The key ids of the signatures on a document, right or not."""
    return frozenset(_document(raw, Root, Targets).signatures)


def key_id(key: VerifyKey) -> str:
    """How TUF names a key: 64 hexadecimal digits."""
    return _tuf_key(key).keyid


def next_delegations(held: Delegated, expires: datetime, **changed: Any) -> Delegated:
    """The version after `held`, with what is changed."""
    return replace(held, version=held.version + 1, expires=expires, **changed)


# --- reading them --------------------------------------------------------------------------------


def read_document(raw: bytes) -> Metadata[Any]:
    """A root or delegations, by their form alone. Raises TrustError `malformed_metadata`."""
    return _document(raw, Root, Targets)


def read_delegations(raw: bytes) -> Delegated:
    """What delegations say, whoever signed them. Raises TrustError `malformed_metadata`."""
    return _delegated(_document(raw, Targets).signed)


def _document(raw: bytes, *kinds: type[Any]) -> Metadata[Any]:
    if len(raw) > DOCUMENT_BYTES:
        raise TrustError("malformed_metadata", f"a document of more than {DOCUMENT_BYTES} bytes")
    try:
        found: Metadata[Any] = Metadata.from_bytes(raw)
    except (DeserializationError, ValueError, RecursionError):
        raise TrustError("malformed_metadata", "no metadata of TUF") from None
    if not isinstance(found.signed, kinds):
        raise TrustError("malformed_metadata", f"a '{found.signed.type}' stands where none belongs")
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


def _delegated(said: Targets) -> Delegated:
    """By their form. Raises TrustError `malformed_metadata`."""
    delegations = said.delegations
    roles = delegations.roles if delegations else None
    if delegations is None or roles is None or set(roles) != set(ROLES):
        raise TrustError("malformed_metadata", f"the roles must be {', '.join(ROLES)}")
    try:
        found = {}
        for name, role in roles.items():
            (keyid,), epoch = role.keyids, role.unrecognized_fields["epoch"]
            found[name] = _role_key(delegations, {"keyid": keyid, "epoch": epoch})
        lineage = roles["proxy-rosters"].unrecognized_fields["lineage"]
        named = ((_AUTHORITY.fullmatch(path), file) for path, file in said.targets.items())
        pems = {match[1]: _pem(file) for match, file in named if match}
        cells = _cells(delegations, said.unrecognized_fields.get("cells", {}))
        site = said.unrecognized_fields.get("site")
        mover = None if site is None else _role_key(delegations, site)
    except (KeyError, TypeError, ValueError, AttributeError, RepositoryError):
        raise TrustError("malformed_metadata", "a role or authority is not in order") from None
    for one in (lineage, *(cell.lineage for cell in cells.values())):
        if not isinstance(one, str) or not (not one or _LINEAGE.fullmatch(one)):
            raise TrustError("malformed_metadata", "the lineage is not 32 hexadecimal digits")
    made = Delegated(said.version, said.expires, found, lineage, pems, cells, mover)
    proxies = [made.proxy_of(cell).rosters.key for cell in ("", *cells)]
    if len(set(proxies)) < len(proxies):  # what one says of its cell would count for the other
        raise TrustError("malformed_metadata", "two cells have one key")
    return made


def _cells(delegations: Delegations, said: Mapping[str, Any]) -> dict[str, CellProxy]:
    if len(said) > MOST_CELLS or not all(CELL.fullmatch(name) for name in said):
        raise ValueError
    return {k: CellProxy(_role_key(delegations, one), one["lineage"]) for k, one in said.items()}


def _role_keys(said: Delegated) -> dict[str, RoleKey]:
    """All of them; a cell's and the site's under names that no role of TUF's has."""
    cells = {f"cell {name}": cell.rosters for name, cell in said.cells.items()}
    return {**said.roles, **cells, **({"site": said.site} if said.site else {})}


def _plain_role(role: RoleKey) -> dict[str, Any]:
    return {"keyid": _tuf_key(role.key).keyid, "epoch": role.epoch}


def _role_key(delegations: Delegations, said: Mapping[str, Any]) -> RoleKey:
    epoch = said["epoch"]
    if type(epoch) is not int or not 0 <= epoch < 2**31:
        raise ValueError
    return RoleKey(_verify_key(delegations.keys[said["keyid"]]), epoch)


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
    """This machine's clock, in whole seconds as metadata has them."""
    return datetime.now(UTC).replace(microsecond=0)
