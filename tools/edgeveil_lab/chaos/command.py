"""`edgeveil chaos`: one run from the job file to the verdict.

DIR gets `chaos.json`, `report.html` and `logs/`; with `keep` the whole site stays too.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

from markupsafe import Markup
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import edgeveil_tools
from edgeveil.errors import INTERRUPTED
from edgeveil.jobs import Job
from edgeveil_lab.chaos.checks import (
    SHOWN,
    CheckOutcome,
    check_all,
    rounds_during_faults,
    tally,
    warnings,
)
from edgeveil_lab.chaos.compute import check_engine
from edgeveil_lab.chaos.evidence import Evidence, collect
from edgeveil_lab.chaos.run import ChaosOptions, ChaosProgress, ChaosRun
from edgeveil_lab.chaos.supervisor import own_disks
from edgeveil_tools.display import LiveDisplay
from edgeveil_tools.local.children import scratch
from edgeveil_tools.local.data import check_data
from edgeveil_tools.local.fleet import WORKERS
from edgeveil_tools.local.job import Overrides, local_job
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.run import signals
from edgeveil_tools.pages import write_page
from edgeveil_tools.report.plots import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, svg_figure
from edgeveil_tools.result import write_json, writing
from edgeveil_tools.site.brokers import choose_engine

JOB = Path(edgeveil_tools.__file__).parent / "templates" / "chaos.yaml"
FILES = ("chaos.json", "report.html")


def run_chaos(
    path: Path,
    out: Path,
    overrides: Overrides,
    asked: ChaosOptions,
    *,
    as_json: bool = False,
    keep: bool = False,
) -> int:
    """0 when every check holds, 1 on any violation, 130 after Ctrl-C with everything ended.

    Raises ConfigError, UsageError, DataError or BrokerError before anything has started, and
    JobFailed where the site did not start.
    """
    job, run = _job(path, overrides)
    check_data(job, run)
    check_engine(asked.engine)
    choose_engine(run.broker)
    logs = prepare(out, FILES)
    view = ChaosView(sys.stderr if as_json else sys.stdout)
    # A second Ctrl-C must not leave processes behind; stopping takes a few seconds at most.
    with (
        signals(signal.SIG_IGN),
        scratch(keep=keep, in_memory=False) as folder,
        own_disks(folder, keep=keep) as disks,
    ):
        chaos: ChaosRun | None = None
        interrupted = False
        try:
            with signals(interrupt), view:
                chaos = ChaosRun(job, run, asked, disks, folder, logs, view.show)
                view.note(f"{len(chaos.faults)} faults from seed {asked.seed}; logs in {logs}")
                chaos.run()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if chaos is not None:
                chaos.stop()
        if keep:
            view.note(f"The site is kept in {folder}")
        if interrupted or chaos is None:
            view.note("Interrupted; nothing was checked")
            return INTERRUPTED
        found = collect(chaos.site.site, logs, chaos.site.wrong)
        checked = check_all(found, chaos.facts())
    broker = chaos.site.brokers["cloud"].name
    result = result_of(chaos, found, checked, broker=broker, workers=run.workers or WORKERS)
    _tell(result, out, view, as_json=as_json)
    return 0 if result["ok"] else 1


def _job(path: Path, overrides: Overrides) -> tuple[Job, LocalRun]:
    """Where only cells are asked for, each has as many devices as the job's one cell."""
    cells, devices = overrides.cells or 1, overrides.devices
    if cells > 1 and devices is None:
        _, alone = local_job(path, replace(overrides, cells=None))
        devices = cells * alone.devices
    return local_job(path, replace(overrides, devices=devices))


def _tell(result: dict[str, Any], out: Path, view: ChaosView, *, as_json: bool) -> None:
    with writing(out):
        write_json(out / "chaos.json", result)
        write_report(result, out / "report.html")
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
    else:
        show_result(view.console, result)
        view.note(f"Files: {out}/ with {', '.join(FILES)}, logs/")


def prepare(out: Path, files: Sequence[str]) -> Path:
    """Make DIR with an empty `logs`, and take away what an earlier run left. Raises UsageError."""
    logs = out.absolute() / "logs"
    with writing(out):
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        for name in files:
            (out / name).unlink(missing_ok=True)
    return logs


