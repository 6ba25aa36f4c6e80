"""A load test's options: a scenario file's keys, each also an option of the command line.

Names, types and help come from the model, so that there is one place to change.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgeveil.errors import ConfigError
from edgeveil.settings.explain import Schema, SchemaWalk, shown
from edgeveil_lab.load.scenario import LoadOptions as LoadOptions
from edgeveil_lab.load.scenario import changed, load_scenario

_SECONDS = re.compile(r"(_per)?_s$")
_WALK = SchemaWalk(LoadOptions.model_json_schema())
_INSTEAD = {"rounds": "minutes", "minutes": "sweep", "ramp_s": "rate_per_s", "rate_per_s": "ramp_s"}


def option_of(key: str) -> str:
    """The command line's spelling: `payload_bytes` is `--payload-bytes`, `rate_per_s` `--rate`."""
    return "--" + _SECONDS.sub("", key).replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each key; one that is not given leaves no trace."""
    parser.add_argument(
        "--devices",
        type=_counts,
        default=argparse.SUPPRESS,
        metavar="N[,N…]",
        help=f"{_help('devices')}; several counts: a sweep",
    )
    for key in LoadOptions.model_fields:
        if key not in ("devices", "sweep"):
            parser.add_argument(option_of(key), **_argument(key))


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """The keys that were given on the command line, as a scenario file would have them."""
    given = {key: getattr(args, key) for key in LoadOptions.model_fields if hasattr(args, key)}
    counts = given.get("devices", ())
    if len(counts) == 1:
        given |= {"devices": counts[0], "sweep": ()}
    elif counts:
        del given["devices"]
        given["sweep"] = counts
    return given


def resolve(scenario: Path | None, given: Mapping[str, Any]) -> LoadOptions:
    """The scenario with what was given in its place. Raises ConfigError with all problems.

    An option also takes the place of a key of the file that would contradict it, as `--ramp` does
    with `rate_per_s`.
    """
    base = LoadOptions() if scenario is None else load_scenario(scenario)
    plain = {key: list(v) if isinstance(v, tuple) else v for key, v in given.items()}
    for key, other in _INSTEAD.items():
        if key in plain and other not in plain:
            plain[other] = LoadOptions.model_fields[other].default
    try:
        return changed(base, plain, "edgeveil loadtest")
    except ConfigError as error:
        raise ConfigError([_with_options(line) for line in error.problems]) from None


def _with_options(line: str) -> str:
    where, key, text = line.split(": ", 2)
    return f"{where}: {option_of(key)}: {text}"


def _argument(key: str) -> dict[str, Any]:
    node = _WALK.variants(_WALK.property(_WALK.root, key) or {})[0]
    common = {"dest": key, "default": argparse.SUPPRESS, "help": _help(key)}
    if node.get("type") == "boolean":
        return {**common, "action": argparse.BooleanOptionalAction}
    choices = node.get("enum", [node["const"]] if "const" in node else None)
    if choices:
        return {**common, "type": type(choices[0]), "choices": choices}
    return {**common, "type": _type(node), "metavar": _metavar(key, node)}


def _type(node: Schema) -> type[int] | type[float] | type[str]:
    return {"integer": int, "number": float}.get(str(node.get("type")), str)


def _metavar(key: str, node: Schema) -> str:
    if node.get("format") == "path":
        return "DIR" if key in ("out", "site") else "FILE"
    if key in ("cloud", "proxy_http") or key.endswith("broker"):
        return "URL"
    if key.endswith("_s"):
        return "X" if key.endswith("_per_s") else "S"
    return {"integer": "N", "number": "X"}.get(str(node.get("type")), key.upper())


def _help(key: str) -> str:
    field = LoadOptions.model_fields[key]
    text = (field.description or "").removesuffix(".").replace("%", "%%")
    bare = field.default is None or field.default is False or field.default == ()
    return text if bare else f"{text} (default {shown(field.default).strip(chr(39))})"


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_counts.__name__ = "count"  # argparse says `invalid count value`
