"""A load test's options: a scenario file's keys, each also an option of the command line.

Names, types and help are the model's, which takes half a second to load: `options.json` is made
from it (`python -m edgeveil_lab.load.options --write`), so that `--help` does not wait.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.errors import ConfigError

if TYPE_CHECKING:
    from edgeveil_lab.load.scenario import LoadOptions

_SECONDS = re.compile(r"(_per)?_s$")
_TABLE = Path(__file__).with_name("options.json")
_TYPES = {"integer": int, "number": float}
_INSTEAD = {"rounds": "minutes", "minutes": "sweep", "ramp_s": "rate_per_s", "rate_per_s": "ramp_s"}

Row = tuple[str, str, list[str | int], str]  # JSON type, metavar, choices, help
OPTIONS: dict[str, Row] = json.loads(_TABLE.read_bytes())


def option_of(key: str) -> str:
    """The command line's spelling: `payload_bytes` is `--payload-bytes`, `rate_per_s` `--rate`."""
    return "--" + _SECONDS.sub("", key).replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each key; one that is not given leaves no trace."""
    for key, (kind, metavar, choices, text) in OPTIONS.items():
        if key == "sweep":
            continue
        option: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS, "help": text}
        if key == "devices":
            option |= {"type": _counts, "metavar": "N[,N…]"}
        elif kind == "boolean":
            option["action"] = argparse.BooleanOptionalAction
        elif choices:
            option |= {"type": type(choices[0]), "choices": choices}
        else:
            option |= {"type": _TYPES.get(kind, str), "metavar": metavar}
        parser.add_argument(option_of(key), **option)


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """The keys that were given on the command line, as a scenario file would have them."""
    given = {key: getattr(args, key) for key in OPTIONS if hasattr(args, key)}
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
    from edgeveil_lab.load.scenario import LoadOptions, changed, load_scenario

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


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


_counts.__name__ = "count"  # argparse says `invalid count value`


def option_table() -> dict[str, Row]:
    """The table of options as the model has it now."""
    from edgeveil.settings.explain import Schema, SchemaWalk, shown
    from edgeveil_lab.load.scenario import LoadOptions

    walk = SchemaWalk(LoadOptions.model_json_schema())

    def metavar(key: str, node: Schema) -> str:
        if node.get("format") == "path":
            return "DIR" if key in ("out", "site") else "FILE"
        if key in ("cloud", "proxy_http", "versus") or key.endswith("broker"):
            return "URL"
        if key.endswith("_s"):
            return "X" if key.endswith("_per_s") else "S"
        return {"integer": "N", "number": "X"}.get(str(node.get("type")), key.upper())

    def row(key: str) -> Row:
        field = LoadOptions.model_fields[key]
        node = walk.variants(walk.property(walk.root, key) or {})[0]
        choices = node.get("enum", [node["const"]] if "const" in node else [])
        text = (field.description or "").removesuffix(".").replace("%", "%%")
        bare = field.default is None or field.default is False or field.default == ()
        text += "" if bare else f" (default {shown(field.default).strip(chr(39))})"
        text += "; several counts: a sweep" * (key == "devices")
        return str(node.get("type", "")), metavar(key, node), list(choices), text

    return {key: row(key) for key in LoadOptions.model_fields}


def table_text(table: Mapping[str, Row]) -> str:
    """The file's text, a line for each key."""
    rows = (f"{json.dumps(key)}: {json.dumps(list(row))}" for key, row in table.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        _TABLE.write_text(table_text(option_table()), encoding="utf-8")
    sys.exit(_TABLE.read_text(encoding="utf-8") != table_text(option_table()))
