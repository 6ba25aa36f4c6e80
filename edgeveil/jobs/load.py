"""Files -> models. Every problem of a file at once, as `file:line key.path: what, why, fix`."""

from __future__ import annotations

import copy
import json
import stat
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from edgeveil.errors import ConfigError
from edgeveil.jobs import yaml_tree
from edgeveil.jobs.base import MIX, Block
from edgeveil.jobs.explain import Explainer
from edgeveil.jobs.job import Job
from edgeveil.jobs.load_test import LoadOptions
from edgeveil.jobs.presets import KEY as PRESET
from edgeveil.jobs.presets import expand, with_preset
from edgeveil.jobs.schema_walk import Schema, SchemaWalk
from edgeveil.jobs.site import BrokerSite, CloudSite, EdgeSite, ProxySite
from edgeveil.jobs.yaml_tree import Problem, Tree, path_text, read_tree
from edgeveil.registry import nearest

Site = CloudSite | ProxySite | EdgeSite | BrokerSite
SITES: dict[str, type[CloudSite | ProxySite | EdgeSite | BrokerSite]] = {
    "cloud": CloudSite,
    "proxy": ProxySite,
    "edge": EdgeSite,
    "broker": BrokerSite,
}
_BLOCKS: dict[str, type[Block]] = {**SITES, "load": LoadOptions}
KINDS = ("job", *_BLOCKS)
M = TypeVar("M", bound=BaseModel)


def load_job(path: Path) -> Job:
    """Read a job file; paths in it count from its folder. Raises ConfigError with all problems."""
    return parse_job(_read(path), str(path), folder=path.absolute().parent)


def load_site(path: Path) -> Site:
    """Read a site file; its one top-level key says for which process.

    Relative paths in it count from the file's folder. Whether key files exist is checked by
    the process when it starts, not here. Raises ConfigError with all problems.
    """
    tree = _parsed(_read(path), str(path))
    kind = kind_of(tree.value)
    if kind not in SITES:
        known = ", ".join(SITES)
        text = f"not a site file, its top-level key must be one of: {known}"
        if kind in tree.value:
            text += f"; this is a {kind} file"
        raise _error(str(path), [Problem((), tree.line(()), text)])
    return _block(SITES[kind], kind, tree, path)


def load_scenario(path: Path) -> LoadOptions:
    """Read a load test's scenario, its one top-level key is `load`.

    Raises ConfigError with all problems.
    """
    tree = _parsed(_read(path), str(path))
    if kind_of(tree.value) != "load":
        text = "not a load test's scenario, its top-level key must be load"
        raise _error(str(path), [Problem((), tree.line(()), text)])
    return _block(LoadOptions, "load", tree, path)


def load(path: Path) -> tuple[str, Job | Site | LoadOptions]:
    """Read a file of any kind; returns the kind's name, one of `KINDS`, with it."""
    kind = kind_of(_parsed(_read(path), str(path)).value)
    if kind == "job":
        return kind, load_job(path)
    return kind, load_scenario(path) if kind == "load" else load_site(path)


def changed(options: LoadOptions, changes: Mapping[str, Any], where: str) -> LoadOptions:
    """`options` with other values, as a command line gives them; relative paths count from here.

    Raises ConfigError with all problems, a line `where: key: text` for each.
    """
    value = options.model_dump(mode="json", exclude_unset=True) | dict(changes)
    try:
        return _checked(LoadOptions, Tree(value), where, folder=Path.cwd())
    except ConfigError as error:  # there is no file whose lines could be named
        lines = (line.removeprefix(f"{where}:1 ") for line in error.problems)
        raise ConfigError([f"{where}: {line}" for line in lines]) from None


def parse_job(text: str | bytes, where: str = "(posted)", *, folder: Path | None = None) -> Job:
    """Read a job from YAML text, `where` standing for the file's name in problems.

    Without `folder` the job may name no files of this machine.
    """
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    tree = _parsed(raw, where)
    kind = kind_of(tree.value)
    if kind != "job":
        what = f"the {kind}'s site file" if kind in SITES else f"a {kind} file"
        command = f"edgeveil {kind}" if kind in SITES else "edgeveil loadtest --scenario"
        text = f"this is {what}, not a job; pass it to `{command}`"
        raise _error(where, [Problem((), tree.line(()), text)])
    expand(tree)
    if PRESET in tree.value:  # without what it would give, all else would seem to be missing
        raise _error(where, tree.problems)
    return _checked(Job, tree, where, folder=folder)


def line_of(path: Path, key: str) -> int:
    """The line of a dotted key in a file, or of the nearest block around it that the file has."""
    return read_tree(_read(path)).line(tuple(key.split(".")))


def kind_of(value: Any) -> str:
    """The kind of a file by its top-level keys: a site's own name or `load`, else `job`."""
    keys = value if isinstance(value, dict) else {}
    found = [key for key in _BLOCKS if key in keys]
    return found[0] if found and "job" not in keys else "job"


