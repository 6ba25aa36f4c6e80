"""What a device's owner said in its site file, which nobody else's writing takes back.

Every writer of site files goes through `with_owners_word`: `provision --force` and the installation
of a bundle. Certificates, keys and claims stand in files of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from edgeveil.settings.file import parsed, read

SITE_FILE = "edgeveil.yaml"  # of an installed bundle
GIVEN_FILE = ".edgeveil.yaml.given"  # as it came, beside one that its owner has changed
OWNERS_BLOCKS = (
    *("role", "device", "log"),
    *("data", "policy", "policy_file", "conditions", "inference", "page"),
)
"""Keys of a device's site file that are its owner's, there or not. Its name is not: a fleet's plan
calls the box by it."""


def with_owners_word(settings: dict[str, Any], file: Path) -> dict[str, Any]:
    """A site file's new settings, with the owner's blocks as they stand in `file`, where that is a
    device's. Raises ConfigError for one that is no YAML: what its owner said would be lost."""
    edge = settings.get("edge")
    if not isinstance(edge, dict) or not file.exists():
        return settings
    found = parsed(read(file), str(file)).value
    kept = found.get("edge") if isinstance(found, dict) else None
    if not isinstance(kept, dict):
        return settings
    new = {key: value for key, value in edge.items() if key not in OWNERS_BLOCKS}
    return {"edge": {**new, **{key: kept[key] for key in OWNERS_BLOCKS if key in kept}}}


def site_text(settings: dict[str, Any]) -> str:
    """Settings as the YAML of a site file."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(settings, Dumper=dumper, sort_keys=False, allow_unicode=True)
    return text
