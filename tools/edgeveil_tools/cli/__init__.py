"""The command `edgeveil`: `program` implements it, but for a fast path of `health`.

A health check runs every few seconds, also on an overloaded machine: it imports only `probe` and
the standard library."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # `typing` itself costs 5 ms
if TYPE_CHECKING:
    from edgeveil_tools.cli.program import main, parser

__all__ = ["main", "parser", "run"]


def run() -> int:
    if sys.argv[1:2] == ["health"]:
        from edgeveil_tools.probe import quick_health

        code = quick_health(sys.argv[2:])
        if code is not None:
            return code
    from edgeveil_tools.cli.program import run

    return run()


def __getattr__(name: str) -> object:
    if name not in ("main", "parser"):
        raise AttributeError(name)
    from edgeveil_tools.cli import program

    return getattr(program, name)