def json_schema(kind: str) -> Schema:
    """JSON Schema (2020-12) of one kind of file, for editors. Raises ConfigError."""
    if kind not in KINDS:
        raise ConfigError([f"unknown kind '{kind}', {nearest(kind, list(KINDS))}"])
    if kind == "job":
        return with_preset(Job.model_json_schema())
    inner = _BLOCKS[kind].model_json_schema()
    definitions = inner.pop("$defs", {})
    return {
        "title": f"EdgeVeil {kind}{' site' if kind in SITES else ''}",
        "type": "object",
        "properties": {kind: inner},
        "required": [kind],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _read(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise _error(str(path), [Problem((), 1, "not a plain file; name a YAML file")])
        with path.open("rb") as file:
            return file.read(yaml_tree.TEXT_BYTES + 1)
    except FileNotFoundError:
        text = "no such file; check the path"
    except (OSError, ValueError) as error:
        text = f"cannot be read, {getattr(error, 'strerror', None) or error}; check its rights"
    raise _error(str(path), [Problem((), 1, text)])


def _parsed(raw: bytes, where: str) -> Tree:
    tree = read_tree(raw)
    if not tree.lines:
        raise _error(where, tree.problems)
    if not isinstance(tree.value, dict):
        text = "must be a block of keys such as `job: quickstart`; see the files in configs/"
        raise _error(where, [Problem((), tree.line(()), text)])
    return tree


def _block(model: type[M], kind: str, tree: Tree, path: Path) -> M:
    """The one block of a file; relative paths in it count from the file's folder."""
    _only_key(tree, kind, str(path))
    return _checked(model, tree, str(path), prefix=(kind,), folder=path.absolute().parent)


def _only_key(tree: Tree, kind: str, where: str) -> None:
    tree.problems += [
        Problem((key,), tree.line((key,)), f"unknown key, a file with '{kind}' holds nothing else")
        for key in tree.value
        if key != kind
    ]
    if not isinstance(tree.value[kind], dict):
        text = "must be a block of keys; indent the keys below it"
        raise _error(where, [*tree.problems, Problem((kind,), tree.line((kind,)), text)])


def _checked(
    model: type[M],
    tree: Tree,
    where: str,
    *,
    prefix: tuple[str, ...] = (),
    folder: Path | None = None,
) -> M:
    value = tree.value[prefix[0]] if prefix else tree.value
    context = {"folder": folder}
    try:
        loaded = model.model_validate_json(json.dumps(value), strict=True, context=context)
    except ValidationError as error:
        explain = Explainer(tree, _walk(model), prefix)
        problems = _merged(tree.problems, explain.problems(error)) + explain.mixes(error)
        problems += _mixes_behind(model, explain, error, context)
        raise _error(where, problems) from None
    if tree.problems:
        raise _error(where, tree.problems)
    return loaded


@cache
def _walk(model: type[BaseModel]) -> SchemaWalk:
    schema = model.model_json_schema()
    return SchemaWalk(with_preset(schema) if model is Job else schema)


def _merged(first: list[Problem], then: list[Problem]) -> list[Problem]:
    """A value that YAML misread fails again as a wrong type: say it once."""
    said = {problem.path for problem in first}
    return first + [problem for problem in then if problem.path not in said]


def _mixes_behind(
    model: type[BaseModel], explain: Explainer, error: ValidationError, context: dict[str, Any]
) -> list[Problem]:
    """Mixes among the sound keys, which a faulty key elsewhere would otherwise hide."""
    places = [explain.place(detail) for detail in error.errors() if detail["type"] != MIX]
    if not places:
        return []
    value = copy.deepcopy(explain.value)
    for path, schema in places:
        _mend(value, path, schema)
    try:
        model.model_validate_json(json.dumps(value), strict=True, context=context)
    except ValidationError as second:
        return explain.mixes(second, [path for path, _ in places])
    return []


def _mend(value: Any, path: yaml_tree.Path, schema: Schema) -> None:
    """Put the default or an example where a faulty value stands, or take the key out."""
    for step in path[:-1]:
        if isinstance(step, int) or not isinstance(value, dict):
            return
        value = value.get(step)
    if not path or not isinstance(value, dict):
        return
    stand_in = schema.get("examples", [schema.get("default")])[0]
    if stand_in is None:
        value.pop(path[-1], None)
    else:
        value[str(path[-1])] = stand_in


def _error(where: str, problems: list[Problem]) -> ConfigError:
    ordered = sorted(problems, key=lambda problem: problem.line)
    lines = (f"{where}:{p.line} {path_text(p.path)}: {' '.join(p.text.split())}" for p in ordered)
    return ConfigError(list(dict.fromkeys(map(_printable, lines))))


def _printable(line: str) -> str:
    """What a file holds may not steer a terminal, and every line must be writable."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)
