"""Read a file into a model; problems are `file:line key.path: fault, reason, fix`."""

from __future__ import annotations

import copy
import json
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from edgeveil.config import yaml_tree
from edgeveil.config.base import ImpossibleMixError
from edgeveil.config.yaml_tree import Problem, Tree, path_text, read_tree
from edgeveil.errors import ConfigError, SystemFault, of_environment

if TYPE_CHECKING:
    from edgeveil.config.explain import Explainer, Schema

M = TypeVar("M", bound=BaseModel)
R = TypeVar("R")


def read(path: Path) -> bytes:
    """Return a plain file's bytes. Raises ConfigError; SystemFault if it is unreadable for now."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise problems_error(str(path), [Problem((), 1, "not a plain file; name a YAML file")])
        if found.st_size > yaml_tree.TEXT_BYTES:
            raise problems_error(str(path), [Problem((), 1, yaml_tree.too_large(found.st_size))])
        with path.open("rb") as file:
            return file.read(yaml_tree.TEXT_BYTES + 1)
    except FileNotFoundError:
        text = "no such file; check the path"
    except (OSError, ValueError) as error:
        what = f"cannot be read, {getattr(error, 'strerror', None) or error}"
        if of_environment(error):
            fix = "check its rights and its disk"
            raise SystemFault(what, where=str(path), fix=fix) from error
        text = f"{what}; check its rights"
    raise problems_error(str(path), [Problem((), 1, text)])


def parsed(raw: bytes, where: str) -> Tree:
    """Return the block of keys in YAML text. Raises ConfigError."""
    tree = read_tree(raw)
    if not tree.lines:
        raise problems_error(where, tree.problems)
    if not isinstance(tree.value, dict):
        text = "must be a block of keys such as `job: quickstart`; see the files in configs/"
        raise problems_error(where, [Problem((), tree.line(()), text)])
    return tree


def only_block(model: type[M], kind: str, tree: Tree, path: Path) -> M:
    """Return the one block of a file; relative paths are resolved from the file's folder."""
    for key in tree.value:
        if key != kind:
            text = f"unknown key, a file with '{kind}' holds nothing else"
            tree.problems.append(Problem((key,), tree.line((key,)), text))
    if not isinstance(tree.value[kind], dict):
        text = "must be a block of keys; indent the keys below it"
        problems = [*tree.problems, Problem((kind,), tree.line((kind,)), text)]
        raise problems_error(str(path), problems)
    for at, text in drop_retired(kind, tree.value[kind]):
        tree.problems.append(Problem((kind, *at), tree.line((kind, *at)), text))
    folder = path.absolute().parent
    return judged(model, lambda made: made, tree, str(path), prefix=(kind,), folder=folder)


def judged(
    model: type[M],
    judge: Callable[[M], R],
    tree: Tree,
    where: str,
    *,
    prefix: tuple[str, ...] = (),
    folder: Path | None = None,
    schema: Callable[[], Schema] | None = None,
) -> R:
    """Apply `judge`, which may raise ImpossibleMixError, to the model of a file's block.

    `schema` explains problems in place of the model's. Raises ConfigError with all problems."""

    def reading(value: Any) -> R:
        raw = json.dumps(value)
        return judge(model.model_validate_json(raw, strict=True, context={"folder": folder}))

    try:
        result = reading(tree.value[prefix[0]] if prefix else tree.value)
    except (ValidationError, ImpossibleMixError) as error:
        from edgeveil.config.explain import Explainer, SchemaWalk, faults  # slow to import

        explain = Explainer(tree, SchemaWalk((schema or model.model_json_schema)()), prefix)
        misread = {problem.path for problem in tree.problems}  # fails again as a wrong type
        found = [one for one in explain.problems(error) if one.path not in misread]
        problems = [*tree.problems, *found, *explain.mixes(error)]
        if places := [explain.place(detail) for detail in faults(error)[0]]:
            problems += _mixes_behind(reading, explain, places)
        raise problems_error(where, tree.as_written(problems)) from None
    if tree.problems:
        raise problems_error(where, tree.problems)
    return result


def _mixes_behind(
    reading: Callable[[Any], object],
    explain: Explainer,
    places: list[tuple[yaml_tree.Path, Schema]],
) -> list[Problem]:
    """Return mixes among the valid keys, which the faulty ones at `places` would hide."""
    value = copy.deepcopy(explain.value)
    for path, schema in places:
        _mend(value, path, schema)
    try:
        reading(value)
    except (ValidationError, ImpossibleMixError) as second:
        return explain.mixes(second, [path for path, _ in places])
    return []


def _mend(value: Any, path: yaml_tree.Path, schema: Schema) -> None:
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


def problems_error(where: str, problems: list[Problem]) -> ConfigError:
    """Return an error with all problems in order of lines, without control characters."""
    ordered = sorted(problems, key=lambda problem: problem.line)
    lines = (f"{where}:{p.line} {path_text(p.path)}: {' '.join(p.text.split())}" for p in ordered)
    safe = ("".join(sign if sign.isprintable() else "?" for sign in line) for line in lines)
    return ConfigError(list(dict.fromkeys(safe)))


