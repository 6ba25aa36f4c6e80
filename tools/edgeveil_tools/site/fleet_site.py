"""A fleet's site folder: makes bundles from the fleet file, and applies its changes.

DIR/fleet.yaml        the fleet file
DIR/trust/            the offline root (see trust_folder)
DIR/authorities/      the certificate authorities of both broker domains, encrypted
DIR/site.key          signs bundles and the audit log, encrypted; site.pub: its public half
DIR/record.json       public facts of every party as applied, no secret
DIR/audit.jsonl       the log of changes, chained and signed
DIR/bundles/NAME/     the files for each party; a new party's keys are nowhere else
"""

from __future__ import annotations

import datetime
import difflib
import fcntl
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from edgeveil.audit_log import AUDIT_FILE, AuditLog, read_audit
from edgeveil.config.file import drop_retired
from edgeveil.crypto.authorities import AUTHORITY_DAYS, Authority, certificate_pem, key_pem, new_key
from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey, VerifyKey
from edgeveil.enrolment import Enrolment
from edgeveil.errors import UsageError
from edgeveil.transport.process import make_signing_key
from edgeveil.trust.moves import Move
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_tools.site.broker_rules import hash_password, of_cell, side_of
from edgeveil_tools.site.brokers import give
from edgeveil_tools.site.bundles import (
    INVENTORY,
    SITE_FILE,
    STATE,
    TRUST_FILE,
    Bundle,
    Inventory,
    digest,
    settle,
    write_bundle,
)
from edgeveil_tools.site.fleet_files import (
    CLAIMS_CA,
    POLICY_FILE,
    TO_BE_MADE,
    Facts,
    FleetRecord,
    Party,
    PartyChange,
    believes,
    files_of,
    given_policy,
    hosted,
    password_domains,
    tls_keys,
)
from edgeveil_tools.site.fleet_spec import (
    FLEET_FILE,
    IMAGE,
    FleetSpec,
    ListedDevice,
    devices_of,
    load_spec,
)
from edgeveil_tools.site.trust_folder import Passphrase, TrustFolder, load_root_key, save_root_key

RECORD, SITE_KEY, PUBLIC_KEY = "record.json", "site.key", "site.pub"
_ROLES = {"cloud": ("cloud", "releases"), "proxy": ("proxy",)}
_SECRET_WORD_BYTES = 24
_DEVICE_ID = re.compile(r"[0-9a-f]{16}")


