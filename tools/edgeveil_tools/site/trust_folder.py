"""A fleet's offline root: its folder, and changes of what it delegates.

    DIR/keys/root-1.key …       the root's secret keys, encrypted with a passphrase
    DIR/metadata/N.root.json    all root documents; delegations.json the newest delegations
    DIR/pending/                documents that lack signatures
    DIR/trust.json              what every party is handed
    DIR/audit.jsonl             what was done, chained and signed

A change makes new documents, signs them with the secret keys at hand, and takes effect in
`trust.json` once enough keys have signed, with `sign` on other machines that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tuf.api.metadata import Metadata

from edgeveil.audit_log import AUDIT_FILE, AuditLog
from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import CryptoError, UsageError
from edgeveil.storage import open_to_others, write_durably
from edgeveil.trust.bundle import TrustBundle
from edgeveil.trust.metadata import (
    ROLES,
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

Documents = list[tuple[str, Metadata[Any]]]
Passphrase = Callable[[Path], bytes | None]
"""Asks for the passphrase of one key file; None: the key is not encrypted."""


@dataclass(frozen=True)
class Published:
    """A change: in effect, or how many further signatures each document needs."""

    missing: Mapping[str, int]

    @property
    def in_effect(self) -> bool:
        """Whether it is in `trust.json`."""
        return not self.missing


class TrustFolder:
    """One root's folder. Every change raises TrustError, UsageError, CryptoError or OSError."""

    def __init__(
        self, folder: Path, passphrase: Passphrase, now: Callable[[], datetime] = now_utc
    ) -> None:
        self.folder, self._passphrase, self._now = folder, passphrase, now
        self.bundle_file = folder / BUNDLE_FILE

    def trusted(self) -> TrustedMetadata:
        """The metadata of the newest `trust.json`, expired or not."""
        if not self.bundle_file.exists():
            raise UsageError(
                "holds no trust.json",
                where=str(self.folder),
                fix="make a root: edgeveil trust init",
            )
        return TrustBundle.load(self.bundle_file).verified()

    def delegated(self) -> Delegated:
        """The delegations in effect."""
        found = self.trusted().delegated
        if found is None:
            raise TrustError(
                "too_few_signatures",
                "the root's newest delegations are not signed",
                where=str(self.folder),
                fix="edgeveil trust sign, with the missing keys",
            )
        return found

    # --- changes ---

    @classmethod
    def init(
        cls,
        folder: Path,
        keys: Sequence[SigningKey],
        threshold: int,
        roles: Mapping[str, VerifyKey],
        authorities: Mapping[str, str],
        passphrase: Passphrase,
        *,
        cells: Mapping[str, VerifyKey] = MappingProxyType({}),
        site: VerifyKey | None = None,
        root_days: int = ROOT_DAYS,
        days: int = DELEGATION_DAYS,
        now: Callable[[], datetime] = now_utc,
    ) -> TrustFolder:
        """Make the root and its first delegations; `cells` are their proxies' keys, `site` is the
        key that moves devices between them."""
        made = cls(folder, passphrase, now)
        if folder.exists() and any(folder.iterdir()):
            raise UsageError("is not empty", where=str(folder), fix="name a new folder")
        _check_apart(roles, cells)
        public = [key.public() for key in keys]
        root = make_root(1, public, threshold, now() + timedelta(days=root_days))
        for name in ("keys", "metadata", "pending"):
            (folder / name).mkdir(mode=0o700, parents=True)
        said = Delegated(
            1,
            now() + timedelta(days=days),
            {name: RoleKey(key) for name, key in roles.items()},
            authorities=authorities,
            cells={name: CellProxy(RoleKey(key)) for name, key in cells.items()},
            site=RoleKey(site) if site else None,
        )
        for number, key in enumerate(keys, 1):
            save_root_key(folder / "keys" / f"root-{number}.key", key, passphrase)
        documents: Documents = [("1.root.json", root), (_DELEGATIONS, make_delegations(said))]
        made._publish(documents, keys, "init", {"threshold": threshold, "keys": len(keys)})
        return made

    def rotate_role(
        self, role: str, key: VerifyKey, *, cell: str = "", days: int = DELEGATION_DAYS
    ) -> Published:
        """Give `role` a new key and epoch; of a cell only the proxy's rosters have a key."""
        held = self.delegated()
        if role not in (*ROLES, SITE_ROLE):
            known = ", ".join((*ROLES, SITE_ROLE))
            raise UsageError(f"there is no role '{role}'", fix=f"name one of {known}")
        if cell and role != PROXY_ROLE:
            raise UsageError(f"{role} is of no cell", where=f"--cell {cell}", fix="leave it out")
        before = held.site if role == SITE_ROLE else held.roles[role]
        if role == PROXY_ROLE:
            before = held.proxy_of(cell).rosters
        if before is not None and before.key == key:
            raise UsageError("has this key already", where=role, fix="make a new key first")
        new = RoleKey(key, before.epoch + 1 if before else 0)
        roles, cells = dict(held.roles), dict(held.cells)
        changed: dict[str, Any] = {}
        if role == SITE_ROLE:
            changed["site"] = new
        elif cell:
            cells[cell] = CellProxy(new, held.cells[cell].lineage)
            changed["cells"] = cells
        else:
            roles[role] = new
            changed["roles"] = roles
        _check_apart(
            {name: one.key for name, one in roles.items()},
            {name: one.rosters.key for name, one in cells.items()},
        )
        what = {"role": role, "key": key.fingerprint(), **({"cell": cell} if cell else {})}
        return self._delegate("rotate", what, days, **changed)

    def revoke_role(self, role: str, *, cell: str = "", days: int = DELEGATION_DAYS) -> Published:
        """Nobody speaks for `role` until it is rotated: its key becomes one that nobody has."""
        return self.rotate_role(role, SigningKey.generate().public(), cell=cell, days=days)

    def extend(
        self,
        cells: Mapping[str, VerifyKey],
        authorities: Mapping[str, str] = MappingProxyType({}),
        site: VerifyKey | None = None,
        *,
        days: int = DELEGATION_DAYS,
    ) -> Published:
        """Further cells with their proxies' keys, further authorities (PEM), and who moves devices,
        where nobody did."""
        held = self.delegated()
        named = [cell for cell in cells if cell in held.cells]
        if named:
            fix = f"edgeveil trust rotate DIR proxy-rosters KEY.pub --cell {named[0]}"
            raise UsageError("the root names this cell already", where=named[0], fix=fix)
        roles = {name: one.key for name, one in held.roles.items()}
        known = {name: one.rosters.key for name, one in held.cells.items()}
        _check_apart(roles, {**known, **cells})
        changed: dict[str, Any] = {
            "cells": {**held.cells, **{n: CellProxy(RoleKey(key)) for n, key in cells.items()}},
            "authorities": {**authorities, **held.authorities},
        }
        if site is not None and held.site is None:
            changed["site"] = RoleKey(site)
        what = {"cells": sorted(cells), "authorities": sorted(authorities)}
        return self._delegate("extend", what, days, **changed)

    def set_lineage(
        self, lineage: str, *, cell: str = "", days: int = DELEGATION_DAYS
    ) -> Published:
        """Rosters of this registry alone are believed, of the cell's."""
        if not cell:
            return self._delegate("recover", {"registry": lineage}, days, lineage=lineage)
        held = self.delegated()
        proxy = CellProxy(held.proxy_of(cell).rosters, lineage)
        what = {"registry": lineage, "cell": cell}
        return self._delegate("recover", what, days, cells={**held.cells, cell: proxy})

    def renew(self, *, root_days: int = ROOT_DAYS, days: int = DELEGATION_DAYS) -> Published:
        """The same for longer: a new root and new delegations."""
        keys, threshold = root_keys(self.trusted().roots[-1])
        return self.new_root(keys, threshold, "renew", root_days=root_days, days=days)

    def new_root(
        self,
        keys: Sequence[VerifyKey],
        threshold: int,
        action: str,
        *,
        root_days: int = ROOT_DAYS,
        days: int = DELEGATION_DAYS,
    ) -> Published:
        """The root is held by these keys from now on; signed by those before, and by these."""
        self._check_nothing_pending()
        trusted = self.trusted()
        held = self.delegated()
        version = trusted.root_version + 1
        root = make_root(version, keys, threshold, self._now() + timedelta(days=root_days))
        said = next_delegations(held, self._now() + timedelta(days=days))
        documents: Documents = [
            (f"{version}.root.json", root),
            (_DELEGATIONS, make_delegations(said)),
        ]
        what = {"root": version, "keys": len(keys)}
        return self._publish(documents, self.secret_keys(), action, what)

    def sign(self) -> Published:
        """Add the signatures of the keys at hand to what is pending."""
        names = sorted(path.name for path in (self.folder / "pending").glob("*.json"))
        if not names:
            raise UsageError(
                "nothing is pending", where=str(self.folder), fix="make a change first"
            )
        pending = [
            (name, read_document((self.folder / "pending" / name).read_bytes())) for name in names
        ]
        pending.sort(key=lambda one: one[0] == _DELEGATIONS)
        return self._publish(pending, self.secret_keys(), "sign", {"documents": names})

    def pending(self) -> tuple[bytes | None, Delegated | None]:
        """What awaits signatures: a root, the newest of them, and delegations."""
        roots, said = [], None
        for path in (self.folder / "pending").glob("*.json"):
            if path.name == _DELEGATIONS:
                said = read_delegations(path.read_bytes())
            else:
                roots.append(path.read_bytes())
        newest = max(roots, key=lambda raw: read_document(raw).signed.version, default=None)
        return newest, said

    # --- inside ---

    def _delegate(
        self, action: str, what: Mapping[str, Any], days: int, **changed: Any
    ) -> Published:
        self._check_nothing_pending()
        held, ends = self.delegated(), self._now() + timedelta(days=days)
        said = next_delegations(held, ends, **changed)
        documents: Documents = [(_DELEGATIONS, make_delegations(said))]
        return self._publish(documents, self.secret_keys(), action, what)

    def secret_keys(self) -> list[SigningKey]:
        """The root's secret keys at hand."""
        files = sorted((self.folder / "keys").glob("*.key"))
        return [load_root_key(path, self._passphrase) for path in files]

    def _publish(
        self,
        documents: Documents,
        signers: Sequence[SigningKey],
        action: str,
        what: Mapping[str, Any],
    ) -> Published:
        """Sign and log; put in effect what has enough signatures, else leave all of it pending."""
        before = self.trusted() if self.bundle_file.exists() else None
        roots = [document for name, document in documents if name != _DELEGATIONS]
        wanted: dict[str, list[tuple[tuple[VerifyKey, ...], int]]] = {}
        newest = before.roots[-1] if before else None
        for name, document in documents:
            holders = [newest] if newest else []
            if document in roots:
                holders.append(document_bytes(document))
            elif roots:
                holders = [document_bytes(roots[-1])]
            wanted[name] = [root_keys(raw) for raw in holders]
            allowed = {key for keys, _ in wanted[name] for key in keys}
            for signer in signers:
                if signer.public() in allowed:
                    sign_document(document, signer)
        missing = {}
        for name, document in documents:
            signed = signed_by(document_bytes(document))
            lacks = (t - sum(key_id(k) in signed for k in keys) for keys, t in wanted[name])
            most = max(0, *lacks) if wanted[name] else 0
            if most:
                missing[name] = most
        place = self.folder / ("pending" if missing else "metadata")
        if not missing:
            raw = [document_bytes(document) for document in roots]
            kept = before.roots if before else ()
            bundle = TrustBundle((*kept, *raw), document_bytes(documents[-1][1]))
            # As every party will: raises TrustError before anything is written.
            TrustedMetadata(bundle.roots[0]).take(bundle.roots[1:], bundle.delegations, self._now())
        for name, document in documents:
            write_durably(place / name, document_bytes(document), mode=0o644)
        if not missing:
            write_durably(self.bundle_file, bundle.to_text().encode(), mode=0o644)
            for path in (self.folder / "pending").glob("*.json"):
                path.unlink()
        if signers:
            AuditLog(self.folder / AUDIT_FILE, signers[0], self._now).append(action, what)
        return Published(missing)

    def _check_nothing_pending(self) -> None:
        """A further change would take the place of one that awaits signatures, unseen."""
        pending = self.folder / "pending"
        if any(pending.glob("*.json")):
            fix = "edgeveil trust sign, with the missing keys; or remove its files, to give it up"
            raise UsageError("a change awaits signatures", where=str(pending), fix=fix)


