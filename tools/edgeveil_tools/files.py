"""Configuration files of any kind: what they hold, and their schemas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.errors import ConfigError
from edgeveil.jobs import Plan
from edgeveil.registry import nearest
from edgeveil.settings.explain import Schema
from edgeveil.settings.file import parsed, read
from edgeveil.sites.files import SITES, kind_of, load_site, site_of
from edgeveil_tools.local.local_run import LocalJob, load_local_job, local_job_schema

if TYPE_CHECKING:
    from edgeveil.sites.files import Site
    from edgeveil_lab.load.scenario import LoadOptions

KINDS = ("job", *SITES, "load")


def load(path: Path) -> tuple[str, tuple[LocalJob, Plan] | Site | LoadOptions]:
    """Read a file of any kind; returns the kind's name, one of `KINDS`, with it.

    Of a job what its file says, and its plan. Raises ConfigError with all problems.
    """
    kind = kind_of(parsed(read(path), str(path)).value)
    if kind == "job":
        return kind, load_local_job(path)
    if kind == "load":
        from edgeveil_lab.load.scenario import load_scenario

        return kind, load_scenario(path)
    return kind, load_site(path)


def json_schema(kind: str) -> Schema:
    """JSON Schema (2020-12) of one kind of file, for editors. Raises ConfigError."""
    if kind not in KINDS:
        raise ConfigError([f"unknown kind '{kind}', {nearest(kind, list(KINDS))}"])
    if kind == "job":
        return local_job_schema()
    inner = _inner_schema(kind)
    definitions = inner.pop("$defs", {})
    return {
        "title": f"EdgeVeil {kind}{' site' if kind in SITES else ''}",
        "type": "object",
        "properties": {kind: inner},
        "required": [kind],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _inner_schema(kind: str) -> Schema:
    if kind in SITES:
        return site_of(kind).model_json_schema()
    from edgeveil_lab.load.scenario import LoadOptions

    return LoadOptions.model_json_schema()
