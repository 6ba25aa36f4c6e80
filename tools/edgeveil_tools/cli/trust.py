"""`edgeveil trust`: the offline root of a fleet, and its delegations."""

from __future__ import annotations

import argparse
import difflib
import getpass
import hashlib
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import UsageError
from edgeveil.trust.bundle import TrustBundle
from edgeveil.trust.metadata import (
    ROLES,
    Delegated,
    RoleKey,
    TrustedMetadata,
    now_utc,
    read_document,
    root_keys,
)
from edgeveil_tools.cli.common import answer
from edgeveil_tools.site.trust_folder import Missing, Passphrase, TrustFolder, save_root_key


def passphrase_prompt(args: argparse.Namespace, *, new: bool = False) -> Passphrase:
    """Return a passphrase prompt by the options; it asks once, twice for a new one."""
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


def _typed(prompt: str) -> bytes:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", getpass.GetPassWarning)  # without terminal
            return getpass.getpass(prompt).encode()
    except (EOFError, OSError):
        what = "a passphrase is required, and there is no terminal"
        fix = "pass --passphrase-file FILE, or --no-passphrase for unencrypted keys"
        raise UsageError(what, fix=fix) from None


def _open(args: argparse.Namespace) -> TrustFolder:
    new = args.command == "trust init"
    return TrustFolder(
        args.dir, passphrase_prompt(args, new=new), root_days=args.root_days, days=args.days
    )


def _new_keys(args: argparse.Namespace) -> list[SigningKey]:
    if not 1 <= args.threshold <= args.keys <= 16:
        what = f"{args.threshold} of {args.keys} keys cannot sign"
        fix = "set --keys to 1 to 16, and --threshold to 1 up to --keys"
        raise UsageError(what, where="--threshold", fix=fix)
    return [SigningKey.generate() for _ in range(args.keys)]


def init(args: argparse.Namespace) -> int:
    folder = _open(args)
    roles = {role: VerifyKey.load(getattr(args, role.replace("-", "_"))) for role in ROLES}
    site = VerifyKey.load(args.site) if args.site else None
    folder.init(_new_keys(args), args.threshold, roles, site=site)
    lines = [
        f"\nCopy {folder.bundle_file} to every party (trust_file in its site file).",
        f"Keep {args.dir / 'keys'} offline, with a copy in another place.",
    ]
    return _shown(args, folder.trusted(), lines)


def rotate(args: argparse.Namespace) -> int:
    folder, value = _open(args), args.value
    if args.what == "root":
        return _rotate_root(args, folder)
    if value is None:
        raise UsageError("needs a value", where=args.what, fix="add the KEY.pub or lineage")
    if args.what != "registry":
        key = None if value == "none" else VerifyKey.load(Path(value))
        return _answer_change(args, folder, folder.rotate_role(args.what, key, cell=args.cell))
    if not re.fullmatch(r"[0-9a-f]{32}", value):
        fix = "copy it from `edgeveil proxy devices`"
        raise UsageError("is not a lineage of 32 hexadecimal digits", where=value, fix=fix)
    return _answer_change(args, folder, folder.set_lineage(value, cell=args.cell))


def _rotate_root(args: argparse.Namespace, folder: TrustFolder) -> int:
    if args.without:
        keys, threshold = root_keys(folder.trusted().roots[-1])
        left = [key for key in keys if key.fingerprint() != args.without]
        if len(left) == len(keys):
            fix = "see edgeveil trust show"
            raise UsageError("is not a key of the root", where=args.without, fix=fix)
        done = folder.new_root(left, min(threshold, len(left)), "recover")
        return _answer_change(args, folder, done)
    made = _new_keys(args)
    folder.secret_keys()  # refuse a wrong passphrase before any write
    for key in made:  # saved before they are trusted
        path = args.dir / "keys" / f"root-{key.public().fingerprint()}.key"
        save_root_key(path, key, passphrase_prompt(args))
    public = [key.public() for key in made]
    return _answer_change(args, folder, folder.new_root(public, args.threshold, "rotate"))


def sign(args: argparse.Namespace) -> int:
    folder = _open(args)
    if args.renew:
        return _answer_change(args, folder, folder.renew())
    for line in _pending_lines(folder):  # show changes before signing
        print(line, file=sys.stderr if args.json else sys.stdout)
    return _answer_change(args, folder, folder.sign())


def _answer_change(args: argparse.Namespace, folder: TrustFolder, missing: Missing) -> int:
    lines = [f"{n}: {more} more signature{'s' * (more > 1)} needed" for n, more in missing.items()]
    if missing:
        lines.append(f"Copy {folder.folder} to holders of the other keys: edgeveil trust sign DIR")
    else:
        file = folder.bundle_file
        lines.append(f"In effect. Copy {file} to cloud and proxy, which send it to devices.")
    return answer(args, lines, {"in_effect": not missing, "missing": missing})


def show(args: argparse.Namespace) -> int:
    folder = TrustFolder(args.dir, lambda _path: None) if args.dir.is_dir() else None
    found = TrustBundle.load(folder.bundle_file if folder else args.dir).verified()
    return _shown(args, found, _pending_lines(folder) if folder else ())


def _shown(args: argparse.Namespace, found: TrustedMetadata, more: Iterable[str]) -> int:
    plain = _plain(found.roots[-1], found.delegated)
    lines = [*_lines(plain), *more]
    if delegations := plain.get("delegations"):
        delegations["authorities"] = sorted(delegations["authorities"])
    return answer(args, lines, {**plain, "problem": found.problem(now_utc())})


def _pending_lines(folder: TrustFolder) -> list[str]:
    root, delegated = folder.pending()
    now = _plain(None, None)
    if folder.bundle_file.exists():
        trusted = folder.trusted()
        now = _plain(trusted.roots[-1], trusted.delegated)
    compared = difflib.ndiff(_lines(now), _lines(now | _plain(root, delegated)))
    changes = [line for line in compared if line[0] in "+-"]
    return ["awaiting signatures:", *(f"  {line}" for line in changes)] if changes else []


def _lines(plain: dict[str, Any]) -> list[str]:
    text: str = yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=200)
    return text.splitlines()


def _plain(root: bytes | None, delegated: Delegated | None) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if root is not None:
        document, (keys, threshold) = read_document(root).signed, root_keys(root)
        plain["root"] = {
            "version": document.version,
            "expires": document.expires.isoformat(),
            "keys": [key.fingerprint() for key in keys],
            "threshold": threshold,
        }
    if delegated is not None:
        cells = {n: {**_key(c.rosters), "lineage": c.lineage} for n, c in delegated.cells.items()}
        pems = sorted(delegated.authorities.items())
        plain["delegations"] = {
            "version": delegated.version,
            "expires": delegated.expires.isoformat(),
            "roles": {name: _key(one) for name, one in delegated.roles.items()},
            "lineage": delegated.lineage,
            "authorities": {n: hashlib.sha256(pem.encode()).hexdigest()[:16] for n, pem in pems},
            "cells": cells,
            "site": delegated.site and _key(delegated.site),
        }
    return plain


def _key(role: RoleKey) -> dict[str, Any]:
    return {"key": role.key.fingerprint(), "epoch": role.epoch}
