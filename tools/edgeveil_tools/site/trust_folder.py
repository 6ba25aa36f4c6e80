"""The folder of a fleet's offline root, and changes to its delegations.

    DIR/keys/root-1.key …       the root's secret keys, encrypted with a passphrase
    DIR/metadata/N.root.json    all root documents; delegations.json holds the newest delegations
    DIR/pending/                documents that lack signatures
    DIR/trust.json              the trust metadata for every party
    DIR/audit.jsonl             the log of changes, chained and signed

A change makes new documents and signs them with the secret keys at hand. `trust.json` is replaced
once enough keys have signed; other keys sign on their own machines with `sign`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tuf.api.metadata import Metadata

from edgeveil.audit_log import AUDIT_FILE, AuditLog
from edgeveil.crypto.authorities import key_pem
from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import CryptoError, UsageError
from edgeveil.storage import read_private, write_durably
from edgeveil.trust.bundle import TrustBundle
from edgeveil.trust.metadata import (
    CellProxy,
    Delegated,
    RoleKey,
    TrustedMetadata,
    TrustError,
    document_bytes,
    key_id,
    make_delegations,
    make_root,
    next_delegations,
    now_utc,
    read_delegations,
    read_document,
    root_keys,
    sign_document,
    signed_by,
)

ROOT_DAYS, DELEGATION_DAYS = 1825, 180
BUNDLE_FILE = "trust.json"
_DELEGATIONS = "delegations.json"
PROXY_ROLE, SITE_ROLE = "proxy-rosters", "site"

Passphrase = Callable[[Path], bytes | None]
"""Returns the passphrase of a key file; None: the key is not encrypted."""
Missing = dict[str, int]
"""Further signatures that each document of a change needs; empty: the change is in effect."""


class TrustFolder:
    """The folder of one root, with the validity of delegations (`days`) and roots in days.

    Changes return missing signatures and raise TrustError, UsageError, CryptoError or OSError."""

    def __init__(
        self,
        folder: Path,
        passphrase: Passphrase,
        *,
        root_days: int = ROOT_DAYS,
        days: int = DELEGATION_DAYS,
    ) -> None:
        self.folder, self._passphrase = folder, passphrase
        self._root_days, self._days = timedelta(days=root_days), timedelta(days=days)
        self.bundle_file = folder / BUNDLE_FILE

    def trusted(self) -> TrustedMetadata:
        """Return the metadata of the newest `trust.json`, expired or not."""
        if not self.bundle_file.exists():
            fix = "create a root: edgeveil trust init"
            raise UsageError("holds no trust.json", where=str(self.folder), fix=fix)
        return TrustBundle.load(self.bundle_file).verified()

    def delegated(self) -> Delegated:
        found = self.trusted().delegated
        if found is None:
            what, fix = "its delegations are not signed", "edgeveil trust sign, with missing keys"
            raise TrustError("too_few_signatures", what, where=str(self.folder), fix=fix)
        return found

    def init(
        self,
        keys: Sequence[SigningKey],
        threshold: int,
        roles: Mapping[str, VerifyKey],
        *,
        authorities: Mapping[str, str] = MappingProxyType({}),
        cells: Mapping[str, VerifyKey] = MappingProxyType({}),
        site: VerifyKey | None = None,
    ) -> None:
        """Make the root; `cells` are their proxies' keys, `site` is the key that moves devices."""
        if self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError("is not empty", where=str(self.folder), fix="name a new folder")
        _check_distinct(roles, cells)
        ends = now_utc() + self._root_days
        root = make_root(1, [key.public() for key in keys], threshold, ends)
        for name in ("keys", "metadata", "pending"):
            (self.folder / name).mkdir(mode=0o700, parents=True)
        delegations = Delegated(
            1,
            now_utc() + self._days,
            {name: RoleKey(key) for name, key in roles.items()},
            authorities=authorities,
            cells={name: CellProxy(RoleKey(key)) for name, key in cells.items()},
            site=RoleKey(site) if site else None,
        )
        for number, key in enumerate(keys, 1):
            save_root_key(self.folder / "keys" / f"root-{number}.key", key, self._passphrase)
        what = {"threshold": threshold, "keys": len(keys)}
        self._publish(root, make_delegations(delegations), keys, "init", what)

    def rotate_role(self, role: str, key: VerifyKey | None, *, cell: str = "") -> Missing:
        """Give `role` a new key and epoch; of a cell only the proxy's rosters have a key.

        Without a key the role is revoked: its key becomes one that nobody holds."""
        held, key = self.delegated(), key or SigningKey.generate().public()
        if cell and role != PROXY_ROLE:
            where = f"--cell {cell}"
            raise UsageError(f"{role} has no key per cell", where=where, fix="leave it out")
        before = held.site if role == SITE_ROLE else held.roles[role]
        if role == PROXY_ROLE:
            before = held.proxy_of(cell).rosters
        if before is not None and before.key == key:
            raise UsageError("has this key already", where=role, fix="make a new key first")
        new = RoleKey(key, before.epoch + 1 if before else 0)
        changed: dict[str, Any] = {"roles": held.roles, "cells": held.cells}
        if role == SITE_ROLE:
            changed = {"site": new}
        elif cell:
            changed["cells"] = {**held.cells, cell: CellProxy(new, held.cells[cell].lineage)}
        else:
            changed["roles"] = {**held.roles, role: new}
        what = {"role": role, "key": key.fingerprint(), **({"cell": cell} if cell else {})}
        return self._delegate("rotate", what, **changed)

    def extend(
        self,
        cells: Mapping[str, VerifyKey],
        authorities: Mapping[str, str] = MappingProxyType({}),
        site: VerifyKey | None = None,
    ) -> Missing:
        """Add cells with their proxies' keys, authorities (PEM), and a missing site key."""
        held = self.delegated()
        changed: dict[str, Any] = {
            "cells": {**{n: CellProxy(RoleKey(key)) for n, key in cells.items()}, **held.cells},
            "authorities": {**authorities, **held.authorities},
        }
        if site is not None and held.site is None:
            changed["site"] = RoleKey(site)
        what = {"cells": sorted(cells), "authorities": sorted(authorities)}
        return self._delegate("extend", what, **changed)

    def set_lineage(self, lineage: str, *, cell: str = "") -> Missing:
        """Restrict rosters, of the cell if named, to those of this registry."""
        if not cell:
            return self._delegate("recover", {"registry": lineage}, lineage=lineage)
        held = self.delegated()
        cells = {**held.cells, cell: CellProxy(held.proxy_of(cell).rosters, lineage)}
        return self._delegate("recover", {"registry": lineage, "cell": cell}, cells=cells)

    def renew(self) -> Missing:
        return self.new_root(*root_keys(self.trusted().roots[-1]), "renew")

    def new_root(self, keys: Sequence[VerifyKey], threshold: int, action: str) -> Missing:
        """Replace the root's keys; the former and the new keys sign."""
        self._check_nothing_pending()
        version = self.trusted().root_version + 1
        root = make_root(version, keys, threshold, now_utc() + self._root_days)
        delegations = make_delegations(next_delegations(self.delegated(), now_utc() + self._days))
        what = {"root": version, "keys": len(keys)}
        return self._publish(root, delegations, self.secret_keys(), action, what)

    def sign(self) -> Missing:
        found = {
            path.name: read_document(path.read_bytes())
            for path in sorted((self.folder / "pending").glob("*.json"))
        }
        if not found:
            fix = "make a change first"
            raise UsageError("nothing is pending", where=str(self.folder), fix=fix)
        what, delegations = {"documents": [*found]}, found.pop(_DELEGATIONS)
        root = next(iter(found.values()), None)
        return self._publish(root, delegations, self.secret_keys(), "sign", what)

    def pending(self) -> tuple[bytes | None, Delegated | None]:
        """Return the root and the delegations that lack signatures, each or None."""
        raw = {path.name: path.read_bytes() for path in (self.folder / "pending").glob("*.json")}
        delegations = raw.pop(_DELEGATIONS, None)
        known = read_delegations(delegations) if delegations else None
        return next(iter(raw.values()), None), known

    def secret_keys(self) -> list[SigningKey]:
        files = sorted((self.folder / "keys").glob("*.key"))
        return [load_root_key(path, self._passphrase) for path in files]

    def _delegate(self, action: str, what: Mapping[str, Any], **changed: Any) -> Missing:
        self._check_nothing_pending()
        delegations = next_delegations(self.delegated(), now_utc() + self._days, **changed)
        _check_distinct(
            {name: one.key for name, one in delegations.roles.items()},
            {name: one.rosters.key for name, one in delegations.cells.items()},
        )
        return self._publish(None, make_delegations(delegations), self.secret_keys(), action, what)

    def _publish(
        self,
        root: Metadata[Any] | None,
        delegations: Metadata[Any],
        signers: Sequence[SigningKey],
        action: str,
        what: Mapping[str, Any],
    ) -> Missing:
        """Sign and log documents; publish them if fully signed, else leave all pending."""
        before = self.trusted().roots if self.bundle_file.exists() else ()
        new = (document_bytes(root),) if root else ()
        documents = {_DELEGATIONS: (delegations, new or before[-1:])}
        if root:
            documents = {f"{root.signed.version}.root.json": (root, before[-1:] + new), **documents}
        missing, raw = {}, {}
        for name, (document, roots) in documents.items():
            holders = [root_keys(raw) for raw in roots]
            allowed = {key for keys, _ in holders for key in keys}
            for signer in signers:
                if signer.public() in allowed:
                    sign_document(document, signer)
            raw[name] = document_bytes(document)
            signed = signed_by(raw[name])
            lacks = max(t - sum(key_id(key) in signed for key in keys) for keys, t in holders)
            if lacks > 0:
                missing[name] = lacks
        roots = (*before, *(one for name, one in raw.items() if name != _DELEGATIONS))
        bundle = TrustBundle(roots, raw[_DELEGATIONS])
        if not missing:  # verify as every party will, before anything is written
            TrustedMetadata(roots[0]).take(roots[1:], bundle.delegations, now_utc())
        for name, content in raw.items():
            place = self.folder / ("pending" if missing else "metadata") / name
            write_durably(place, content, mode=0o644)
        if not missing:
            write_durably(self.bundle_file, bundle.to_text().encode(), mode=0o644)
            for path in (self.folder / "pending").glob("*.json"):
                path.unlink()
        if signers:
            AuditLog(self.folder / AUDIT_FILE, signers[0]).append(action, what)
        return missing

    def _check_nothing_pending(self) -> None:
        """Refuse a change that would silently replace a pending one."""
        pending = self.folder / "pending"
        if any(pending.glob("*.json")):
            fix = "edgeveil trust sign, with the missing keys; or remove its files, to give it up"
            raise UsageError("a change awaits signatures", where=str(pending), fix=fix)


