"""The leader of a test: starts generators, collects their reports, sends commands."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from edgeveil.errors import JobFailed
from edgeveil_lab.load.counters import DurationHistogram, RoundKey
from edgeveil_lab.load.generator import FleetShare, GeneratorReport, generate
from edgeveil_lab.load.processes import ChildProcesses
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import LoadFleet, TargetCell

Rows = dict[RoundKey, dict[str, Any]]


class Leader(ChildProcesses):
    """Runs `options.processes` generators for each cell of `where`; thread-safe."""

    def __init__(
        self, options: LoadOptions, fleet: LoadFleet, where: Mapping[str, TargetCell]
    ) -> None:
        self._options, self._fleet, self._sites = options, fleet, where
        self._cells = list(where)
        super().__init__("edgeveil loadtest")
        self._failure: JobFailed | None = None
        self._stopping, self._lock = False, threading.Lock()
        self.reports: dict[str, GeneratorReport] = {}
        self._rounds: dict[str, Rows] = {}  # by generator; its reports hold only the newest

    def shares(self) -> dict[str, FleetShare]:
        cells, found = len(self._cells), {}
        of = self._options.processes * cells
        for number in range(of):
            cell = self._cells[number % cells]
            mine = self._fleet.dealt(number % cells, cells)
            mine = mine.dealt(number // cells, self._options.processes)
            share = FleetShare(of, self._options, mine.members, cell, self._sites[cell])
            found[f"generator-{number + 1}"] = share
        return found

    def begin(self) -> None:
        for name, share in self.shares().items():
            self.start(name, generate, share)

    def command(self, command: str) -> None:
        self._stopping = command == "stop"
        self.send(command)

    def all_in(self, *states: str) -> bool:
        """Return whether every generator's last report is in one of these states."""
        self._receive()
        found = [report.state for report in self.reports.values()]
        return len(found) == len(self.pids) and set(found) <= set(states)

    def check(self) -> None:
        """Raise JobFailed if a generator failed, or ended without `stop`."""
        self._receive()
        if self._failure is not None and not self._stopping:
            raise self._failure

    def _receive(self) -> None:
        with self._lock:
            try:
                for name, report in self.received():
                    if report is not None:
                        self.take(name, report)
                    elif not self._stopping:
                        raise JobFailed(f"{name} ended by itself", where="edgeveil loadtest")
            except JobFailed as error:
                self._failure = self._failure or error

    def take(self, name: str, report: GeneratorReport) -> None:
        self.reports[name] = report
        self._rounds.setdefault(name, {}).update(report.counters["rounds"])

    def totals(self, cell: str | None = None) -> FleetTotals:
        self._receive()
        cells = {name: share.cell for name, share in self.shares().items()} if cell else {}
        mine = [name for name in self.reports if not cell or cells[name] == cell]
        counted = [self.reports[name].counters for name in mine]
        return FleetTotals(counted, [self._rounds[name] for name in mine])


class FleetTotals:
    """Counts of several generators; `rounds`: those of each round and attempt."""

    def __init__(self, counted: list[dict[str, Any]], rounds: list[Rows]) -> None:
        self._counted = counted
        self.counts, self.refused = Counter[str](), Counter[str]()
        for counters in counted:
            self.counts.update({n: v for n, v in counters.items() if isinstance(v, int)})
            self.refused.update(counters["refused"])
        # Every generator reads the same commit records.
        repeated = max((int(t["repeated"]) for t in counted), default=0)
        self.counts["duplicated"] = self.counts["contradicted"] + repeated
        self.rounds: Rows = {}
        for key in dict.fromkeys(key for rows in rounds for key in rows):
            found = [rows[key] for rows in rounds if key in rows]
            row = self.rounds[key] = {}
            for name in found[0]:
                known = [one[name] for one in found if one[name] is not None]
                pick = {"first_offer_s": min, "last_ack_s": max}.get(name, sum)
                row[name] = pick(known) if known else None

    def histogram(self, name: str) -> DurationHistogram:
        return DurationHistogram.merged(counters[name] for counters in self._counted)

    def connecting_s(self) -> float:
        """Return the seconds from the first dial to the last new connection."""
        first = [t["first_dial_s"] for t in self._counted if t["first_dial_s"] is not None]
        last = [t["last_up_s"] for t in self._counted if t["last_up_s"] is not None]
        return max(last) - min(first) if first and last else 0.0
