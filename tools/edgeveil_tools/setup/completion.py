"""Shell completion scripts for `edgeveil`, generated from its parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shtab

from edgeveil_tools.cli.common import CommandParser
from edgeveil_tools.cli.program import COMMON, parser

_YAML = shtab.glob("*.yaml", "*.yml")
_KINDS = {
    "JOB": _YAML,
    **dict.fromkeys(("DIR", "FOLDER", "BUNDLE", "RECORDING"), shtab.DIRECTORY),
    "FILE": shtab.FILE,
}
"""Completion of an argument by its metavar; other paths are files."""
_YAML_OPTIONS = ("--config", "--scenario")


def command(args: argparse.Namespace) -> int:
    """Run `edgeveil --completion SHELL`: eval the script, or put it in zsh's $fpath."""
    print(script(parser(), args.completion))
    return 0


def script(top: argparse.ArgumentParser, shell: str) -> str:
    for one in _parsers(top):
        if one is not top:
            for names, text in COMMON[:-1]:
                if not {*names} & {*one._option_string_actions}:
                    one.add_argument(*names, action="store_true", help=text)
        for action in one._actions:
            kind = _KINDS.get(str(action.metavar))
            if any(option in _YAML_OPTIONS for option in action.option_strings):
                kind = _YAML
            if kind or action.type is Path:
                action.complete = kind or shtab.FILE  # type: ignore[attr-defined]
    made: str = shtab.complete(top, shell, root_prefix="edgeveil")
    return made


def _parsers(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield this parser and all below it, with their deferred options."""
    if isinstance(top, CommandParser):
        top.add_later()
    yield top
    for action in top._actions:
        children: Any = action.choices if isinstance(action.choices, dict) else {}
        for child in children.values():
            yield from _parsers(child)