class FleetSite:
    """A fleet's folder; methods raise UsageError, ConfigError, CryptoError or OSError."""

    _spec: FleetSpec  # as last read; devices by name, with their cells
    _devices: dict[str, ListedDevice]

    def __init__(self, folder: Path, passphrase: Passphrase) -> None:
        self.folder, self._passphrase = folder, passphrase
        self.bundles = folder / "bundles"
        self._trust_folder = TrustFolder(folder / "trust", passphrase)
        self._record = FleetRecord.load(folder / RECORD)
        self._authorities: dict[str, Authority] = {}
        self._key: SigningKey | None = None
        self._preview = False  # placeholder keys and certificates, no writes
        self.awaits_root = False  # additions lack signatures of root keys

    @property
    def parties(self) -> tuple[Party, ...]:
        return tuple(self._record.parties.values())

    @property
    def fingerprint(self) -> str:
        return self._site_key().public().fingerprint()

    @contextmanager
    def alone(self) -> Iterator[None]:
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._record = FleetRecord.load(self.folder / RECORD)
            yield
        except BlockingIOError:
            what = "another command works in this folder"
            raise UsageError(what, where=str(self.folder), fix="wait for it") from None
        finally:
            os.close(handle)

    # --- changes ---

    def changes(self) -> list[PartyChange]:
        """Return the changes that `apply` would make, computed with placeholder keys."""
        self._read_spec()
        record, self._record, self._preview = self._record, deepcopy(self._record), True
        try:
            return self._changed()
        finally:
            self._record, self._preview = record, False

    def apply(self) -> list[PartyChange]:
        """Apply the fleet file and return the changes; unchanged bundles stay as they are."""
        with self.alone():
            self.changes()  # refuses a fleet file that cannot work before anything is written
            done = self._changed()
            os.sync()
            changed = [one for one in done if one.what != "unplanned"]
            if changed:
                self._log("apply", {"changes": len(changed), "sequence": self._record.sequence})
            self._record.save(self.folder / RECORD)
            return done

    def _changed(self) -> list[PartyChange]:
        spec = self._spec
        names = [*spec.servers, *self._devices]
        new = [name for name in names if name not in self._record.parties]
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=spec.renew_days)
        active = [party for party in self.parties if party.active]
        done = [PartyChange(name, "new") for name in new]
        done += [PartyChange(one.name, "unplanned") for one in active if one.name not in {*names}]
        self._prepare(names)
        for name in new:
            self._make(name)
        if not self._preview:
            self._trust()
        done += self._move()
        self._update_domains(names)
        for party in active:
            if (ends := party.ends()) is not None and ends <= soon:
                if not self._preview:
                    self._certify(party.name)
                done.append(PartyChange(party.name, "renewed"))
        return done + self._write(names, set(new))

    def revoke(self, name: str) -> list[PartyChange]:
        """Revoke a device permanently and apply; its record stays."""
        self._read_spec()
        with self.alone():
            by_id = (one for one in self.parties if one.device_id == name)
            party = self._record.parties.get(name) or next(by_id, None)
            if party is None and self._spec.devices.claims and _DEVICE_ID.fullmatch(name):
                party = Party(name=name, kind="edge", device_id=name)  # enrolled by a claim
            if party is None or party.kind != "edge":
                fix = "see edgeveil site status; name a device enrolled by a claim by its id"
                what = f"no device '{name[:64]}'"
                raise UsageError(what, where=str(self.folder), fix=fix)
            if not party.active:
                what = f"{party.name} was revoked on {party.revoked}"
                fix = "edgeveil site apply updates the bundles"
                raise UsageError(what, fix=fix)
            now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"
            self._record.parties[party.name] = replace(party, revoked=now)
            every = (one for one in self._record.authorities if side_of(one) != "cloud")
            self._list_revoked(*(party.issues or every))
            self._log("revoke", {"name": party.name, "device": party.device_id})
            self._record.save(self.folder / RECORD)
        return [PartyChange(party.name, "revoked"), *self.apply()]

    def rotate_authority(self, domain: str, *, finish: bool = False) -> list[PartyChange]:
        """Add a new authority to a domain; the former one stays valid until `finish`.

        Clients get new certificates; the broker keeps its own until all know the new authority."""
        self._read_spec()
        if domain not in self._record.authorities:
            fix = f"name one of {', '.join(self._record.authorities)}; or add it, and apply"
            where = str(self.folder / FLEET_FILE)
            raise UsageError(f"the fleet has no {domain} authority yet", where=where, fix=fix)
        if finish != (len(self._record.authorities[domain]) > 1):
            how = "not being rotated" if finish else "being rotated already"
            fix = f"edgeveil site rotate {self.folder} {domain}-authority"
            fix += "" if finish else " --finish"
            raise UsageError(f"the {domain} authority is {how}", fix=fix)
        with self.alone():
            if finish:
                del self._record.authorities[domain][1:]
            else:
                self._new_authority(domain)
            for party in self.parties:
                issues = party.active and domain in party.certificates
                if issues and (party.kind == "broker") == finish:
                    self._certify(party.name, only=domain)
            self._list_revoked(domain)
            self._log("rotate", {"authority": domain, **({"finished": True} if finish else {})})
            self._record.save(self.folder / RECORD)
        return self.apply()

    # --- inside: what the fleet file asks for ---

    def _read_spec(self) -> None:
        spec, file = load_spec(self.folder), self.folder / FLEET_FILE
        if self._record.fleet not in ("", spec.name):
            fix = f"name it {self._record.fleet} again, or begin a new site"
            raise UsageError("the fleet has another name than before", where=str(file), fix=fix)
        record, trust = self.folder / RECORD, self._trust_folder.bundle_file
        if not record.exists() and (self.folder / AUDIT_FILE).exists():
            fix = "restore it from a backup; without it all parties would be created again"
            raise UsageError("is missing", where=str(record), fix=fix)
        if not trust.exists() and any(TRUST_FILE in party.files for party in self.parties):
            what = "is missing, and installed parties have pinned it"
            fix = "copy the root's trust.json there, without its keys"
            raise UsageError(what, where=str(trust), fix=fix)
        devices, held = devices_of(spec, str(file)), {one.name: one.cell for one in self.parties}
        cells = {d.name: held.get(d.name) if d.cell is None else d.cell for d in devices}
        for name, cell in cells.items():
            if cell is not None and cell not in spec.cell_names:
                shown = repr(cell) if cell else "without a name"
                what = f"{name} is in the cell {shown}, which the fleet file no longer has"
                fix = f"keep that cell, or give {name} another in devices.list or the table"
                raise UsageError(what, where=str(file), fix=fix)
        counts = Counter(cells.values())
        for name, cell in cells.items():
            if cell is None:  # a new device joins the smallest cell
                cells[name] = min(spec.cell_names, key=lambda one: counts[one])
                counts[cells[name]] += 1
        self._spec = spec
        self._devices = {d.name: d.model_copy(update={"cell": cells[d.name]}) for d in devices}

    def _still(self, names: Iterable[str]) -> list[Party]:
        held = self._record.parties
        return [held[name] for name in names if name in held and held[name].active]

    def _change(self, party: Party, **changed: Any) -> Party:
        self._record.parties[party.name] = new = replace(party, **changed)
        return new

    # --- inside: making ---

    def _prepare(self, names: list[str]) -> None:
        record, spec = self._record, self._spec
        record.fleet = spec.name
        claims = spec.cell_names if spec.devices.claims is not None else ()
        for domain in (*spec.domains, *(of_cell("claims", cell) for cell in claims)):
            if domain not in record.authorities:
                self._new_authority(domain)
                self._list_revoked(domain)
        if not self._preview:
            self._site_key()
            record.save(self.folder / RECORD)  # before the root names these authorities
            for name in names:
                settle(self.bundles / name)

    def _make(self, name: str) -> None:
        """Make a new party's keys, stored in its bundle alone."""
        folder, spec, device = self.bundles / name, self._spec, self._devices.get(name)
        role, _, rest = name.partition("-")
        kind = "edge" if device is not None or role == IMAGE else role
        cell = device.cell if device is not None else rest if role in (IMAGE, "proxy") else ""
        party = Party(name=name, kind=kind, cell=cell or "")
        if self._preview:
            words = dict.fromkeys(password_domains(spec, party), "")
            pems = dict.fromkeys(tls_keys(spec, party), TO_BE_MADE)
            party = self._change(party, words=words, certificates=pems)
            if device is not None:
                line = Enrolment.make(SigningKey.generate(), OpeningKey.generate()).to_line()
                self._change(party, device_id=name, enrolment=line)
            return
        if device is not None:
            identity = DeviceIdentity.load_or_create(folder / STATE)
            line = identity.enrolment().to_line()
            party = replace(party, device_id=identity.device_id, enrolment=line)
        if kind == "edge":
            give(folder / POLICY_FILE, given_policy(spec).decode())
        for role in _ROLES.get(kind, ()):
            make_signing_key(folder / STATE, role)
        hashes = {}
        for domain, file in password_domains(spec, party).items():
            new = secrets.token_urlsafe(_SECRET_WORD_BYTES)
            password = give(folder / file, new + "\n").decode().strip()
            hashes[domain] = hash_password(password)
        self._change(party, words=hashes)
        for domain, file in tls_keys(spec, party).items():
            key = load_pem_private_key(give(folder / file, key_pem(new_key()).decode()), None)
            self._issue(name, domain, key.public_key())

    def _certify(self, name: str, *, only: str | None = None) -> None:
        for domain, pem in dict(self._record.parties[name].certificates).items():
            if only in (None, domain):
                self._issue(name, domain, _public_key(pem))

    def _issue(self, name: str, domain: str, key: object) -> None:
        party = self._record.parties[name]
        if self._preview:
            self._change(party, certificates={**party.certificates, domain: TO_BE_MADE})
            return
        if not isinstance(key, ec.EllipticCurvePublicKey):
            fix = "remove the bundle, and apply again"
            raise UsageError("is no key of this site", where=name, fix=fix)
        issue, days = party.issues.get(domain, 0), self._spec.certificate_days
        authority, user = self._authority(domain), party.device_id or name
        if party.kind == "broker":
            shown = authority.server(name, key, self._spec.broker(domain).names, days=days)
        elif side_of(domain) == "claims":  # long-lived: it only permits enrolment
            shown = authority.client("claim", key, issue=issue, days=AUTHORITY_DAYS)
        else:
            shown = authority.client(user, key, issue=issue, days=days)
        pems = {**party.certificates, domain: certificate_pem(shown).decode()}
        self._change(party, certificates=pems, issues={**party.issues, domain: issue + 1})

    def _list_revoked(self, *domains: str) -> None:
        """List certificates of devices that were revoked or whose cell left the domain."""
        for domain in domains:
            names = [
                one.device_id
                for one in self.parties
                if one.device_id and side_of(domain) != "cloud"
                if not one.active or (domain in one.issues and domain not in one.certificates)
            ]
            lists = [TO_BE_MADE.encode()]
            if not self._preview:
                count = len(self._record.authorities[domain])
                lists = [self._authority(domain, at).revocations(names) for at in range(count)]
            self._record.revocations[domain] = b"".join(lists).decode()

    def _trust(self) -> None:
        """Make the root the first time; later delegate to added cells and domains."""
        spec, root, folder = self._spec, self._spec.root, self._trust_folder
        if folder.bundle_file.exists():
            self._extend_trust()
            return
        scratch = self.folder / ".new-trust"
        shutil.rmtree(scratch, ignore_errors=True)  # of an interrupted apply
        state = self.bundles / "cloud" / STATE
        proxies = {cell: self._proxy_key(cell) for cell in spec.cell_names}
        # Without an unnamed cell its role gets a key that nobody holds.
        unnamed = proxies.pop("", None) or SigningKey.generate().public()
        roles = {"cloud-jobs": "cloud", "cloud-releases": "releases"}
        keys = {role: VerifyKey.load(state / f"{name}.pub") for role, name in roles.items()}
        TrustFolder(scratch, self._passphrase).init(
            [SigningKey.generate() for _ in range(root.keys)],
            root.threshold,
            {**keys, "proxy-rosters": unnamed},
            authorities={domain: self._record.authorities[domain][0] for domain in spec.domains},
            cells=proxies,
            site=self._site_key().public(),
        )
        scratch.rename(folder.folder)

    def _extend_trust(self) -> None:
        folder, held, spec = self._trust_folder, self._trust_folder.delegated(), self._spec
        new = [cell for cell in spec.cells if cell and cell not in held.cells]
        domains = [domain for domain in spec.domains if domain not in held.authorities]
        if not new and not domains:
            return
        if any((folder.folder / "pending").glob("*.json")):
            self.awaits_root = True
            return
        cells = {cell: self._proxy_key(cell) for cell in new}
        authorities = {domain: self._record.authorities[domain][0] for domain in domains}
        self.awaits_root = bool(folder.extend(cells, authorities, self._site_key().public()))

    def _proxy_key(self, cell: str) -> VerifyKey:
        return VerifyKey.load(self.bundles / of_cell("proxy", cell) / STATE / "proxy.pub")

    # --- inside: moving ---

    def _move(self) -> list[PartyChange]:
        done = []
        for party in self._still(self._devices):
            cell = self._devices[party.name].cell or ""
            if cell == party.cell:
                continue
            done.append(PartyChange(party.name, "moved", f"- cell: {party.cell}\n+ cell: {cell}"))
            left = tuple(dict.fromkeys((*party.left, party.cell)))
            move = {"cell": cell, "number": (party.move["number"] if party.move else 0) + 1}
            if self._preview:
                move = Move(_sealing(party), cell, 0, 0, b"").to_plain()
            self._change(party, cell=cell, left=left, move=move)
        if not self._preview:
            self._sign_moves(bool(done))
        return done

    def _sign_moves(self, required: bool) -> None:
        root, own = self._trust_folder, self._site_key()
        site = root.delegated().site
        if site is None or site.key != own.public():
            if required:
                what = "the root does not name this site's key as the one that moves devices"
                fix = f"edgeveil trust rotate {root.folder} site {self.folder / PUBLIC_KEY}"
                raise UsageError(what, where=str(root.folder), fix=fix)
            return
        for party in self.parties:
            if party.move and party.move.get("epoch") != site.epoch:
                cell, number = party.move["cell"], party.move["number"]
                note = Move.make(own, site.epoch, _sealing(party), cell, number)
                self._change(party, move=note.to_plain())

    def _update_domains(self, names: list[str]) -> None:
        """Give parties certificates and accounts of exactly their current domains."""
        left: set[str] = set()
        for party in self._still(names):
            if party.kind == "broker":
                continue
            domains = tls_keys(self._spec, party)
            for domain in domains:
                if domain not in party.certificates:
                    pem = _of_side(party.certificates, domain)
                    self._issue(party.name, domain, _public_key(pem))
            hashes = {}
            for domain, file in password_domains(self._spec, party).items():
                hashes[domain] = party.words.get(domain) or _of_side(party.words, domain)
                if not self._spec.broker(domain).own:
                    self._list_account(party, domain, self.bundles / party.name / file)
            issued = self._record.parties[party.name]
            kept = {domain: issued.certificates[domain] for domain in domains}
            left |= set(issued.certificates) - set(kept)
            self._change(issued, certificates=kept, words=hashes)
        self._list_revoked(*left)

    def _list_account(self, party: Party, domain: str, password: Path) -> None:
        """List an account to register at an external broker that the party does not use yet."""
        accounts, user = self.folder / f"accounts-{domain}.csv", party.device_id or party.name
        listed, preview = accounts.read_text() if accounts.exists() else "", self._preview
        used = str(self._spec.broker(domain).url) in party.text or (preview and not party.text)
        if used or f"\n{user}," in f"\n{listed}":
            return
        if domain not in party.words or not password.exists():
            what = f"needs an account at the broker of {domain}; its password is not in this folder"
            fix = "set certificates, or revoke it and add a device of another name"
            raise UsageError(what, where=party.name, fix=fix)
        if not preview:
            accounts.touch(0o600)
            with accounts.open("a") as file:
                file.write(f"{user},{password.read_text().strip()}\n")

    # --- inside: bundles ---

    def _write(self, names: list[str], new: set[str]) -> list[PartyChange]:
        record, spec, found = self._record, self._spec, []
        path = self.folder / AUDIT_FILE  # the record may come from a backup
        lines = read_audit(path) if path.exists() else []
        number = max([record.sequence, *(one["what"].get("sequence", 0) for one in lines)]) + 1
        trust = self._trust_folder.bundle_file
        facts = Facts(record, trust.read_bytes() if trust.exists() else b"")
        for party in self._still(names):
            if self._preview and party.name in new:
                continue
            files = files_of(spec, party, self._devices.get(party.name), facts)
            if self._digests(party, files, facts) == dict(party.files):
                continue
            if party.name not in new:
                found.append(PartyChange(party.name, "changed", _difference(party, files)))
            if not self._preview:
                self._write_bundle(party, files, facts, number)
                record.sequence = number
        return found

    def _digests(self, party: Party, files: Mapping[str, bytes], facts: Facts) -> dict[str, str]:
        """Return digests of a party's files, ignoring changes without effect."""
        found = {path: digest(raw) for path, raw in files.items()}
        if TRUST_FILE in party.files and party.believes == believes(self._spec, party, facts):
            found[TRUST_FILE] = party.files[TRUST_FILE]
        if SITE_FILE in party.files and _same_settings(party.text, files[SITE_FILE]):
            found[SITE_FILE] = party.files[SITE_FILE]
        return found

    def _write_bundle(
        self, party: Party, files: Mapping[str, bytes], facts: Facts, number: int
    ) -> None:
        spec, device, folder = self._spec, self._devices.get(party.name), self.bundles / party.name
        digests, on = {path: digest(raw) for path, raw in files.items()}, hosted(spec, party)
        given = _given(folder)
        claims_key = facts.claims_key(party.cell) if CLAIMS_CA in digests else ""
        if claims_key and claims_key not in party.text:  # which the proxy signs with
            signer = self._authority(of_cell("claims", party.cell))
            given[claims_key] = digest(give(folder / claims_key, key_pem(signer.key).decode()))
        inventory = Inventory(
            fleet=spec.name,
            party=party.kind,
            name=party.name,
            host_kind=on.host_kind,
            sequence=number,
            files=digests,
            given=given,
            host=device.host if device else getattr(on, "host", None),
            device_id=party.device_id,
        )
        write_bundle(folder, inventory, files, self._site_key())
        text, believed = files[SITE_FILE].decode(), believes(spec, party, facts)
        self._change(party, files=digests, sequence=number, text=text, believes=believed)

    # --- inside: keys ---

    def _site_key(self) -> SigningKey:
        path = self.folder / SITE_KEY
        if self._key is None and path.exists():
            self._key = load_root_key(path, self._passphrase)
        elif self._key is None:
            self._key = SigningKey.generate()
            save_root_key(path, self._key, self._passphrase)
            self._key.public().save(self.folder / PUBLIC_KEY, overwrite=True)
        return self._key

    def _authority(self, domain: str, at: int = 0) -> Authority:
        number = digest(self._record.authorities[domain][at].encode())[:16]
        if number not in self._authorities:
            crt, key = (self.folder / "authorities" / f"{number}.{one}" for one in ("crt", "key"))
            self._authorities[number] = Authority.load(crt, key, self._passphrase(key))
        return self._authorities[number]

    def _new_authority(self, domain: str) -> None:
        if self._preview:
            self._record.authorities[domain] = [TO_BE_MADE]
            return
        made = Authority.make(f"EdgeVeil {self._record.fleet} {domain} {secrets.token_hex(4)}")
        pem = certificate_pem(made.certificate).decode()
        number, folder = digest(pem.encode())[:16], self.folder / "authorities"
        folder.mkdir(mode=0o700, exist_ok=True)
        key = folder / f"{number}.key"
        made.save(folder / f"{number}.crt", key, self._passphrase(key))
        self._authorities[number] = made
        self._record.authorities[domain] = [pem, *self._record.authorities.get(domain, [])]

    def _log(self, action: str, what: Mapping[str, Any]) -> None:
        AuditLog(self.folder / AUDIT_FILE, self._site_key()).append(action, what)


