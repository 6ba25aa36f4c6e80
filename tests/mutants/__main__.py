"""Plant each mutant in a copy of the checkout, and run the test that must find it.

A mutant is killed if its test fails with it and passes without it. An import or syntax error, a
wrong name or a timeout is no find. Exits with 1 if a mutant is not killed."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.mutants.flaws import MUTANTS
from tests.mutants.planting import ROOTS, Mutant, PlantingError, plant

LIMIT_S = 120.0
TOGETHER = 10  # tests per run without a mutant, since most of a run is its start
NO_FIND = (
    "ImportError",
    "ModuleNotFoundError",
    "SyntaxError",
    "IndentationError",
    "NameError",
    "UnboundLocalError",
    "Failed: Timeout",
)


@dataclass(frozen=True)
class Outcome:
    """Result of a test run: `passed`, `failed`, or `broken` without a verdict; and the reason."""

    status: str
    why: str
    seconds: float


@dataclass
class Row:
    """Result of one mutant: `killed`, `survived` or `broken`."""

    mutant: Mutant
    verdict: str
    why: str
    seconds: float


class Place:
    """A copy of the checkout in which one test at a time is run."""

    def __init__(self, checkout: Path, folder: Path, limit_s: float) -> None:
        self.folder, self._limit_s = folder, limit_s
        self._report = folder.with_suffix(".xml")
        self._log = folder.with_suffix(".log")
        self._running: subprocess.Popen[bytes] | None = None
        self._changed: tuple[Path, bytes, os.stat_result] | None = None
        self._planted = 0
        for name in _files(checkout):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(checkout / name, target)

    def start(self, tests: Sequence[str], mutant: Mutant | None) -> None:
        """Run tests, with the mutant planted first; raises `PlantingError`."""
        self._tests = tests
        if mutant is not None:
            path, content = plant(mutant, self.folder)
            before = path.stat()
            self._changed = path, path.read_bytes(), before
            self._planted += 1
            path.write_bytes(content)
            # Bytecode files are compared by whole seconds, so no two plantings may share one.
            os.utime(path, (before.st_mtime + self._planted, before.st_mtime + self._planted))
        self._report.unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(self.folder / root) for root in ROOTS),
            "OMP_NUM_THREADS": "1",
        }
        options = ("-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={self._report}")
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                [sys.executable, "-m", "pytest", *tests, *options],
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._since = time.monotonic()

    def ended(self) -> Outcome | None:
        """Return the outcome and restore the copy; None while the test runs."""
        assert self._running is not None
        seconds = time.monotonic() - self._since
        code = self._running.poll()
        limit_s = self._limit_s * len(self._tests)
        if code is None and seconds <= limit_s:
            return None
        if code is None:
            self.stop()
            return Outcome("broken", f"not done in {limit_s:g} s", seconds)
        self.stop()
        return Outcome(*self._read(code), seconds)

    def stop(self) -> None:
        """End the test and its children, and remove the mutant."""
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()
            self._running = None
        if self._changed is not None:
            path, content, before = self._changed
            path.write_bytes(content)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
            self._changed = None

    def _read(self, code: int) -> tuple[str, str]:
        if not self._report.is_file():
            return "broken", self._last_words()
        cases = list(ElementTree.parse(self._report).iter("testcase"))
        if code == 0:
            ran = {_named(case) for case in cases if case.find("skipped") is None}
            if ran >= {test.partition("[")[0] for test in self._tests}:
                return "passed", ""
            return "broken", "nothing ran: skipped, or no such test"
        for case in cases:
            failure = case.find("failure")
            if failure is not None:
                why = (failure.get("message") or "").strip().replace("\n", " ")
                if why.startswith(NO_FIND):
                    return "broken", why
                return "failed", f"{case.get('name')}: {why}"
        errors = [case.find("error") for case in cases]
        said = [error.get("message") or "" for error in errors if error is not None]
        return "broken", said[0].replace("\n", " ") if said else self._last_words()

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "pytest said nothing"


def _named(case: ElementTree.Element) -> str:
    """Return the test of a case, by its node's name without parameters."""
    file = (case.get("classname") or "").replace(".", "/")
    return f"{file}.py::{(case.get('name') or '').partition('[')[0]}"


