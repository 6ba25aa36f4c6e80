"""`edgeveil trust`: the offline root of a fleet, and what it delegates."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil_tools.cli.common import Subparsers, command, print_audit

if TYPE_CHECKING:
    from edgeveil.crypto.keys import SigningKey, VerifyKey
    from edgeveil.trust.metadata import Delegated, TrustedMetadata
    from edgeveil_tools.site.trust_folder import Passphrase, Published, TrustFolder

_ROLES = ("cloud-jobs", "cloud-releases", "proxy-rosters")
_DOMAINS = ("edge", "cloud")
_SITE = "site"


def add(commands: Subparsers) -> None:
    """Add the commands of this file."""
    trust = command(
        commands,
        "trust",
        "keep the offline root: who may speak for cloud and proxy",
        about=(
            "The keys of the root lie on a machine that is not connected. They sign which keys\n"
            "speak for the cloud and the proxy, and until when. Every party pins the root\n"
            "and is handed trust.json; after a change, hand it to cloud and proxy: devices get it\n"
            "from them, while jobs run."
        ),
        examples=(
            "edgeveil trust init root --cloud-jobs site/state/cloud/cloud.pub \\\n"
            "    --cloud-releases site/state/cloud/releases.pub \\\n"
            "    --proxy-rosters site/state/proxy/proxy.pub\n"
            "edgeveil trust show root\n"
            "edgeveil trust rotate root cloud-jobs cloud-next.pub"
        ),
    )
    parts = trust.add_subparsers(title="sub-commands", metavar="SUB-COMMAND", required=True)
    init = command(
        parts,
        "init",
        "make a root and its first delegations",
        examples=(
            "edgeveil trust init root --keys 3 --threshold 2 --cloud-jobs cloud.pub \\\n"
            "    --cloud-releases releases.pub --proxy-rosters proxy.pub"
        ),
    )
    _folder(init)
    for role in _ROLES:
        init.add_argument(f"--{role}", type=Path, required=True, metavar="KEY.pub")
    for domain in _DOMAINS:
        text = f"certificates that vouch for the {domain} broker and its clients"
        init.add_argument(f"--{domain}-authority", type=Path, metavar="PEM", help=text)
    text = "a named cell and its proxy's key; may stand several times"
    init.add_argument("--cell", action="append", default=[], metavar="NAME=KEY.pub", help=text)
    text = "who moves devices between cells: site.pub of edgeveil site"
    init.add_argument("--site", type=Path, metavar="KEY.pub", help=text)
    _root_options(init)
    _days(init)
    init.set_defaults(handler=_init)
    show = command(parts, "show", "say who is trusted, and until when")
    show.add_argument("dir", type=Path, metavar="DIR", help="a root's folder, or a trust.json")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(handler=_show)
    rotate = command(
        parts,
        "rotate",
        "replace a role's key, an authority's certificates, or the root's own keys",
        about=(
            "What the key before has said counts no more: sequence numbers begin anew, so that a\n"
            "leaked key can neither go on nor block what follows. `edgeveil cloud keys` and\n"
            "`edgeveil proxy keys` make the next key where it stays."
        ),
        examples=(
            "edgeveil trust rotate root cloud-jobs cloud-next.pub\n"
            "edgeveil trust rotate root edge-authority new-ca.pem\n"
            "edgeveil trust rotate root root --keys 3 --threshold 2\n"
            "edgeveil trust rotate root proxy-rosters proxy-next.pub --cell north"
        ),
    )
    _folder(rotate)
    what = (*_ROLES, _SITE, *(f"{domain}-authority" for domain in _DOMAINS), "root")
    rotate.add_argument("what", choices=what, metavar="WHAT", help=", ".join(what))
    rotate.add_argument("file", type=Path, nargs="?", metavar="FILE", help="KEY.pub, or PEM")
    _cell(rotate)
    _root_options(rotate)
    _days(rotate)
    rotate.set_defaults(handler=_rotate)
    revoke = command(
        parts,
        "revoke",
        "let nobody speak for a role until it is rotated",
        about="At once, before there is a new key: jobs pause, and nothing is put in use.",
        examples="edgeveil trust revoke root cloud-releases",
    )
    _folder(revoke)
    roles = (*_ROLES, _SITE)
    revoke.add_argument("role", choices=roles, metavar="ROLE", help=", ".join(roles))
    _cell(revoke)
    passphrase_options(revoke)
    _days(revoke)
    revoke.set_defaults(handler=_revoke)
    recover = command(
        parts,
        "recover",
        "vouch for a registry that was rebuilt, or leave out a lost root key",
        about=(
            "A proxy whose registry was rebuilt has a new lineage (`edgeveil proxy lineage`); the\n"
            "cloud believes its rosters once the root names it. A root key that was lost is left\n"
            "out by as many of the others as must sign."
        ),
        examples=(
            "edgeveil trust recover root registry 5f0c…\n"
            "edgeveil trust recover root without 1a2b3c4d5e6f7081"
        ),
    )
    _folder(recover)
    recover.add_argument("what", choices=("registry", "without"), metavar="registry|without")
    recover.add_argument("name", metavar="NAME", help="the lineage, or the lost key's fingerprint")
    _cell(recover)
    passphrase_options(recover)
    _days(recover)
    recover.set_defaults(handler=_recover)
    cell = command(
        parts,
        "cell",
        "name a further cell, and its proxy's key",
        about="A fleet's plan does so by itself: edgeveil site apply.",
        examples="edgeveil trust cell root east east-proxy.pub",
    )
    _folder(cell)
    cell.add_argument("name", metavar="NAME", help="small letters, digits and '-'")
    cell.add_argument("file", type=Path, metavar="KEY.pub")
    passphrase_options(cell)
    _days(cell)
    cell.set_defaults(handler=_add_cell)
    renew = command(parts, "renew", "the same for longer, before it expires")
    _folder(renew)
    passphrase_options(renew)
    _days(renew)
    renew.set_defaults(handler=_renew)
    sign = command(
        parts,
        "sign",
        "add this folder's signatures to what is pending",
        about="For a root of several keys on several machines: copy the folder without keys/ to\n"
        "each, and sign there. What changes is printed first; edgeveil trust show prints it too.",
    )
    _folder(sign)
    passphrase_options(sign)
    sign.set_defaults(handler=_sign)
    log = command(parts, "log", "list what was done with the root, each line checked")
    _folder(log)
    log.add_argument("--json", action="store_true", help="print JSON")
    log.set_defaults(handler=_log)


def _folder(made: argparse.ArgumentParser) -> None:
    made.add_argument("dir", type=Path, metavar="DIR", help="the root's folder")


def _cell(made: argparse.ArgumentParser) -> None:
    text = "of this cell; else of the one without a name"
    made.add_argument("--cell", default="", metavar="NAME", help=text)


def passphrase_options(made: argparse.ArgumentParser) -> None:
    """Where the passphrase of the secret keys comes from."""
    how = made.add_mutually_exclusive_group()
    text = "first line is the passphrase; without it you are asked"
    how.add_argument("--passphrase-file", type=Path, metavar="FILE", help=text)
    text = "the keys are not encrypted; for trials"
    how.add_argument("--no-passphrase", action="store_true", help=text)


def _root_options(made: argparse.ArgumentParser) -> None:
    made.add_argument("--keys", type=int, default=1, metavar="N", help="of the root, default 1")
    text = "so many of them must sign, default 1"
    made.add_argument("--threshold", type=int, default=1, metavar="T", help=text)
    passphrase_options(made)


def _days(made: argparse.ArgumentParser) -> None:
    text = "the delegations expire after so many, default 180"
    made.add_argument("--days", type=_positive, default=180, metavar="DAYS", help=text)
    text = "the root does, default 1825"
    made.add_argument("--root-days", type=_positive, default=1825, metavar="DAYS", help=text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 36500:
        raise argparse.ArgumentTypeError(f"must be in 1..36500, got '{text[:20]}'")
    return int(text)


def asks(args: argparse.Namespace, *, new: bool = False) -> Passphrase:
    """Asks as the options say, once; `new`: twice, as it is a new one."""
    from edgeveil.errors import UsageError

    asked: list[bytes] = []

    def ask(path: Path) -> bytes | None:
        if args.no_passphrase:
            return None
        if asked:
            return asked[0]
        if args.passphrase_file is not None:
            given: bytes = args.passphrase_file.read_bytes().split(b"\n")[0].rstrip(b"\r")
        else:
            given = _typed(f"Passphrase of the secret keys ({path.name}): ")
            if new and _typed("Again: ") != given:
                raise UsageError("the two passphrases differ", fix="try again")
        if not given:
            raise UsageError("the passphrase is empty", fix="pass --no-passphrase for a trial")
        asked.append(given)
        return given

    return ask


def _typed(question: str) -> bytes:
    """What is typed without being shown; the only question that any command asks. Raises
    UsageError where nobody is there to answer."""
    import getpass
    import warnings

    from edgeveil.errors import UsageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", getpass.GetPassWarning)  # without terminal
            return getpass.getpass(question).encode()
    except (EOFError, OSError):
        raise UsageError(
            "a passphrase is asked for, and there is no terminal to give it",
            fix="pass --passphrase-file FILE, or --no-passphrase where the keys have none",
        ) from None


def _open(args: argparse.Namespace) -> TrustFolder:
    from edgeveil_tools.site.trust_folder import TrustFolder

    return TrustFolder(args.dir, asks(args))


def _new_keys(args: argparse.Namespace) -> list[SigningKey]:
    from edgeveil.crypto.keys import SigningKey
    from edgeveil.errors import UsageError

    if not 1 <= args.threshold <= args.keys <= 16:
        raise UsageError(
            f"{args.threshold} of {args.keys} keys cannot sign",
            where="--threshold",
            fix="make 1 to 16 keys, and ask for 1 up to all of them",
        )
    return [SigningKey.generate() for _ in range(args.keys)]


def _init(args: argparse.Namespace) -> int:
    from edgeveil.crypto.keys import VerifyKey
    from edgeveil_tools.site.trust_folder import TrustFolder

    roles = {role: VerifyKey.load(getattr(args, role.replace("-", "_"))) for role in _ROLES}
    files = {domain: getattr(args, f"{domain}_authority") for domain in _DOMAINS}
    made = TrustFolder.init(
        args.dir,
        _new_keys(args),
        args.threshold,
        roles,
        {domain: _pem(file) for domain, file in files.items() if file is not None},
        asks(args, new=True),
        cells=_given_cells(args.cell),
        site=VerifyKey.load(args.site) if args.site else None,
        root_days=args.root_days,
        days=args.days,
    )
    _table(made.trusted())
    print(f"\nHand {made.bundle_file} to every party (trust_file in its site file).")
    print(f"Keep {args.dir / 'keys'} off the network, and a copy of it elsewhere.")
    return 0


def _given_cells(texts: list[str]) -> dict[str, VerifyKey]:
    from edgeveil.crypto.keys import VerifyKey
    from edgeveil.errors import UsageError

    found = {}
    for text in texts:
        name, sign, path = text.partition("=")
        if not sign:
            raise UsageError("is no NAME=KEY.pub", where=text, fix="write north=proxy.pub")
        _check_name(name)
        found[name] = VerifyKey.load(Path(path))
    return found


def _check_name(cell: str) -> None:
    from edgeveil.errors import UsageError
    from edgeveil.trust.metadata import CELL

    if not CELL.fullmatch(cell):
        fix = "use 1 to 32 small letters, digits and '-', not '-' first"
        raise UsageError("is no name for a cell", where=cell[:64], fix=fix)


def _add_cell(args: argparse.Namespace) -> int:
    from edgeveil.crypto.keys import VerifyKey

    _check_name(args.name)
    folder, key = _open(args), VerifyKey.load(args.file)
    return _told(folder, folder.extend({args.name: key}, days=args.days))


def _pem(path: Path) -> str:
    from cryptography import x509

    from edgeveil.errors import UsageError

    try:
        raw = path.read_bytes()
        x509.load_pem_x509_certificates(raw)
        return raw.decode("ascii")
    except ValueError:
        raise UsageError(
            "holds no certificates", where=str(path), fix="name a PEM file of certificates"
        ) from None


def _rotate(args: argparse.Namespace) -> int:
    from edgeveil.crypto.keys import VerifyKey
    from edgeveil.errors import UsageError
    from edgeveil_tools.site.trust_folder import save_root_key

    folder = _open(args)
    if args.what == "root":
        keys = _new_keys(args)
        folder.secret_keys()  # a wrong passphrase is told before anything is written
        for key in keys:  # kept before anybody trusts them
            path = args.dir / "keys" / f"root-{key.public().fingerprint()}.key"
            save_root_key(path, key, asks(args))
        public = [key.public() for key in keys]
        days = {"root_days": args.root_days, "days": args.days}
        return _told(folder, folder.new_root(public, args.threshold, "rotate", **days))
    if args.file is None:
        raise UsageError("names no file", where=args.what, fix="add the new KEY.pub or PEM")
    if args.what in (*_ROLES, _SITE):
        new = VerifyKey.load(args.file)
        return _told(folder, folder.rotate_role(args.what, new, cell=args.cell, days=args.days))
    domain = args.what.removesuffix("-authority") + (f"-{args.cell}" if args.cell else "")
    if args.cell:
        folder.delegated().proxy_of(args.cell)  # refuses what is no cell
    return _told(folder, folder.set_authority(domain, _pem(args.file), days=args.days))


def _revoke(args: argparse.Namespace) -> int:
    folder = _open(args)
    return _told(folder, folder.revoke_role(args.role, cell=args.cell, days=args.days))


def _recover(args: argparse.Namespace) -> int:
    import re

    from edgeveil.errors import UsageError
    from edgeveil.trust.metadata import root_keys

    folder = _open(args)
    if args.what == "registry":
        if not re.fullmatch(r"[0-9a-f]{32}", args.name):
            fix = "copy what `edgeveil proxy lineage` prints"
            raise UsageError("is no lineage of 32 hexadecimal digits", where=args.name, fix=fix)
        return _told(folder, folder.set_lineage(args.name, cell=args.cell, days=args.days))
    keys, threshold = root_keys(folder.trusted().roots[-1])
    left = [key for key in keys if key.fingerprint() != args.name]
    if len(left) == len(keys):
        fix = "see edgeveil trust show"
        raise UsageError("is no key of the root", where=args.name, fix=fix)
    published = folder.new_root(
        left, min(threshold, len(left)), "recover", root_days=args.root_days, days=args.days
    )
    return _told(folder, published)


def _renew(args: argparse.Namespace) -> int:
    folder = _open(args)
    return _told(folder, folder.renew(root_days=args.root_days, days=args.days))


def _sign(args: argparse.Namespace) -> int:
    folder = _open(args)
    _show_pending(folder)  # nobody signs what they have not seen
    return _told(folder, folder.sign())


def _told(folder: TrustFolder, published: Published) -> int:
    if published.in_effect:
        print(f"In effect. Hand {folder.bundle_file} to cloud and proxy; devices get it from them.")
        return 0
    for name, count in published.missing.items():
        print(f"{name}: {count} more signature{'s' * (count > 1)} needed")
    print(f"Copy {folder.folder} to who holds the other keys: edgeveil trust sign DIR")
    return 0


def _show(args: argparse.Namespace) -> int:
    import json

    from edgeveil.trust.bundle import TrustBundle
    from edgeveil_tools.site.trust_folder import TrustFolder

    folder = TrustFolder(args.dir, asks(args)) if args.dir.is_dir() else None
    found = TrustBundle.load(folder.bundle_file if folder else args.dir).verified()
    if args.json:
        print(json.dumps(_plain(found), indent=2))
        return 0
    _table(found)
    if folder is not None:
        _show_pending(folder)
    return 0


def _show_pending(folder: TrustFolder) -> None:
    """What awaits signatures, line by line beside what is in effect."""
    import difflib

    root, said = folder.pending()
    held = folder.trusted() if folder.bundle_file.exists() else None
    now = [*_root_lines(held.roots[-1]), *_delegated_lines(held.delegated)] if held else []
    wanted = [
        *(_root_lines(root) if root else now[:1]),
        *(_delegated_lines(said) if said else now[1:]),
    ]
    changes = [line for line in difflib.ndiff(now, wanted) if line[0] in "+-"]
    if changes:
        print("awaiting signatures:", *changes, sep="\n  ")


def _plain(found: TrustedMetadata) -> dict[str, Any]:
    from edgeveil.trust.metadata import now_utc, root_keys

    keys, threshold = root_keys(found.roots[-1])
    said = found.delegated
    plain: dict[str, Any] = {
        "root": {
            "version": found.root_version,
            "expires": found.root_expires.isoformat(),
            "keys": [key.fingerprint() for key in keys],
            "threshold": threshold,
        },
        "problem": found.problem(now_utc()),
    }
    if said is not None:
        roles = {
            name: {"key": one.key.fingerprint(), "epoch": one.epoch}
            for name, one in said.roles.items()
        }
        plain["delegations"] = {
            "version": said.version,
            "expires": said.expires.isoformat(),
            "roles": roles,
            "lineage": said.lineage,
            "authorities": sorted(said.authorities),
            "cells": {
                name: {
                    "key": one.rosters.key.fingerprint(),
                    "epoch": one.rosters.epoch,
                    "lineage": one.lineage,
                }
                for name, one in said.cells.items()
            },
            "site": said.site and {"key": said.site.key.fingerprint(), "epoch": said.site.epoch},
        }
    return plain


def _table(found: TrustedMetadata) -> None:
    print(*_root_lines(found.roots[-1]), *_delegated_lines(found.delegated), sep="\n")


def _root_lines(raw: bytes) -> list[str]:
    from edgeveil.trust.metadata import read_document, root_keys

    said, (keys, threshold) = read_document(raw).signed, root_keys(raw)
    named = ", ".join(key.fingerprint() for key in keys)
    return [f"root {said.version}, until {said.expires:%Y-%m-%d}: {threshold} of {named}"]


def _delegated_lines(said: Delegated | None) -> list[str]:
    import hashlib

    if said is None:
        return []
    roles = [
        f"  {name:<15} {one.key.fingerprint()}  epoch {one.epoch}"
        for name, one in said.roles.items()
    ]
    authorities = [
        f"  authority of the {domain} broker: {hashlib.sha256(pem.encode()).hexdigest()[:16]}"
        for domain, pem in sorted(said.authorities.items())
    ]
    cells = [
        f"  cell {name:<10} {one.rosters.key.fingerprint()}  epoch {one.rosters.epoch}"
        f"  registry {one.lineage or 'the first one that is seen'}"
        for name, one in said.cells.items()
    ]
    site = said.site
    movers = [f"  {_SITE:<15} {site.key.fingerprint()}  epoch {site.epoch}"] if site else []
    return [
        f"delegations {said.version}, until {said.expires:%Y-%m-%d}",
        *roles,
        *movers,
        f"  registry        {said.lineage or 'the first one that is seen'}",
        *cells,
        *authorities,
    ]


def _log(args: argparse.Namespace) -> int:
    from edgeveil.audit_log import AUDIT_FILE, read_audit
    from edgeveil.trust.metadata import root_keys
    from edgeveil_tools.site.trust_folder import TrustFolder

    trusted = TrustFolder(args.dir, lambda _path: None).trusted()
    keys = frozenset(key for root in trusted.roots for key in root_keys(root)[0])
    print_audit(read_audit(args.dir / AUDIT_FILE, keys), as_json=args.json)
    return 0