# Keys of earlier versions that became constants.
# With the constant's value such a key is dropped on reading. Any other value is refused.

_PROXY_LIMITS = {
    "credit_bytes": 16 << 20,
    "misbehaving_refusals": 1000,
    "misbehaving_window_s": 60,
    "cool_down_s": 30,
    "cool_down_cap_s": 600,
    "stalled_rounds": 3,
    "max_offline_share": 0.5,
}
_BLOBS = {"least_bytes": 1 << 20, "expires_s": 3600}
RETIRED: dict[str, dict[str, object]] = {  # a type matches all its values
    "job": {
        "local_run.engine": "auto",
        "statistics.columns.*.characters": False,
        **{f"{block}.batch_norm": "averaged" for block in ("train", "model")},  # never a key
        "update.*.clip_rate": 0.2,
        "update.*.bit_share": 0.05,
        "local_run.partition.lq_noise": 0.5,
        "local_run.protocol": 5,
        "local_run.cells": 1,
        "local_run.policy": dict,  # any block; a path to a policy file is still valid
        "broadcast": {"dtype": "float32"},
        "round.max_staleness": 8,
        "round.staleness_exponent": 0.5,
    },
    "broker": {"enforce_profile": None},
    "cloud": {
        "broker.backoff_cap_s": 15,
        "cells.*.broker.backoff_cap_s": 15,
        "limits.jobs_queued": 100,
        "releases.renew_s": 86400,
        **{f"blobs.{key}": value for key, value in _BLOBS.items()},
    },
    "proxy": {
        "edge_broker.backoff_cap_s": 15,
        "cloud_broker.backoff_cap_s": 15,
        "claims.per_minute": 600,
        **{f"limits.{key}": value for key, value in _PROXY_LIMITS.items()},
        **{f"blobs.{key}": value for key, value in _BLOBS.items()},
    },
    "edge": {
        "data.shard.partition.lq_noise": 0.5,
        "broker.backoff_cap_s": 30,
        "limits.fetch_bytes": 1 << 29,
        "limits.receipts": 1000,
        "limits.releases": 5,
        "inference.request_bytes": 1 << 20,
        "conditions.command_timeout_s": 10,
        "conditions.presence_interval_s": 900,
        "conditions.require_power": False,
    },
}
RETIRED["fleet"] = {
    f"{part}.{key}": usual
    for part, kind in (("cloud", "cloud"), ("proxy", "proxy"), ("devices", "edge"))
    for key, usual in RETIRED[kind].items()
}
_DROP = "drop the key"
_INSTEAD = {
    "batch_norm": "drop the key, or use train.method: fedbn, which keeps it on each device",
    "characters": "write part: characters",
    "labels": "drop the key, or use upload: sums, which learns clusters of records",
    "engine": "drop the key, and name a Ray cluster in ray_address",
    "require_power": "write charging: true",
    "cells": "remove the key; edgeveil site init DIR --cells north,south makes a fleet with cells",
    "broadcast": "remove the block; model.adapters makes packages small",
    "stop": "drop the block, and lower train.rounds or privacy.max_participations",
    "silhouette": "drop the key, or use eval_type: DAVIES_BOULDIN_SCORE",
}


def drop_retired(kind: str, block: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    """Remove retired keys from a block; return (path, problem) of those with another value."""
    found = []
    for dotted, usual in RETIRED.get(kind, {}).items():
        *steps, key = dotted.split(".")
        for path, holder in _holders(block, steps, ()):
            found += drop_keys(path, holder, {key: usual})
    return found


def drop_keys(
    path: tuple[str | int, ...], block: dict[str, Any], keys: Mapping[str, object]
) -> list[tuple[tuple[str | int, ...], str]]:
    """Remove these keys from a block; return (path, problem) of those with another value."""
    found = []
    for key, usual in keys.items():
        value = block.get(key)
        of_type = isinstance(usual, type) and isinstance(value, usual)
        if key not in block or (isinstance(usual, type) and not of_type):
            continue
        del block[key]
        if not of_type and value != usual:
            text = "null" if usual is None else usual
            found.append(((*path, key), f"is always {text} by now; {_INSTEAD.get(key, _DROP)}"))
    return found


def _holders(
    value: Any, steps: list[str], path: tuple[str | int, ...]
) -> list[tuple[tuple[str | int, ...], dict[str, Any]]]:
    if not steps:
        return [(path, value)] if isinstance(value, dict) else []
    first, rest = steps[0], steps[1:]
    if first == "*" and isinstance(value, list):
        each = enumerate(value)
        return [hit for at, item in each for hit in _holders(item, rest, (*path, at))]
    if isinstance(value, dict) and first in value:
        return _holders(value[first], rest, (*path, first))
    return []
