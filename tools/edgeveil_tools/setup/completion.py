"""The script that lets a shell complete `edgeveil`, drawn from its own parsers."""

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
"""What completes an argument, by how `--help` calls it; other paths are files."""
_YAML_OPTIONS = ("--config", "--scenario")


def command(args: argparse.Namespace) -> int:
    """`edgeveil --completion SHELL`: eval it in ~/.bashrc, write it to a folder of zsh's $fpath, or
    source it in fish and tcsh."""
    print(script(parser(), args.completion))
    return 0


def script(top: argparse.ArgumentParser, shell: str) -> str:
    """The script for a shell; paths complete as files, folders or job files."""
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
    """This parser and all below it, with the options that are found out late."""
    if isinstance(top, CommandParser):
        top.add_later()
    yield top
    for action in top._actions:
        children: Any = action.choices if isinstance(action.choices, dict) else {}
        for child in children.values():
            yield from _parsers(child)