def _public_key(pem: str) -> object:
    return x509.load_pem_x509_certificate(pem.encode()).public_key()


def _sealing(party: Party) -> SealingKey:
    return Enrolment.from_json((party.enrolment or "").encode()).sealing


def _given(folder: Path) -> dict[str, str]:
    if (folder / INVENTORY).exists():  # verified against later changes
        return dict(Bundle.open(folder).inventory.given)
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): digest(path.read_bytes()) for path in paths}


def _of_side(found: Mapping[str, str], domain: str) -> str:
    """Return a party's certificate or password hash for another broker of the same side."""
    return next(one for known, one in found.items() if side_of(known) == side_of(domain))


def _same_settings(text: str, raw: bytes) -> bool:
    """Return whether site files differ only in constants of earlier versions."""
    before, after = yaml.safe_load(text) or {}, yaml.safe_load(raw)
    for kind, block in before.items():
        drop_retired(kind, block)
    return bool(before == after)


def _difference(party: Party, files: Mapping[str, bytes]) -> str:
    before, after = party.text.splitlines(), files[SITE_FILE].decode().splitlines()
    lines = [
        line
        for line in difflib.unified_diff(before, after, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    for path in sorted({*files, *party.files} - {SITE_FILE}):
        if path not in files:
            lines.append(f"- {path}")
        elif path not in party.files:
            lines.append(f"+ {path}")
        elif digest(files[path]) != party.files[path]:
            lines.append(f"~ {path}")
    return "\n".join(lines)


def signers(folder: Path, fingerprint: str | None) -> frozenset[VerifyKey]:
    """Return keys that sign the audit log; raises UsageError for another `fingerprint`."""
    path = folder / PUBLIC_KEY
    if not path.exists():
        fix = "edgeveil site apply DIR"
        raise UsageError("nothing was applied yet", where=str(folder), fix=fix)
    key = VerifyKey.load(path)
    if fingerprint not in (None, key.fingerprint()):
        fix = "ask the site's administrator"
        raise UsageError(f"the site's key is {key.fingerprint()}", where=str(path), fix=fix)
    return frozenset({key})
