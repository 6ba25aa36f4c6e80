"""Small shared pieces of the command line."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgeveil.errors import UsageError

if TYPE_CHECKING:
    from edgeveil.sites.edge import EdgeSite
    from edgeveil.sites.files import Site

Subparsers = Any  # argparse keeps the type of its sub-commands private
S = TypeVar("S", bound="Site")


class CommandParser(argparse.ArgumentParser):
    """A command's parser; `later` adds options that are costly to find out, once they are asked."""

    later: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As its base does."""
        self.add_later()
        return super().parse_known_args(args, namespace)

    def add_later(self) -> None:
        """Add these options now; a second time it does nothing."""
        later, self.later = self.later, None
        if later is not None:
            later(self)


def command(
    commands: Subparsers, name: str, help_text: str, *, about: str = "", examples: str = ""
) -> CommandParser:
    """Add one command; `examples` stand below its options in `--help`."""
    lines = "\n".join(f"  {line}" for line in examples.strip().splitlines())
    made: CommandParser = commands.add_parser(
        name,
        help=help_text,
        description=about or f"{help_text[0].upper()}{help_text[1:]}.",
        epilog=f"examples:\n{lines}" if lines else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return made


def load_as(kind: type[S], path: Path) -> S:
    """The site file `path`, which must be of this kind. ConfigError or UsageError otherwise."""
    from edgeveil.sites.files import load_site

    site = load_site(path)
    if isinstance(site, kind):
        return site
    wanted = kind.__name__.removesuffix("Site").lower()
    found = type(site).__name__.removesuffix("Site").lower()
    raise UsageError(
        f"is {_article(found)} site file, wanted {_article(wanted)} one",
        where=str(path),
        fix=f"pass it to `edgeveil {found}`",
    )


def print_audit(entries: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print what administrators did, a line each, the oldest first."""
    for entry in entries:
        if as_json:
            print(json.dumps(entry))
        else:
            what = ", ".join(f"{key} {value}" for key, value in entry["what"].items())
            print(f"{entry['number']:>4}  {entry['time']}  {entry['action']:<8} {what}".rstrip())


def say_next(line: str) -> None:
    """The command that most people go on with; beside what a script may read."""
    print(f"Next: {line}", file=sys.stderr)


def load_edge(path: Path) -> EdgeSite:
    """A device's site file; from then on the process takes the plug-ins that its owner allows."""
    from edgeveil import plugins
    from edgeveil.sites.edge import EdgeSite

    site = load_as(EdgeSite, path)
    plugins.admit(site.policy.allowed_plugins)
    return site


def _article(kind: str) -> str:
    return f"an {kind}" if kind == "edge" else f"a {kind}"


def add_track(parser: argparse.ArgumentParser) -> None:
    """`--track`: MLflow or TensorBoard."""
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="WHERE",
        help="log to mlflow:URI or tensorboard:DIR too; may be given again",
    )


def add_ray(parser: argparse.ArgumentParser) -> None:
    """`--ray`: a cluster that simulates."""
    parser.add_argument(
        "--ray",
        metavar="HOST:PORT",
        help="simulate on a Ray cluster, or with `local` on a Ray started for the run",
    )