def interrupt(*_: object) -> None:
    """A handler of signals."""
    raise KeyboardInterrupt


# --- the content of `chaos.json` ---


def result_of(
    chaos: ChaosRun, found: Evidence, checked: Sequence[CheckOutcome], *, broker: str, workers: int
) -> dict[str, Any]:
    """Plain values for JSON; times in seconds since the run's beginning."""
    asked = chaos.asked
    facts = chaos.facts()
    resumed = chaos.jobs.resumed
    return {
        "ok": all(one.holds for one in checked),
        "seed": asked.seed,
        "kills": asked.kills,
        "every_s": asked.every_s,
        "broker": broker,
        "devices": len(found.devices),
        "workers": workers,
        "up_s": chaos.up_s,
        "quiet_s": chaos.quiet_s,
        "seconds": chaos.state.elapsed_s,
        "faults": dict(Counter(fault.kind for fault in chaos.faults_done)),
        "touched": dict(facts.touched),
        "disk_by": chaos.disk_by,
        "rounds_during_faults": rounds_during_faults(found, facts),
        "warnings": warnings(found, facts),
        "processes": _processes(chaos),
        "cells": [asdict(one) for one in tally(found)] if len(found.cells) > 1 else [],
        "compute": _compute(chaos, found),
        "links": chaos.site.relays.counts(),
        "jobs": [
            {
                "id": job.id,
                "status": job.status,
                "reason": job.reason,
                "rounds": len(job.commits),
                "attempts": sum(commit.attempt for commit in job.commits),
                "resumed": resumed[job.id],
            }
            for job in found.jobs
        ],
        "rounds": [
            {
                "job": job.id,
                "round": commit.index,
                "attempt": commit.attempt,
                "uploads": commit.uploads,
                "at_s": commit.committed_s - chaos.begun_at,
            }
            for job in found.jobs
            for commit in job.commits
        ],
        "receipts": dict(Counter(r.state for device in found.devices for r in device.receipts)),
        "checks": checks_json(checked),
        "stalled": chaos.stalled,
        "schedule": [asdict(fault) for fault in chaos.faults],
        "ends": [asdict(end) for end in chaos.site.supervisor.ends],
    }


def checks_json(checked: Sequence[CheckOutcome]) -> list[dict[str, Any]]:
    """Each check, with the first of its violations."""
    return [
        {
            "name": one.name,
            "about": one.about,
            "looked": one.looked,
            "violations": one.violations[:SHOWN],
            "more": max(0, len(one.violations) - SHOWN),
        }
        for one in checked
    ]


def _compute(chaos: ChaosRun, found: Evidence) -> dict[str, Any] | None:
    """The workers that open batches: how many were killed, and how many slices others did over."""
    workers = chaos.site.compute
    if workers is None:
        return None
    slices = found.logs.get("cloud", "").count("slice_repeated")
    return {"engine": chaos.asked.engine, "killed": workers.killed, "slices_repeated": slices}


def _processes(chaos: ChaosRun) -> dict[str, dict[str, int]]:
    """How often each was started, killed, and ended by itself."""
    ends = chaos.site.supervisor.ends
    counts = Counter((end.name, end.how) for end in ends)
    return {
        name: {
            "starts": sum(end.name == name for end in ends),
            "killed": counts[name, "killed"],
            "by_itself": counts[name, "by itself"],
        }
        for name in chaos.site.targets.processes
    }


# --- `report.html`: checks, and faults and rounds on one time line ---

_COLOURS = {
    "kill": RED,
    "broker": PURPLE,
    "cut": ORANGE,
    "delay": SKY,
    "corrupt": "#8C5A2B",
    "duplicate": "#B8A500",
    "disk": "#8A8A8A",
}
_ROW_INCHES = 0.28
_LEAST_SHARE = 1 / 160  # of the time line: a bar that can be seen


