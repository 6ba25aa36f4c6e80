"""`edgeveil schema KIND`: JSON Schema of a configuration file, for editors."""

from __future__ import annotations

from typing import Any

from edgeveil_tools.files import json_schema


def schema(kind: str) -> dict[str, Any]:
    """The schema of `job`, `cloud`, `proxy`, `edge`, `broker` or `load`. Raises ConfigError."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **json_schema(kind)}