def _check_apart(roles: Mapping[str, VerifyKey], cells: Mapping[str, VerifyKey]) -> None:
    """Refuse a proxy with a key of the cloud's, or of another cell."""
    proxies = {
        PROXY_ROLE: roles[PROXY_ROLE],
        **{f"cell {name}": key for name, key in cells.items()},
    }
    for name, key in proxies.items():
        if key in (roles["cloud-jobs"], roles["cloud-releases"]):
            raise UsageError(
                "is the cloud's key too; who hides senders must not be who reads uploads",
                where=name,
                fix="name the proxy's own key: edgeveil keys",
            )
        if list(proxies.values()).count(key) > 1:
            raise UsageError(
                "is another cell's key too; what one says would count for the other",
                where=name,
                fix="name the key of this cell's own proxy: edgeveil keys",
            )


def save_root_key(path: Path, key: SigningKey, passphrase: Passphrase) -> None:
    """PKCS#8 in PEM, encrypted with the passphrase; mode 0600."""
    secret = passphrase(path)
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if secret is not None:
        how = serialization.BestAvailableEncryption(secret)
    raw = key.library_key().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how
    )
    write_durably(path, raw, mode=0o600)


def load_root_key(path: Path, passphrase: Passphrase) -> SigningKey:
    """Raises CryptoError for another kind of key, a wrong passphrase, or a file open to others."""
    where, fix = str(path), "give the passphrase that it was made with"
    with path.open("rb") as file:
        if open_to_others(file.fileno()):
            raise CryptoError(
                "other users of this machine may read this secret key",
                where=where,
                fix=f"chmod 600 {path}",
            )
        raw = file.read()
    secret = passphrase(path) if b"ENCRYPTED" in raw else None
    try:
        found = serialization.load_pem_private_key(raw, secret)
    except (ValueError, TypeError):
        raise CryptoError("the key cannot be decrypted", where=where, fix=fix) from None
    if not isinstance(found, Ed25519PrivateKey):
        raise CryptoError("is no Ed25519 key", where=where, fix="use a key that trust init made")
    return SigningKey(found.private_bytes_raw())