def write_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the page from the content of `chaos.json`."""
    picture = Markup(timeline(result))  # noqa: S704 - our own drawing
    write_page(path, "chaos.html", {"result": result, "timeline": picture}, {})


def timeline(result: Mapping[str, Any]) -> str:
    """Each target's faults over time, and below them every committed round, as inline SVG."""
    up_s, faults = result["up_s"], result["schedule"]
    targets = sorted({_row(fault) for fault in faults})
    rows = {target: place for place, target in enumerate(targets, start=1)}
    least_s = _LEAST_SHARE * result["seconds"]
    with svg_figure(7.4, 0.9 + _ROW_INCHES * (len(rows) + 1), "chaos") as (figure, done):
        axes = figure.add_subplot()
        for kind, colour in _COLOURS.items():
            mine = [fault for fault in faults if fault["kind"] == kind]
            axes.barh(
                [rows[_row(fault)] for fault in mine],
                [max(least_s, fault["lasts_s"]) for fault in mine],
                left=[up_s + fault["at_s"] for fault in mine],
                height=0.62 if kind == "kill" else 0.4,
                color=colour,
                label=kind,
            )
        times_s = [row["at_s"] for row in result["rounds"]]
        axes.plot(times_s, [0] * len(times_s), "|", color=GREEN, markersize=9, label="round")
        axes.axvspan(result["quiet_s"], result["seconds"], color=BLUE, alpha=0.06, lw=0)
        axes.set_yticks([0, *rows.values()], ["committed", *rows])
        axes.invert_yaxis()
        axes.set_xlim(0, max(1.0, result["seconds"]))
        axes.set_xlabel("seconds; from the shade on, everything comes back")
        figure.legend(loc="outside upper left", ncols=8, handlelength=0.9, columnspacing=1.2)
    return done[0]


def _row(fault: Mapping[str, Any]) -> str:
    """The broker of a side is not the process of that name."""
    return f"broker-{fault['target']}" if fault["kind"] == "broker" else str(fault["target"])


# --- what a person sees: a live line or two, and a table at the end ---

_LINE_EVERY_S = 10.0
_FULL = {
    "full": "a file system without a free block",
    "limit": "a limit on the size of files: no file system may be mounted here",
}


class ChaosView(LiveDisplay):
    """Live on a terminal, else a line now and then."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(Console(file=stream, highlight=False))
        self._state, self._said = ChaosProgress(), ("", -_LINE_EVERY_S)

    def show(self, state: ChaosProgress) -> None:
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
        *((one["cell"], _of_cell(one)) for one in result["cells"]),
        *((("workers", _of_compute(result["compute"])),) if result["compute"] else ()),
        ("seconds", f"{result['seconds']:.0f}"),
    ]
    grid = Table.grid(padding=(0, 2))
    for name, value in rows:
        grid.add_row(name, value)
    console.print()
    console.print(grid)
    show_checks(console, result["checks"])
    for line in result["warnings"]:
        console.print(f"  warning: {escape(line)}", style="yellow", soft_wrap=True)
    console.print()


def _of_cell(one: Mapping[str, Any]) -> str:
    return (
        f"part in {one['rounds']} rounds, {one['acknowledged']} acknowledged uploads in them;"
        f" left out of {one['left_out']}, {one['paid_in_vain']} uploads paid for in vain"
    )


def _of_compute(one: Mapping[str, Any]) -> str:
    return (
        f"{one['killed']} killed that open batches ({one['engine']}), {one['slices_repeated']}"
        " slices opened again"
    )


def show_checks(console: Console, checks: Sequence[Mapping[str, Any]]) -> None:
    """What each looked at and whether it holds, then every violation."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("check", "looked at", "outcome"):
        table.add_column(column, justify="right" if column == "looked at" else "left")
    for check in checks:
        count = len(check["violations"]) + check["more"]
        outcome = f"[red]{count} violations[/]" if count else "[green]holds[/]"
        table.add_row(check["about"], str(check["looked"]), outcome)
    console.print()
    console.print(table)
    for check in checks:
        for line in check["violations"]:
            console.print(f"  {escape(line)}", style="red", soft_wrap=True)


def _figures(state: ChaosProgress) -> list[str]:
    jobs = ", ".join(f"{count} {status}" for status, count in sorted(state.jobs.items()))
    return [
        f"{state.kills_done} kills",
        f"{state.faults_done}/{state.faults} faults",
        f"{state.starts} starts",
        f"{state.online} online",
        f"jobs: {jobs or 'none'}",
        f"round {state.committed}",
    ]
