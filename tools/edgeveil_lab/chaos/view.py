"""What a person sees of a chaos run: a live line or two, and a table at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edgeveil_lab.chaos.course import State
from edgeveil_tools.display import LiveDisplay

_LINE_EVERY_S = 10.0
_FULL = {
    "full": "a file system without a free block",
    "limit": "a limit on the size of files: no file system may be mounted here",
}


class View(LiveDisplay):
    """Live on a terminal, else a line now and then."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(Console(file=stream, highlight=False))
        self._state, self._said = State(), ("", -_LINE_EVERY_S)

    def show(self, state: State) -> None:
        """How it stands."""
        self._state = state
        what, when_s = self._said
        due = state.doing != what or state.elapsed_s - when_s >= _LINE_EVERY_S
        if not self.live and due:
            self._said = (state.doing, state.elapsed_s)
            self.note(f"{state.elapsed_s:6.1f} s  {state.doing}: {' · '.join(_figures(state))}")

    def picture(self) -> RenderableType:
        state = self._state
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(1, state.faults), completed=state.faults_done, width=28)
        head.add_row(bar, Text(state.doing, style="bold"), f"{state.elapsed_s:.0f} s")
        return Group(head, Text(" · ".join(_figures(state)), no_wrap=True))


def show_result(console: Console, result: Mapping[str, Any]) -> None:
    """Faults, then checks with what they looked at, then every violation."""
    faults, links = result["faults"], result["links"].values()
    hit = {
        what: sum(link.get(what, 0) for link in links)
        for what in ("cut", "delayed", "corrupted", "duplicated")
    }
    ends = sum(row["by_itself"] for row in result["processes"].values())
    rows = [
        ("faults", ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))),
        ("a full disk", _FULL[result["disk_by"]]),
        ("packets", ", ".join(f"{count} {what}" for what, count in hit.items())),
        (
            "processes",
            f"{sum(r['starts'] for r in result['processes'].values())} starts, {ends} gave up",
        ),
        (
            "jobs",
            f"{len(result['jobs'])}, resumed {sum(j['resumed'] for j in result['jobs'])} times",
        ),
        (
            "rounds",
            f"{len(result['rounds'])} in {sum(j['attempts'] for j in result['jobs'])} attempts,"
            f" {result['rounds_during_faults']} rounds during the faults",
        ),
        ("uploads", ", ".join(f"{n} {state}" for state, n in sorted(result["receipts"].items()))),
        ("seconds", f"{result['seconds']:.0f}"),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(name, value)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("check", "looked at", "outcome"):
        table.add_column(column, justify="right" if column == "looked at" else "left")
    for check in result["checks"]:
        count = len(check["violations"]) + check["more"]
        outcome = f"[red]{count} violations[/]" if count else "[green]holds[/]"
        table.add_row(check["about"], str(check["looked"]), outcome)
    console.print()
    console.print(grid)
    console.print()
    console.print(table)
    for check in result["checks"]:
        for line in check["violations"]:
            console.print(f"  {escape(line)}", style="red", soft_wrap=True)
    for line in result["warnings"]:
        console.print(f"  warning: {escape(line)}", style="yellow", soft_wrap=True)
    console.print()


def _figures(state: State) -> list[str]:
    jobs = ", ".join(f"{count} {status}" for status, count in sorted(state.jobs.items()))
    return [
        f"{state.kills_done} kills",
        f"{state.faults_done}/{state.faults} faults",
        f"{state.starts} starts",
        f"{state.online} online",
        f"jobs: {jobs or 'none'}",
        f"round {state.committed}",
    ]
