"""Plant each mutant in a copy of the checkout, and run the test that must find it.

A mutant is killed if its test fails with it and passes without it. An import or syntax error, a
wrong name or a timeout is no find. Exits with 1 if a mutant is not killed."""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from xml.etree import ElementTree

from tests.mutants.flaws import MUTANTS
from tests.mutants.planting import ROOTS, PlantingError, plant

CHECKOUT = Path(__file__).parents[2]
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


class Place:
    """A copy of the checkout in which one run of tests at a time is made."""

    def __init__(self, folder, limit_s):
        self._folder, self._limit_s, self._planted = folder, limit_s, 0
        self._running, self.over = None, False
        self._report, self._log = folder.with_suffix(".xml"), folder.with_suffix(".log")
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=CHECKOUT, capture_output=True, check=True, text=True)
        for name in filter(None, names.stdout.split("\0")):
            if (CHECKOUT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, folder / name)

    def play(self, tests, mutant=None):
        """Return `passed`, `failed` or `broken` (no verdict), and the reason."""
        if self.over:
            return "broken", "stopped"
        try:
            with self._changed(mutant) if mutant else nullcontext():
                return self._run(tests)
        except PlantingError as error:
            return "broken", str(error)

    @contextmanager
    def _changed(self, mutant):
        path, content = plant(mutant, self._folder)
        original, status = path.read_bytes(), path.stat()
        path.write_bytes(content)
        # Bytecode files are compared by whole seconds, so no two plantings may share one.
        self._planted += 1
        os.utime(path, (status.st_mtime + self._planted,) * 2)
        try:
            yield
        finally:
            path.write_bytes(original)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _run(self, tests):
        self._report.unlink(missing_ok=True)
        paths = os.pathsep.join(str(self._folder / root) for root in ROOTS)
        options = ("-x", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={self._report}")
        with self._log.open("wb") as log:
            self._running = subprocess.Popen(
                [sys.executable, "-m", "pytest", *tests, *options],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            return self._read(self._running.wait(self._limit_s * len(tests)), tests)
        except subprocess.TimeoutExpired:
            return "broken", f"not done in {self._limit_s * len(tests):g} s"
        finally:
            self.stop()

    def stop(self):
        """End the tests and their children."""
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()

    def _read(self, code, tests):
        if not self._report.is_file():
            return "broken", "".join(self._log.read_text("utf-8", "replace").splitlines()[-1:])
        cases = list(ElementTree.parse(self._report).iter("testcase"))
        if code == 0:
            ran = {_named(case) for case in cases if case.find("skipped") is None}
            if ran >= {test.partition("[")[0] for test in tests}:
                return "passed", ""
            return "broken", "nothing ran: skipped, or no such test"
        for kind in ("failure", "error"):
            for found in [one for case in cases for one in case.findall(kind)]:
                why = (found.get("message") or "").strip().replace("\n", " ")
                sound = kind == "failure" and not why.startswith(NO_FIND)
                return "failed" if sound else "broken", why
        return "broken", f"exit code {code}"


def _named(case):
    """Return the test of a case, by its node's name without parameters."""
    file = (case.get("classname") or "").replace(".", "/")
    return f"{file}.py::{(case.get('name') or '').partition('[')[0]}"


def play(mutants, places):
    """Yield (name, verdict, reason, seconds): `killed`, `survived` or `broken`."""
    free = queue.SimpleQueue()
    for place in places:
        free.put(place)

    def run(tests, mutant=None):
        place, since = free.get(), time.monotonic()
        try:
            return *place.play(tests, mutant), time.monotonic() - since
        finally:
            free.put(place)

    def faults(tests):
        """Return why tests do not pass without a mutant, by test."""
        status, why, _ = run(tests)
        if status == "passed" or len(tests) == 1:
            return {} if status == "passed" else {tests[0]: why}
        return {test: why for one in tests for test, why in faults([one]).items()}

    tests = list(dict.fromkeys(mutant.killed_by for mutant in mutants.values()))
    groups = [tests[start : start + TOGETHER] for start in range(0, len(tests), TOGETHER)]
    with ThreadPoolExecutor(len(places)) as pool:
        try:
            unsound = {
                test: why for found in pool.map(faults, groups) for test, why in found.items()
            }
            runs = pool.map(lambda mutant: run([mutant.killed_by], mutant), mutants.values())
            for (name, mutant), (status, why, seconds) in zip(mutants.items(), runs, strict=True):
                verdict = {"failed": "killed", "passed": "survived"}.get(status, "broken")
                if mutant.killed_by in unsound:
                    verdict = "broken"
                    why = f"the test does not pass without it: {unsound[mutant.killed_by]}"
                yield name, verdict, why, seconds
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for place in places:
                place.over = True
                place.stop()


def chosen(patterns):
    for one in patterns:
        if not any(fnmatchcase(name, one) for name in MUTANTS):
            raise SystemExit(f"no mutant '{one}'; --list shows all")
    names = (n for n in MUTANTS if not patterns or any(fnmatchcase(n, p) for p in patterns))
    return {name: MUTANTS[name] for name in names}


def shown(mutant):
    return f"    {mutant.where}: {mutant.change}\n    {mutant.killed_by}"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="names of mutants, by commas; 'a*' too")
    parser.add_argument("--list", action="store_true", help="show what is covered; run nothing")
    parser.add_argument("--workers", type=int, default=2, help="tests at a time (default: 2)")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="for one test (120)")
    asked = parser.parse_args()
    mutants = chosen(list(filter(None, asked.only.split(","))))
    if asked.list:
        for name, mutant in mutants.items():
            print(f"{name}\n{shown(mutant)}")
        return 0
    since, killed = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as scratch:
        folders = [Path(scratch) / f"copy{number}" for number in range(max(1, asked.workers))]
        try:
            for name, verdict, why, seconds in play(
                mutants, [Place(folder, asked.limit_s) for folder in folders]
            ):
                print(f"{verdict:9} {seconds:6.1f} s  {name}", flush=True)
                killed += verdict == "killed"
                if verdict != "killed":
                    print(f"{shown(mutants[name])}: {why}", flush=True)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
            return 130
    print(f"{killed} of {len(mutants)} mutants killed, {time.monotonic() - since:.0f} s")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
