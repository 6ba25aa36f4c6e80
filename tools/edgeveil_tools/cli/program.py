"""The command `edgeveil`: parses the command line, runs one command, prints errors as text.

Exit codes: 0 done, 1 unexpected, 2 configuration or usage, 3 broker, 4 data, 5 privacy, 6 the job
failed, 7 protocol, 8 encryption, 130 interrupted. EDGEVEIL_DEBUG=1 shows the origin of an
unexpected error."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from edgeveil.errors import INTERRUPTED, ConfigError, EdgeVeilError, UsageError, needs_extra
from edgeveil.heap import keep_memory_private
from edgeveil_tools import lifeline
from edgeveil_tools.cli.commands import COMMANDS, GROUPS
from edgeveil_tools.cli.common import CommandParser, CommandRow, Subparsers, add_row

_ABOUT = "Private federated learning for edge boxes, over MQTT."
_EXAMPLES = """\
first steps:
  edgeveil check                                check this machine
  edgeveil init --out my-job                    write a job that is ready to run
  edgeveil run my-job/job.yaml --out out/mine

`edgeveil COMMAND --help` explains a command with examples.
"""
SHELLS = ("bash", "zsh", "fish", "tcsh")
LABORATORY = ("loadtest", "capacity", "audit", "attack", "reproduce")
"""Commands of the distribution edgeveil-lab."""
EXTRAS = {
    **dict.fromkeys(("job", "ledger"), "client"),
    **dict.fromkeys(("predict", "edge personalise"), "infer"),
    "cloud": "cloud",
    "proxy": "proxy",
    "edge": "train",
}
"""The extra that a command, or all commands of a group, need; default: `tools`."""
COMMON = (
    (("--json",), "print one JSON object: command, ok and the result"),
    (("-v", "--verbose"), "log more"),
    (("-q", "--quiet"), "log only errors, no hints"),
    (("--version",), "print the version"),
)
"""Options of every command, before or after its name."""


class _TopParser(CommandParser):
    def format_help(self) -> str:
        (commands,) = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        known = {str(one.dest): str(one.help) for one in commands._choices_actions}
        grouped = {name for names in GROUPS.values() for name in names}
        groups = GROUPS | {"more": tuple(name for name in known if name not in grouped)}
        width = max(map(len, known))
        lines = [self.format_usage(), _ABOUT, ""]
        for title, names in groups.items():
            there = [f"  {name:<{width}}  {known[name]}" for name in names if name in known]
            lines += [f"{title}:", *there, ""] if there else []
        if missing := [name for name in LABORATORY if name not in known]:
            lines += [f"{', '.join(missing)}: pip install edgeveil-lab", ""]
        lines += ["with every command:"]
        lines += [f"  {', '.join(names):<15}  {text}" for names, text in COMMON]
        lines += ["", f"edgeveil --completion SHELL prints a script for {', '.join(SHELLS)}"]
        return "\n".join([*lines, "", self.epilog or ""])


def parser(wanted: str = "") -> CommandParser:
    """Return the whole command line, or only the command `wanted`.

    Entry points of the group `edgeveil.commands`, functions that take argparse's subparsers, add
    commands of other distributions. Raises UsageError for a command of a missing laboratory."""
    top = _TopParser(
        prog="edgeveil",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.set_defaults(extra="tools")
    top.add_argument(
        "--completion",
        choices=SHELLS,
        metavar="SHELL",
        help=f"print the script that completes commands in {', '.join(SHELLS)}",
    )
    for names, text in COMMON:
        top.add_argument(*names, action="store_true", help=text)
    commands = top.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    ours = {row.path.partition(" ")[0] for row in COMMANDS}
    inner: dict[str, Subparsers] = {"": commands}
    for row in COMMANDS:
        if wanted not in ours or row.path.partition(" ")[0] == wanted:
            _add(row, inner)
    if wanted not in ours:
        from importlib.metadata import entry_points

        for point in entry_points(group="edgeveil.commands"):
            point.load()(commands)
        if wanted in LABORATORY and wanted not in commands.choices:
            what, fix = "needs the laboratory, which is not installed", "pip install edgeveil-lab"
            raise UsageError(what, where=f"edgeveil {wanted}", fix=fix)
    return top


def _add(row: CommandRow, inner: dict[str, Subparsers]) -> None:
    group = row.path.rpartition(" ")[0]
    made = add_row(inner[group], row)
    if row.handler:
        extra = EXTRAS.get(row.path) or EXTRAS.get(group) or "tools"
        made.set_defaults(extra=extra, command=row.path)
    if any(other.path.startswith(f"{row.path} ") for other in COMMANDS):
        inner[row.path] = made.add_subparsers(
            title="sub-commands", metavar="SUB-COMMAND", required=not row.handler
        )


def run() -> int:
    """Run `main` as a whole process; Ctrl-C is ignored once it is interrupted."""
    if (code := main()) == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code, never raises for user errors."""
    given = list(sys.argv[1:] if argv is None else argv)
    words, common = _without_common(given)
    if common["version"]:
        from importlib import metadata

        print(f"edgeveil {metadata.version('edgeveil')}")
        return 0
    try:
        top = parser(words[0] if words else "")
        args = top.parse_args(words)
    except UsageError as error:
        return _print_error(str(error), error.exit_code)
    except SystemExit as stop:  # argparse has printed why
        return int(stop.code or 0)
    if args.completion:
        args.handler, args.extra = "setup.completion:command", "client"
    if not hasattr(args, "handler"):
        top.print_help()
        return UsageError.exit_code
    args.json = common["json"]
    if not hasattr(args, "command"):
        args.command = words[0]
    line = shlex.join(["edgeveil", *given])
    args.command_line = re.sub(r"://\S*@", "://…@", line)  # a URL may hold a password
    if common["verbose"] or common["quiet"]:
        from edgeveil import logs

        logs.ask("debug" if common["verbose"] else "error")
    lifeline.watch()
    keep_memory_private()
    gc.set_threshold(20_000, 20, 20)  # imports make no garbage: looking for it takes a quarter more
    return _run_handler(args)


