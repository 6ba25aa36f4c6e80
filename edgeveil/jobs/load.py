"""Job files, and files of any kind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.errors import ConfigError
from edgeveil.jobs.job import Job
from edgeveil.jobs.load_test import LoadOptions
from edgeveil.jobs.presets import KEY as PRESET
from edgeveil.jobs.presets import expand, with_preset
from edgeveil.registry import nearest
from edgeveil.settings.file import checked, only_block, parsed, problems_error, read
from edgeveil.settings.schema_walk import Schema
from edgeveil.settings.yaml_tree import Problem, Tree, read_tree
from edgeveil.sites.files import SITES, kind_of, load_site, site_of

if TYPE_CHECKING:
    from edgeveil.sites.files import Site

KINDS = ("job", *SITES, "load")


def load_job(path: Path) -> Job:
    """Read a job file; paths in it count from its folder. Raises ConfigError with all problems."""
    return parse_job(read(path), str(path), folder=path.absolute().parent)


def load_scenario(path: Path) -> LoadOptions:
    """Read a load test's scenario, its one top-level key is `load`.

    Raises ConfigError with all problems.
    """
    tree = parsed(read(path), str(path))
    if kind_of(tree.value) != "load":
        text = "not a load test's scenario, its top-level key must be load"
        raise problems_error(str(path), [Problem((), tree.line(()), text)])
    return only_block(LoadOptions, "load", tree, path)


def load(path: Path) -> tuple[str, Job | Site | LoadOptions]:
    """Read a file of any kind; returns the kind's name, one of `KINDS`, with it."""
    kind = kind_of(parsed(read(path), str(path)).value)
    if kind == "job":
        return kind, load_job(path)
    return kind, load_scenario(path) if kind == "load" else load_site(path)


def changed(options: LoadOptions, changes: Mapping[str, Any], where: str) -> LoadOptions:
    """`options` with other values, as a command line gives them; relative paths count from here.

    Raises ConfigError with all problems, a line `where: key: text` for each.
    """
    value = options.model_dump(mode="json", exclude_unset=True) | dict(changes)
    try:
        return checked(LoadOptions, Tree(value), where, folder=Path.cwd())
    except ConfigError as error:  # there is no file whose lines could be named
        lines = (line.removeprefix(f"{where}:1 ") for line in error.problems)
        raise ConfigError([f"{where}: {line}" for line in lines]) from None


def parse_job(text: str | bytes, where: str = "(posted)", *, folder: Path | None = None) -> Job:
    """Read a job from YAML text, `where` standing for the file's name in problems.

    Without `folder` the job may name no files of this machine.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    tree = parsed(raw, where)
    kind = kind_of(tree.value)
    if kind != "job":
        what = f"the {kind}'s site file" if kind in SITES else f"a {kind} file"
        command = f"edgeveil {kind}" if kind in SITES else "edgeveil loadtest --scenario"
        text = f"this is {what}, not a job; pass it to `{command}`"
        raise problems_error(where, [Problem((), tree.line(()), text)])
    expand(tree)
    if PRESET in tree.value:  # without what it would give, all else would seem to be missing
        raise problems_error(where, tree.problems)
    return checked(Job, tree, where, folder=folder, schema=_job_schema)


def line_of(path: Path, key: str) -> int:
    """The line of a dotted key in a file, or of the nearest block around it that the file has."""
    return read_tree(read(path)).line(tuple(key.split(".")))


def json_schema(kind: str) -> Schema:
    """JSON Schema (2020-12) of one kind of file, for editors. Raises ConfigError."""
    if kind not in KINDS:
        raise ConfigError([f"unknown kind '{kind}', {nearest(kind, list(KINDS))}"])
    if kind == "job":
        return _job_schema()
    inner = (site_of(kind) if kind in SITES else LoadOptions).model_json_schema()
    definitions = inner.pop("$defs", {})
    return {
        "title": f"EdgeVeil {kind}{' site' if kind in SITES else ''}",
        "type": "object",
        "properties": {kind: inner},
        "required": [kind],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _job_schema() -> Schema:
    return with_preset(Job.model_json_schema())
