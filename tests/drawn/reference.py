"""Reference pages of the site, made from the code when the site is built."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import edgeveil
from edgeveil import errors
from edgeveil_tools.checks import schema
from edgeveil_tools.cli.program import parser
from edgeveil_tools.methods import entries

ROOT = Path(__file__).parents[2]
SITES = {
    "cloud": "The site file of a cloud (`edgeveil cloud --config cloud.yaml`).",
    "proxy": "The site file of a proxy (`edgeveil proxy --config proxy.yaml`).",
    "edge": "The site file of a device (`edgeveil edge --config edge.yaml`).",
    "broker": "The file of the embedded broker (`edgeveil broker --config broker.yaml`).",
}
_STATUS = {"proven": "proven", "claimed": "claimed", "none": "without noise", None: "–"}


def pages() -> dict[str, str]:
    """Return the text of each generated page by its path in the site."""
    return {
        "reference/job-keys.md": keys("job", "Job file", "The keys of a job file, by block."),
        **{
            f"reference/{kind}-keys.md": keys(kind, f"Site file: {kind}", text)
            for kind, text in SITES.items()
        },
        "reference/commands.md": commands(),
        "reference/parts.md": parts(),
        "reference/python.md": python(),
        "reference/metrics.md": metrics(),
        "reference/exit-codes.md": exit_codes(),
    }


def keys(kind: str, title: str, text: str) -> str:
    """Return the page of a configuration file's keys.

    Raises ValueError for a key without a description.
    """
    whole = schema(kind)
    blocks = whole.get("$defs", {})
    users = _users({"": whole, **blocks})
    lines = [f"# {title}", "", text, ""]
    for name, block in {"": whole, **blocks}.items():
        heading = f"{', '.join(users[name])}: {name}" if name in users else name or "Top level"
        lines += [f"## {heading} {{ #{name.lower() or 'top'} }}", ""]
        lines += [block.get("description", "") if name else "", ""]
        if not block.get("properties"):
            continue
        lines += ["| key | description | type | default |", "| --- | --- | --- | --- |"]
        for key, one in block["properties"].items():
            named = blocks.get(one.get("$ref", "").rsplit("/", 1)[-1], {})
            text = one.get("description") or named.get("description")
            if not text:
                raise ValueError(
                    f"{kind} file, block {name or 'top'}: key {key!r} has no description"
                )
            required = key in block.get("required", ())
            default = "required" if required else _default(one.get("default"))
            cells = (f"`{key}`", text, _type(one), default)
            lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _users(blocks: dict[str, Any]) -> dict[str, list[str]]:
    """Return, by block, the keys that take it."""
    users: dict[str, list[str]] = {}
    for block in blocks.values():
        for key, one in block.get("properties", {}).items():
            for name in set(re.findall(r"'#/\$defs/(\w+)'", str(one))):
                if key not in users.setdefault(name, []):
                    users[name].append(key)
    return users


def _default(value: Any) -> str:
    if value is None or isinstance(value, dict):
        return "–"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(one: dict[str, Any]) -> str:
    if "$ref" in one:
        name = one["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if choices := one.get("enum"):
        return ", ".join(f"`{choice}`" for choice in choices)
    if "const" in one:
        return f"`{one['const']}`"
    for group in ("anyOf", "oneOf"):
        if group in one:
            kinds = dict.fromkeys(_type(each) for each in one[group])
            return " or ".join(kind for kind in kinds if kind != "null") or "null"
    if one.get("type") == "array":
        return f"list of {_type(one.get('items', {}))}"
    return str(one.get("type", "any"))


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def commands() -> str:
    """Return the page of all commands, each with its `--help`."""
    lines = ["# Commands", "", "Every command with the text of its `--help`.", ""]
    for name, one in _leaves(parser()):
        lines += [f"## {name}", "", "```text", one.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def _leaves(top: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    groups = [one for one in top._actions if isinstance(one, argparse._SubParsersAction)]
    if not groups:
        yield top.prog, top
    for group in groups:
        for inner in {id(one): one for one in group.choices.values()}.values():
            yield from _leaves(inner)


def parts() -> str:
    """Return the page of all methods, models, features and presets with their status."""
    lines = [
        "# Methods, models and presets",
        "",
        "Names that a job file may use. *Proven*: the printed ε follows from a proof in"
        " [Privacy](../privacy.md). *Claimed*: the source's claim, without a proof; a job"
        " that uses one needs `accept_unproven`, and its report shows no ε.",
        "",
    ]
    family = None
    for one in sorted((e for e in entries() if e.plugin is None), key=lambda e: e.family):
        if one.family != family:
            family = one.family
            lines += ["", f"## {family}", "", "| name | status | summary |", "| --- | --- | --- |"]
        lines.append(f"| `{one.name}` | {_STATUS[one.privacy]} | {_cell(one.summary)} |")
    return "\n".join(lines) + "\n"


def python() -> str:
    """Return the page of the public Python names, for mkdocstrings to fill in."""
    lines = [
        "# Python API",
        "",
        "Names of `import edgeveil`; [From Python](../python.md) shows their use.",
        "",
    ]
    for name in sorted(edgeveil.__all__):
        if name in ("__version__", "errors"):
            continue
        one = getattr(edgeveil, name)
        module = isinstance(one, ModuleType)
        place = one.__name__ if module else f"{one.__module__}.{one.__qualname__}"
        lines += [f"::: {place}", ""]
    return "\n".join([*lines, "::: edgeveil.errors", ""])


def metrics() -> str:
    """Return the page of the Prometheus metrics that the sources of cloud and proxy define."""
    lines = ["# Metrics", "", "Prometheus series at `/metrics` of cloud and proxy;"]
    lines += ["[Operations](../operations.md#metrics) has alerts.", ""]
    lines += ["| series | help text |", "| --- | --- |"]
    found: dict[str, str] = {}
    for path in sorted(ROOT.glob("*/edgeveil*/**/*.py")) + sorted(ROOT.glob("edgeveil/**/*.py")):
        found |= dict(_series(ast.parse(path.read_text("utf-8"))))
    lines += [f"| `{name}` | {_cell(text)} |" for name, text in sorted(found.items())]
    return "\n".join(lines) + "\n"


_MAKERS = {"gauge": "", "counter": "_total", "Count": "_total", "Gauge": "", "Histogram": ""}
_MAKERS |= {"GaugeMetricFamily": "", "CounterMetricFamily": "_total"}


def _series(tree: ast.Module) -> Iterator[tuple[str, str]]:
    texts = {
        one.targets[0].id: one.value
        for one in ast.walk(tree)
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        if call.func.id not in _MAKERS or len(call.args) < 2:
            continue
        name, text = (texts.get(a.id, a) if isinstance(a, ast.Name) else a for a in call.args[:2])
        if isinstance(name, ast.Constant) and isinstance(text, ast.Constant):
            full = str(name.value).removeprefix("edgeveil_") + _MAKERS[call.func.id]
            yield f"edgeveil_{full}", str(text.value)


def exit_codes() -> str:
    """Return the page of exit codes, from the error classes."""
    lines = [
        "# Exit codes",
        "",
        "| code | meaning |",
        "| --- | --- |",
        "| 0 | done, or a clean stop |",
    ]
    found: dict[int, list[str]] = {}
    for name, one in inspect.getmembers(errors, inspect.isclass):
        if issubclass(one, errors.EdgeVeilError) and "exit_code" in vars(one):
            text = (inspect.getdoc(one) or "").split("\n\n")[0]
            found.setdefault(one.exit_code, []).append(f"`{name}`: {_cell(text)}")
    lines += [f"| {code} | {' '.join(texts)} |" for code, texts in sorted(found.items())]
    return "\n".join([*lines, "| 130 | Ctrl-C |", ""])