def _files(checkout: Path) -> Iterable[str]:
    """Return the checkout's files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        check=True,
        text=True,
    )
    names = listed.stdout.split("\0")
    return [name for name in names if name and (checkout / name).is_file()]


@dataclass
class Campaign:
    """All runs: each mutant with its test, and each test once without a mutant."""

    mutants: Sequence[Mutant]
    rows: list[Row] = field(default_factory=list)
    sound: dict[str, Outcome] = field(default_factory=dict)

    def play(self, places: Sequence[Place]) -> Iterator[tuple[Row | None, int, int]]:
        """Yield (a new row or None, runs done, runs in all) after each run."""
        tests = list(dict.fromkeys(mutant.killed_by for mutant in self.mutants))
        waiting: list[tuple[list[str], Mutant | None]] = [
            (tests[start : start + TOGETHER], None) for start in range(0, len(tests), TOGETHER)
        ]
        waiting += [([mutant.killed_by], mutant) for mutant in self.mutants]
        runs, done = len(waiting), 0
        busy: dict[int, tuple[list[str], Mutant | None]] = {}
        while waiting or busy:
            for index, place in enumerate(places):
                if index in busy:
                    outcome = place.ended()
                    if outcome is None:
                        continue
                    chosen, mutant = busy.pop(index)
                    done += 1
                    if len(chosen) > 1 and outcome.status != "passed":  # which of them, and why
                        waiting[:0] = [([test], None) for test in chosen]
                        runs += len(chosen)
                    yield self._told(chosen, mutant, outcome), done, runs
                judged = all(mutant is not None for _, mutant in busy.values())
                if waiting and (waiting[0][1] is None or judged):
                    chosen, mutant = waiting.pop(0)
                    try:
                        place.start(chosen, mutant)
                        busy[index] = chosen, mutant
                    except PlantingError as error:
                        done += 1
                        why = Outcome("broken", str(error), 0)
                        yield self._told(chosen, mutant, why), done, runs
            time.sleep(0.05)
        self.rows.sort(key=lambda row: self.mutants.index(row.mutant))

    def _told(self, tests: list[str], mutant: Mutant | None, outcome: Outcome) -> Row | None:
        if mutant is None:
            self.sound.update(dict.fromkeys(tests, outcome))
            return None
        verdict = {"failed": "killed", "passed": "survived"}.get(outcome.status, "broken")
        why, without = outcome.why, self.sound.get(mutant.killed_by)
        if without is not None and without.status != "passed":
            verdict, why = "broken", f"the test does not pass without it: {without.why}"
        row = Row(mutant, verdict, why, outcome.seconds)
        self.rows.append(row)
        return row


def _chosen(wanted: Sequence[str], mutants: Sequence[Mutant]) -> list[Mutant]:
    patterns = [one for said in wanted for one in said.split(",") if one]
    unknown = [one for one in patterns if not any(fnmatchcase(m.name, one) for m in mutants)]
    if unknown:
        raise SystemExit(f"no mutant '{unknown[0]}'; --list shows all")
    return [m for m in mutants if not patterns or any(fnmatchcase(m.name, p) for p in patterns)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="these mutants alone; 'a*' too"
    )
    parser.add_argument("--list", action="store_true", help="show what is covered; run nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--workers", type=int, default=2, help="tests at a time (default: 2)")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="seconds for one test (default: 120)"
    )
    return parser


def _list(mutants: Sequence[Mutant]) -> None:
    for decides in dict.fromkeys(mutant.decides for mutant in mutants):
        print(f"{decides}:")
        for mutant in mutants:
            if mutant.decides == decides:
                print(f"  {mutant.name}")
                print(f"    {mutant.where}: {mutant.find}  ->  {mutant.put}")
                print(f"    killed by {mutant.killed_by}")


def _show(row: Row) -> None:
    print(f"{row.verdict:9} {row.seconds:6.1f} s  {row.mutant.name}", flush=True)
    if row.verdict != "killed":
        print(f"    {row.mutant.where}: {row.mutant.find}  ->  {row.mutant.put}")
        print(f"    {row.mutant.killed_by}" + (f": {row.why}" if row.why else ""), flush=True)


def _as_plain(campaign: Campaign, seconds: float) -> dict[str, Any]:
    rows = [
        {**asdict(row.mutant), "verdict": row.verdict, "why": row.why, "seconds": row.seconds}
        for row in campaign.rows
    ]
    return {"seconds": seconds, "mutants": rows}


def main(
    arguments: Sequence[str] | None = None,
    mutants: Sequence[Mutant] = MUTANTS,
    checkout: Path = Path(__file__).parents[2],
) -> int:
    asked = _parser().parse_args(arguments)
    chosen = _chosen(asked.only, mutants)
    if asked.list:
        _list(chosen)
        return 0
    since, campaign = time.monotonic(), Campaign(chosen)
    scratch = Path(tempfile.mkdtemp(prefix="mutants-"))
    places: list[Place] = []
    try:
        for index in range(max(1, asked.workers)):
            places.append(Place(checkout, scratch / f"copy{index}", asked.limit_s))
        for row, done, runs in campaign.play(places):
            if sys.stderr.isatty():
                print(f"\r{done} of {runs} runs \r", end="", file=sys.stderr, flush=True)
            if row is not None and not asked.json:
                _show(row)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    finally:
        for place in places:
            place.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    seconds = time.monotonic() - since
    if asked.json:
        print(json.dumps(_as_plain(campaign, seconds), indent=2))
    left = [row for row in campaign.rows if row.verdict != "killed"]
    killed = len(campaign.rows) - len(left)
    said = sys.stderr if asked.json else sys.stdout
    print(f"{killed} of {len(campaign.rows)} mutants killed, {seconds:.0f} s", file=said)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
