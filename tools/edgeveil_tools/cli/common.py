"""Shared parts of commands: definition, loading of site files, and output."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from edgeveil.errors import UsageError

if TYPE_CHECKING:
    from edgeveil.config.edge import EdgeSite
    from edgeveil.config.site_files import Site

Subparsers = Any  # argparse keeps the type of its sub-commands private
S = TypeVar("S", bound="Site")


Argument = tuple[str, Mapping[str, Any]]  # as `add_argument` takes it
Handler = str | Callable[[argparse.Namespace], int]


class CommandRow(NamedTuple):
    """A row of a table of commands.

    `handler` is a function, or `module:function` of this distribution, imported when the command
    runs; empty for a group. Arguments in a list exclude each other. In `about` examples follow the
    explanation."""

    path: str
    help: str
    handler: Handler
    arguments: tuple[Argument | list[Argument], ...]
    about: str


def arg(name: str, text: str = "", kind: Any = None, **settings: Any) -> Argument:
    """Define an argument by name and metavar, `--out FILE`; an option without one is a flag."""
    name, _, metavar = name.partition(" ")
    if metavar:
        settings["metavar"] = metavar
    elif name.startswith("-") and not settings.keys() & {"choices", "action"}:
        settings["action"] = "store_true"
    if kind is not None:
        settings["type"] = kind
    return name, {**settings, "help": text or None}


def row(
    path: str,
    text: str,
    handler: Handler = "",
    *arguments: Argument | list[Argument],
    about: str = "",
) -> CommandRow:
    return CommandRow(path, text, handler, arguments, about)


class CommandParser(argparse.ArgumentParser):
    later: Callable[[argparse.ArgumentParser], None] | None = None
    """Adds options that are costly to compute, when the command is parsed."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.add_later()
        found, rest = super().parse_known_args(args, namespace)
        unknown = [one for one in rest if one.startswith("-")]
        if unknown:
            from edgeveil.registry import nearest

            known = [name for one in self._actions for name in one.option_strings if name[1] == "-"]
            given = unknown[0].partition("=")[0]
            self.error(f"unknown option {given}, {nearest(given, known)}")
        return found, rest

    def add_later(self) -> None:
        later, self.later = self.later, None
        if later is not None:
            later(self)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from edgeveil.registry import nearest

            known = nearest(str(value), [str(one) for one in action.choices])
            raise argparse.ArgumentError(action, f"unknown '{value}', {known}")

    def error(self, message: str) -> NoReturn:
        stop = "" if message.endswith("?") else "."
        self.exit(2, f"{self.prog}: {message}{stop} See {self.prog} --help\n")


def add_row(commands: Subparsers, row: CommandRow) -> CommandParser:
    """Add one command to argparse's subparsers, with its examples below its options."""
    first, _, rest = row.about.partition("\n")
    text = f"{first}\n{dedent(rest)}".strip("\n")
    found = re.search(r"^(edgeveil|eval) ", text, re.MULTILINE)
    at = len(text) if found is None else found.start()
    examples = "\n".join(f"  {line}" for line in text[at:].splitlines())
    made: CommandParser = commands.add_parser(
        row.path.rpartition(" ")[2],
        help=row.help,
        description=text[:at].rstrip() or f"{row.help[0].upper()}{row.help[1:]}.",
        epilog=f"examples:\n{examples}" if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for one in row.arguments:
        where = made.add_mutually_exclusive_group() if isinstance(one, list) else made
        for name, settings in one if isinstance(one, list) else [one]:
            where.add_argument(name, **settings)
    if row.handler:
        made.set_defaults(handler=row.handler)
    return made


def answer(
    args: argparse.Namespace, lines: Iterable[str], fields: Mapping[str, Any], *, ok: bool = True
) -> int:
    """Print the lines, or with `--json` an object of the fields; returns 0, or 1 if not `ok`."""
    if args.json:
        print(json.dumps({"command": args.command, "ok": ok, **fields}, allow_nan=False))
    else:
        for line in lines:
            print(line)
    return 0 if ok else 1


def print_next(line: str) -> None:
    """Print the usual next command to standard error, except with `-q`."""
    import logging

    if logging.getLogger("edgeveil").level <= logging.WARNING:
        print(f"Next: {line}", file=sys.stderr)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def load_as(kind: type[S], path: Path) -> S:
    """Load a site file of the given kind; raises ConfigError or UsageError."""
    from edgeveil.config.site_files import load_site

    site = load_site(path)
    if isinstance(site, kind):
        return site
    wanted, found = kind.__name__.removesuffix("Site").lower(), role_of(site)
    what = f"is a{'n' * (found == 'edge')} {found} site file, wanted a{'n' * (wanted == 'edge')}"
    raise UsageError(f"{what} {wanted} one", where=str(path), fix=f"pass it to edgeveil {found}")


def role_of(site: Site) -> str:
    return type(site).__name__.removesuffix("Site").lower()


def load_edge(path: Path) -> EdgeSite:
    """Load a device's site file, and admit the plug-ins that its owner allows."""
    from edgeveil import plugins
    from edgeveil.config.edge import EdgeSite

    site = load_as(EdgeSite, path)
    plugins.admit(site.policy.allowed_plugins)
    return site
