"""What an installed bundle needs: certificates and trust that end soon, files that were changed."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509

from edgeveil.errors import EdgeVeilError
from edgeveil.sites.files import load_site
from edgeveil.trust.bundle import TrustBundle
from edgeveil_tools.site.bundles import STATE, altered, inventory_of
from edgeveil_tools.site.fleet_files import TRUST_FILE
from edgeveil_tools.site.owners_word import SITE_FILE

_FIX = "install the party's newest bundle (edgeveil site apply)"


def problems_of(place: Path, days: int) -> list[str]:
    """A line each, with the fix; none where all is well for `days`. Raises BundleError."""
    said = inventory_of(place)
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    found = [f"{path}: is not what was installed. {_FIX}" for path in altered(place)]
    try:
        load_site(place / SITE_FILE)
    except EdgeVeilError as error:
        found += str(error).splitlines()
    for path in sorted([*said.files, f"{STATE}/edge.crt"]):
        if path.endswith(".crt") and (place / path).exists():
            found += _ending(path, (place / path).read_bytes(), soon)
    held = [path for path in (f"{STATE}/trust.json", TRUST_FILE) if (place / path).exists()]
    for path in held[:1]:
        found += _trust(path, place / path, soon)
    return found


def _ending(path: str, pem: bytes, soon: datetime.datetime) -> list[str]:
    try:
        ends = min(one.not_valid_after_utc for one in x509.load_pem_x509_certificates(pem))
    except ValueError:
        return [f"{path}: holds no certificate. {_FIX}"]
    return [f"{path}: ends {ends:%Y-%m-%d}. {_FIX}"] if ends <= soon else []


def _trust(path: str, file: Path, soon: datetime.datetime) -> list[str]:
    fix = "ask who keeps the root: edgeveil trust sign --renew"
    try:
        problem = TrustBundle.load(file).verified().problem(soon)
    except EdgeVeilError as error:
        return [f"{path}: {error}"]
    return [f"{path}: by {soon:%Y-%m-%d} {problem}. {fix}"] if problem else []
