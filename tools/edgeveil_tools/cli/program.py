"""The command `edgeveil`: reads the command line, runs one command, says errors as text.

Exit codes: 0 done, 1 unexpected, 2 configuration or usage, 3 broker, 4 data, 5 privacy,
6 the job failed, 7 protocol, 8 encryption, 130 interrupted. Set EDGEVEIL_DEBUG=1 to see where an
unexpected error came from.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Sequence

from edgeveil.errors import INTERRUPTED, ConfigError, EdgeVeilError, UsageError, needs_extra
from edgeveil.heap import keep_memory_private
from edgeveil.logs import printable
from edgeveil_tools import lifeline
from edgeveil_tools.cli import backup as cli_backup
from edgeveil_tools.cli import deploy as cli_deploy
from edgeveil_tools.cli import fleet as cli_fleet
from edgeveil_tools.cli import jobs as cli_jobs
from edgeveil_tools.cli import learning as cli_learning
from edgeveil_tools.cli import ledger as cli_ledger
from edgeveil_tools.cli import parts as cli_parts
from edgeveil_tools.cli import processes as cli_processes
from edgeveil_tools.cli import releases as cli_releases
from edgeveil_tools.cli import setup as cli_setup
from edgeveil_tools.cli import sites as cli_sites
from edgeveil_tools.cli import trust as cli_trust
from edgeveil_tools.cli.common import CommandParser
from edgeveil_tools.cli.successors import refuse_retired

_ABOUT = "Private federated learning for edge boxes, over MQTT."
_EXAMPLES = """\
first steps:
  edgeveil doctor                               what this machine has and lacks
  edgeveil init --out my-job                    a job that plays right away
  edgeveil run my-job/job.yaml --out out/mine

`edgeveil COMMAND --help` explains a command with examples.
"""

Handler = Callable[[argparse.Namespace], int]

_GROUPS = {
    "learn": ("init", "plan", "run", "report", "predict", "serve"),
    "data, models and what a job may name": ("validate", "schema", "methods", "data", "backbone"),
    "watch and steer jobs": ("job", "releases"),
    "run the processes": ("broker", "cloud", "proxy", "edge", "health"),
    "deploy a fleet": ("site", "deploy", "trust", "backup", "restore"),
    "privacy and audit": ("ledger", "audit", "attack"),
    "test and measure": ("loadtest", "capacity", "reproduce"),
    "this program": ("doctor", "completion", "version"),
}
"""The commands in `edgeveil --help`, by task; one that is in none stands at the end."""
_LABORATORY = ("loadtest", "capacity", "audit", "attack", "reproduce")
"""Commands of the distribution edgeveil-lab."""


class _TopParser(CommandParser):
    """The parser of `edgeveil` itself, whose help has the commands in groups, each in one line."""

    def format_help(self) -> str:
        """As its base does."""
        (commands,) = (a for a in self._actions if isinstance(a, argparse._SubParsersAction))
        known = {str(one.dest): str(one.help) for one in commands._choices_actions}
        grouped = {name for names in _GROUPS.values() for name in names}
        groups = _GROUPS | {"more": tuple(name for name in known if name not in grouped)}
        width = max(map(len, known))
        lines = [self.format_usage(), _ABOUT, ""]
        for title, names in groups.items():
            there = [f"  {name:<{width}}  {known[name]}" for name in names if name in known]
            lines += [f"{title}:", *there, ""] if there else []
        if missing := [name for name in _LABORATORY if name not in known]:
            lines += [f"{', '.join(missing)}: pip install edgeveil-lab", ""]
        return "\n".join([*lines, self.epilog or ""])


def parser(wanted: str = "") -> argparse.ArgumentParser:
    """The whole command line. Each command sets `handler` and, where it needs one, `extra`.

    Other distributions add commands by entry points of the group `edgeveil.commands`, each a
    function that takes argparse's subparsers. They are looked for unless `wanted` is a command of
    this distribution.

    Raises UsageError where `wanted` is a command of the laboratory, which is not installed.
    """
    top = _TopParser(
        prog="edgeveil",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.set_defaults(extra="tools")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", parser_class=CommandParser)
    own = (
        *(cli_learning, cli_jobs, cli_releases, cli_processes, cli_sites, cli_fleet),
        *(cli_deploy, cli_backup, cli_trust, cli_parts, cli_ledger, cli_setup),
    )
    for part in own:
        part.add(commands)
    if wanted not in commands.choices:
        from importlib.metadata import entry_points

        for point in entry_points(group="edgeveil.commands"):
            point.load()(commands)
        if wanted in _LABORATORY and wanted not in commands.choices:
            raise UsageError(
                "needs the laboratory, which is not installed",
                where=f"edgeveil {wanted}",
                fix="pip install edgeveil-lab",
            )
    return top


def run() -> int:
    """`main` as a whole process: a Ctrl-C more, while it ends, changes nothing."""
    code = main()
    if code == INTERRUPTED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code and never raises for what a user may do."""
    words = sys.argv[1:] if argv is None else argv
    try:
        refuse_retired(words)
        top = parser(words[0] if words else "")
        args = top.parse_args(words)
    except UsageError as error:
        return _say(str(error), error.exit_code)
    except SystemExit as stop:  # argparse has printed why
        return int(stop.code or 0)
    if not hasattr(args, "handler"):
        top.print_help()
        return UsageError.exit_code
    line = shlex.join(["edgeveil", *words])
    args.command_line = re.sub(r"://\S*@", "://…@", line)  # a URL may hold a password
    lifeline.watch()
    keep_memory_private()
    try:
        with needs_extra(args.extra):
            code = int(args.handler(args))
        sys.stdout.flush()
    except ConfigError as error:  # its lines begin with the place, as compilers' do
        print(error, file=sys.stderr)
        code = error.exit_code
    except EdgeVeilError as error:
        code = _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except OSError as error:
        text = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            text += ". Free some space, and say it again: what was begun is ended then"
        code = _say(text, EdgeVeilError.exit_code)
    except Exception as error:
        if os.environ.get("EDGEVEIL_DEBUG"):
            raise
        what = f"unexpected {type(error).__name__}: {error}"
        fix = "Set EDGEVEIL_DEBUG=1 to see where"
        if str(error) == "can't start new thread":
            what, fix = str(error), "Raise TasksMax or --pids-limit, or free memory"
        code = _say(f"{what}. {fix}", EdgeVeilError.exit_code)
    return code


def _say(text: str, code: int) -> int:
    print("\n".join(map(printable, f"edgeveil: {text}".split("\n"))), file=sys.stderr)
    return code