def _without_common(words: list[str]) -> tuple[list[str], dict[str, bool]]:
    own = words[: words.index("--")] if "--" in words else words
    found = {names[-1][2:]: bool({*names} & {*own}) for names, _ in COMMON}
    common = {name for names, _ in COMMON for name in names}
    return [one for one in own if one not in common] + words[len(own) :], found


def _run_handler(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code, prints errors as text and, with `--json`, JSON."""
    handler = args.handler
    try:
        if isinstance(handler, str):
            module, _, function = handler.partition(":")
            handler = getattr(import_module(f"edgeveil_tools.{module}"), function)
        with needs_extra(args.extra):
            code = int(handler(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except ConfigError as error:  # lines begin with the place, as a compiler's
        print(error, file=sys.stderr)
        problems, code = error.problems, error.exit_code
    except Exception as error:
        text, code = _explained(error)
        _print_error(text, code)
        problems = [text]
    if args.json:
        print(json.dumps({"command": args.command, "ok": False, "problems": problems}))
    return code


def _explained(error: Exception) -> tuple[str, int]:
    """Return the text of an error and its exit code; raises it again with EDGEVEIL_DEBUG."""
    if isinstance(error, EdgeVeilError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += ". Free some space and repeat the command: it completes the interrupted work"
        return text, EdgeVeilError.exit_code
    if os.environ.get("EDGEVEIL_DEBUG"):
        raise error
    what = f"unexpected {type(error).__name__}: {error}"
    fix = "Set EDGEVEIL_DEBUG=1 to see where"
    if str(error) == "can't start new thread":
        what, fix = str(error), "Raise TasksMax or --pids-limit, or free memory"
    return f"{what}. {fix}", EdgeVeilError.exit_code


def _print_error(text: str, code: int) -> int:
    from edgeveil.logs import printable

    print("\n".join(map(printable, f"edgeveil: {text}".split("\n"))), file=sys.stderr)
    return code
