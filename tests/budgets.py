"""Measure the house and compare it with `.ci/budgets.toml`: `python -m tests.budgets [--json]`.

Counts lines of each room, files, commands and flags of the parser, keys of the job and site
schemas, public classes of the product, words of the documentation, and words that docstrings should
avoid or have. Exit code 1 where a figure is above its budget, or below one of `at_least`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COUNTED = re.compile(r"\.(py|js|html|css)$")
VENDORED = re.compile(r"\.(min|iife)\.")
SITES = ("cloud", "proxy", "edge", "broker")


def sources() -> dict[str, str]:
    """Return the text of every counted file by its path in the checkout."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = [name for name in listed if COUNTED.search(name) and not VENDORED.search(name)]
    there = (name for name in names if (ROOT / name).is_file())
    return {name: (ROOT / name).read_text("utf-8") for name in there}


def parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield every parser that has no subcommands, each once."""
    groups = [one for one in top._actions if isinstance(one, argparse._SubParsersAction)]
    if not groups:
        yield top
    for group in groups:
        for inner in {id(one): one for one in group.choices.values()}.values():
            yield from parsers(inner)


def keys(schema: dict[str, Any]) -> set[tuple[str, str]]:
    """Return (block, key) of every block of a JSON Schema."""
    blocks = {"": schema, **schema.get("$defs", {})}
    return {
        (block.get("title", name), key)
        for name, block in blocks.items()
        for key in block.get("properties", {})
    }


def counts() -> dict[str, int]:
    """Count commands, flags and keys from the parser and the schemas."""
    from edgeveil_tools.checks import schema
    from edgeveil_tools.cli.program import parser

    leaves = list(parsers(parser()))
    options = [
        action
        for leaf in leaves
        for action in leaf._actions
        if action.option_strings and not isinstance(action, argparse._HelpAction)
    ]
    return {
        "commands": len(leaves),
        "flags": len(options),
        "job_keys": len(keys(schema("job"))),
        "site_keys": len(set[tuple[str, str]]().union(*(keys(schema(site)) for site in SITES))),
    }


def public_classes(text: str) -> int:
    """Count the classes of a module whose name has no leading underscore."""
    found = ast.walk(ast.parse(text))
    return sum(isinstance(one, ast.ClassDef) and not one.name.startswith("_") for one in found)


WORDS = {
    "what_who_per_1000": "what who whose whatever whoever",
    "tell_say_per_1000": "tell tells told say says said hear hears heard word",
    "return_raise_per_1000": "return returns raise raises parameter parameters default defaults",
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstring_rates(texts: Iterable[str]) -> dict[str, float]:
    """Return how often the words of each group occur in 1,000 words of docstrings."""
    words: Counter[str] = Counter()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, DOCUMENTED):
            words.update(re.findall(r"[A-Za-z]+", (ast.get_docstring(node) or "").lower()))
    per_1000 = 1000 / words.total()
    return {
        name: round(per_1000 * sum(words[word] for word in group.split()), 1)
        for name, group in WORDS.items()
    }


def prose() -> dict[str, float]:
    """Return the lines of the README and the words of all Markdown files but CHANGELOG.md."""
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    pages = [ROOT / name for name in listed if name != "CHANGELOG.md"]
    return {
        "readme_lines": (ROOT / "README.md").read_text("utf-8").count("\n"),
        "docs_words": sum(len(page.read_text("utf-8").split()) for page in pages if page.is_file()),
    }


def measured() -> dict[str, dict[str, float]]:
    """Measure everything that the budget file names."""
    budget = tomllib.loads((ROOT / ".ci/budgets.toml").read_text("utf-8"))
    text = sources()
    lines = {name: content.count("\n") for name, content in text.items()}
    product = [name for name in text if not name.startswith(("tests/", "docs/"))]

    def within(room: str) -> list[str]:
        return product if room == "product" else [n for n in text if n.startswith(f"{room}/")]

    rates = docstring_rates(text[name] for name in product if name.endswith(".py"))
    classes = sum(public_classes(text[name]) for name in product if name.endswith(".py"))
    return {
        "lines": {
            "product": sum(lines[name] for name in product),
            **{room: sum(lines[name] for name in within(room)) for room in budget["lines"]},
        },
        "files": {room: len(within(room)) for room in budget["files"]},
        "counts": counts() | {"public_classes": classes},
        "prose": prose() | {name: rates[name] for name in budget["prose"] if name in rates},
        "at_least": {name: rates[name] for name in budget["at_least"]},
    }


def main() -> int:
    """Print each figure beside its budget; returns the exit code."""
    budget = tomllib.loads((ROOT / ".ci/budgets.toml").read_text("utf-8"))
    found = measured()
    if "--json" in sys.argv:
        print(json.dumps(found, indent=1))
    over = 0
    for kind, figures in found.items():
        for name, figure in figures.items():
            limit = budget[kind].get(name)
            least = kind == "at_least"
            missed = limit is not None and (figure < limit if least else figure > limit)
            over += missed
            if "--json" not in sys.argv:
                verdict = ("  BELOW" if least else "  ABOVE") if missed else ""
                print(f"{kind:<8} {name:<24} {figure:>7} {limit or '':>7}{verdict}")
    if over:
        print(f"{over} figures miss .ci/budgets.toml: cut, or raise one with its reason")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
