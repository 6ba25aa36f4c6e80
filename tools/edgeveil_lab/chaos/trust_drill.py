"""`edgeveil chaos --drill`: the acts of the trust drill, one after the other, and what must hold.

DIR gets `drill.json`, `report.html` and `logs/`; with `keep` the whole site stays too.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import edgeveil_tools
from edgeveil.errors import INTERRUPTED
from edgeveil_lab.chaos.checks import CheckOutcome
from edgeveil_lab.chaos.command import checks_json, interrupt, prepare, show_checks
from edgeveil_lab.chaos.evidence import DeviceFacts, device_facts, stored_jobs
from edgeveil_lab.chaos.trust_acts import CLOUD_STORE, DEVICES, DrillAct, TrustActs
from edgeveil_lab.chaos.trust_checks import DrillEvidence, check_drill
from edgeveil_lab.chaos.trust_fleet import TrustFleet
from edgeveil_tools.display import LiveDisplay
from edgeveil_tools.local.children import scratch
from edgeveil_tools.local.run import signals
from edgeveil_tools.pages import write_page
from edgeveil_tools.result import write_json, writing

JOB = Path(edgeveil_tools.__file__).parent / "templates" / "drill.yaml"
FILES = ("drill.json", "report.html")


def run_drill(out: Path, *, as_json: bool = False, keep: bool = False) -> int:
    """0 when every check holds, 1 on any violation, 130 after Ctrl-C with everything ended.

    Raises UsageError or JobFailed where the fleet could not be planned.
    """
    logs = prepare(out, FILES)
    view = DrillView(sys.stderr if as_json else sys.stdout)
    with signals(signal.SIG_IGN), scratch(keep=keep, in_memory=False) as folder:
        fleet: TrustFleet | None = None
        acts: TrustActs | None = None
        interrupted = False
        try:
            with signals(interrupt), view:
                view.note(f"A fleet of {DEVICES} devices is planned and installed; logs in {logs}")
                fleet = TrustFleet(folder, logs, DEVICES)
                acts = TrustActs(fleet, JOB.read_bytes(), folder, view.show)
                acts.play()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if fleet is not None:
                gone = fleet.gone()
                fleet.stop()
        if keep:
            view.note(f"The site is kept in {folder}")
        if interrupted or fleet is None or acts is None:
            view.note("Interrupted; nothing was checked")
            return INTERRUPTED
        found = collected(fleet, acts, gone)
    result = result_of(found, check_drill(found), acts.now_s())
    with writing(out):
        write_json(out / "drill.json", result)
        write_page(out / "report.html", "drill.html", {"result": result}, {})
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
    else:
        show_drill(view.console, result)
        view.note(f"Files: {out}/ with {', '.join(FILES)}, logs/")
    return 0 if result["ok"] else 1


def collected(fleet: TrustFleet, acts: TrustActs, gone: Sequence[str]) -> DrillEvidence:
    """What lies on the disks of a fleet whose processes have ended."""
    boxes = {
        box: device_facts(fleet.state(box), number, trains=True)
        for number, box in enumerate(fleet.boxes, start=1)
    }
    others: dict[str, tuple[DeviceFacts, ...]] = {}
    for store in acts.notes.others:
        facts = device_facts(store.state, boxes[store.box].number, trains=True)
        others[store.box] = (*others.get(store.box, ()), facts)
    return DrillEvidence(
        jobs=tuple(
            job
            for store in (*acts.notes.lost_stores, fleet.state("cloud") / CLOUD_STORE)
            for job in stored_jobs(store)
        ),
        boxes=boxes,
        others=others,
        acts=acts.acts,
        notes=acts.notes,
        logs={path.stem: path.read_text("utf-8", "replace") for path in fleet.logs.glob("*.log")},
        gone=gone,
        late=fleet.late,
    )


def result_of(
    found: DrillEvidence, checked: Sequence[CheckOutcome], seconds: float
) -> dict[str, Any]:
    """The content of `drill.json`: plain values, times in seconds since the drill's beginning."""
    return {
        "ok": all(one.holds for one in checked),
        "devices": len(found.boxes),
        "revoked": sorted(found.notes.revoked),
        "seconds": seconds,
        "acts": [asdict(act) for act in found.acts],
        "jobs": [
            {"id": job.id, "status": job.status, "reason": job.reason, "rounds": len(job.commits)}
            for job in found.jobs
        ],
        "checks": checks_json(checked),
    }


class DrillView(LiveDisplay):
    """The act under way and its steps: live on a terminal, else a line for each."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(Console(file=stream, highlight=False))
        self._act: DrillAct | None = None
        self._begun_s, self._acts, self._steps = time.monotonic(), 0, 0

    def show(self, act: DrillAct) -> None:
        """How the act under way stands."""
        if act is not self._act:
            self._act, self._steps = act, 0
            self._acts += 1
            self.note(f"{act.at_s:6.1f} s  {act.name}")
        for at_s, said in act.steps[self._steps :]:
            self.note(f"{at_s:6.1f} s    {said}")
        self._steps = len(act.steps)

    def picture(self) -> RenderableType:
        bar = ProgressBar(total=len(TrustActs.ACTS), completed=max(0, self._acts - 1), width=28)
        doing = "planning" if self._act is None else self._act.name
        head = Table.grid(padding=(0, 1))
        head.add_row(bar, Text(doing, style="bold"), f"{time.monotonic() - self._begun_s:.0f} s")
        return head


def show_drill(console: Console, result: Mapping[str, Any]) -> None:
    """The acts and how long each took, then the checks with every violation."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("act", "seconds", "outcome"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for act in result["acts"]:
        outcome = "[red]failed[/]" if act["failed"] else "[green]played[/]"
        table.add_row(act["name"], f"{act['seconds']:.1f}", outcome)
    console.print()
    console.print(table)
    show_checks(console, result["checks"])
    console.print()