def _check_distinct(roles: Mapping[str, VerifyKey], cells: Mapping[str, VerifyKey]) -> None:
    """Refuse a proxy's key that is the cloud's or another cell's."""
    proxies = {PROXY_ROLE: roles[PROXY_ROLE], **{f"cell {n}": key for n, key in cells.items()}}
    fix = "name the key of the proxy's own: edgeveil keys"
    for name, key in proxies.items():
        if key in (roles["cloud-jobs"], roles["cloud-releases"]):
            what = "is also the cloud's key; who hides senders must not read uploads"
            raise UsageError(what, where=name, fix=fix)
        if list(proxies.values()).count(key) > 1:
            what = "is also another cell's key; signatures of one would count for the other"
            raise UsageError(what, where=name, fix=fix)


def save_root_key(path: Path, key: SigningKey, passphrase: Passphrase) -> None:
    """Save a key as encrypted PKCS#8 in PEM, mode 0600."""
    write_durably(path, key_pem(key.library_key(), passphrase(path)), mode=0o600)


def load_root_key(path: Path, passphrase: Passphrase) -> SigningKey:
    """Load a key; raises CryptoError for another kind, a wrong passphrase or an open file."""
    where = str(path)
    raw = read_private(path, "secret key", CryptoError)
    secret = passphrase(path) if b"ENCRYPTED" in raw else None
    try:
        found = load_pem_private_key(raw, secret)
    except (ValueError, TypeError):
        fix = "enter the passphrase of its creation"
        raise CryptoError("the key cannot be decrypted", where=where, fix=fix) from None
    if not isinstance(found, Ed25519PrivateKey):
        raise CryptoError("is no Ed25519 key", where=where, fix="use a key of edgeveil trust init")
    return SigningKey(found.private_bytes_raw())
