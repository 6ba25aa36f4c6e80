"""What a device's owner said in its site file, and the least batch that a proxy's operator said
in its own, which nobody else's writing takes back.

Every writer of site files goes through `with_owners_word`: `provision --force` and the installation
of a bundle. Certificates, keys and claims stand in files of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from edgeveil.settings.file import parsed, read
from edgeveil.sites.proxy import ProxySite

SITE_FILE = "edgeveil.yaml"  # of an installed bundle
GIVEN_FILE = ".edgeveil.yaml.given"  # as it came, beside one that its owner has changed
FLOOR = "min_batch_floor"
OWNERS_BLOCKS = (
    *("role", "device", "log"),
    *("data", "policy", "policy_file", "conditions", "inference", "page"),
)
"""Keys of a device's site file that are its owner's, there or not. Its name is not: a fleet's plan
calls the box by it."""


def with_owners_word(settings: dict[str, Any], file: Path) -> dict[str, Any]:
    """A site file's new settings, with the owner's blocks as they stand in `file`, where that is a
    device's, and no lower a `min_batch_floor` than there, where it is a proxy's. Raises ConfigError
    for one that is no YAML: what its owner said would be lost."""
    party = next((one for one in ("edge", "proxy") if isinstance(settings.get(one), dict)), None)
    if party is None or not file.exists():
        return settings
    found = parsed(read(file), str(file)).value
    kept, planned = found.get(party) if isinstance(found, dict) else None, settings[party]
    if not isinstance(kept, dict):
        return settings
    if party == "proxy":
        floor = kept.get(FLOOR)
        least = planned.get(FLOOR, ProxySite.model_fields[FLOOR].default)
        raised = type(floor) is int and floor > least
        return {party: {**planned, FLOOR: floor}} if raised else settings
    new = {key: value for key, value in planned.items() if key not in OWNERS_BLOCKS}
    return {"edge": {**new, **{key: kept[key] for key in OWNERS_BLOCKS if key in kept}}}


def site_text(settings: dict[str, Any]) -> str:
    """Settings as the YAML of a site file."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(settings, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text
