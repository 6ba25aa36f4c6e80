"""Runs targets under libFuzzer, one process each, and reads from its log what came of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil.transport.process import OwnFolder
from edgeveil_tools.lifeline import Lifeline
from edgeveil_tools.local.children import sweep
from tests.fuzz.table import target

PREFIX = "edgeveil-fuzz-"
MEMORY = Path("/dev/shm")
_ROOT = Path(__file__).parents[2]  # where the children find `tests`

_LOOKED = re.compile(r"^#(\d+)\s+(\w+)\s+cov: (\d+)")
_STAT = re.compile(r"^stat::(\w+):\s+(\d+)")
_WHY = re.compile(r"ERROR: |^[\w.]*(Error|Exception|Wrong)\b")
_ARTIFACT = re.compile(r"Test unit written to (\S+)")


@dataclass(frozen=True)
class Bounds:
    """What one target may take. `seconds` 0: until `runs` inputs are fed."""

    runs: int = 1_000_000
    seconds: int = 0
    input_timeout_s: int = 10
    rss_mb: int = 1024
    seed: int = 0  # 0: another one each time


@dataclass(frozen=True)
class Outcome:
    """What came of one target."""

    target: str
    runs: int
    seconds: float
    runs_per_s: float
    coverage: int  # edges of the code that were reached
    new_paths: int  # inputs that reached something new, and were kept
    peak_rss_mb: int
    crashes: tuple[str, ...]  # files with the inputs
    ended: str  # "done", or the last line that says why not

    @property
    def clean(self):
        """All inputs asked for were fed, and nothing was found."""
        return not self.crashes and self.ended == "done"


def fuzz(name, bounds, out):
    """Feed one target. Findings are written to `out`. Raises UsageError where atheris is not
    installed, or for an unknown target."""
    chosen = target(name)
    out.mkdir(parents=True, exist_ok=True)
    with _memory_folder() as folder:
        corpus = folder / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(chosen.seeds()):
            (corpus / f"seed-{number:03}").write_bytes(seed)
        words = folder / "words.dict"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in chosen.words), "ascii")
        options = [
            f"-runs={bounds.runs}",
            f"-max_total_time={bounds.seconds}",
            f"-timeout={bounds.input_timeout_s}",
            f"-rss_limit_mb={bounds.rss_mb}",
            f"-max_len={chosen.max_bytes}",
            f"-seed={bounds.seed}",
            f"-artifact_prefix={out}/{name}-",
            *(["-dict=" + str(words)] if chosen.words else []),
            *("-keep_seed=1", "-print_final_stats=1", "-close_fd_mask=1"),
        ]
        command = [sys.executable, "-m", "tests.fuzz.child", name, *options, str(corpus)]
        start_s = time.monotonic()
        lines, status = _run(command, folder)
        seconds = time.monotonic() - start_s
    return outcome(name, lines, seconds, status)


def side_by_side(one, names, jobs):
    """`one` of each name, `jobs` of them at a time; an error or Ctrl-C ends all that run. They are
    killed: libFuzzer prints when it is asked to end, and may wait for a lock of its own."""
    _stopping.clear()
    with ThreadPoolExecutor(jobs) as pool:
        try:
            asked = [pool.submit(one, name) for name in names]
            left = set(asked)
            while left:  # looks up, for a Ctrl-C just before a wait without an end is not heard
                done, left = wait(left, _LOOK_UP_S, FIRST_EXCEPTION)
                for each in done:
                    each.result()
            return [each.result() for each in asked]
        except BaseException:
            _stopping.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for child in tuple(_running):
                child.kill()
            raise


_LOOK_UP_S = 0.5
_running = set()
_stopping = threading.Event()
_making = threading.Lock()


def _run(command, folder):
    """The child's lines that matter, and its exit status; it ends with this process."""
    lifeline = Lifeline()
    found = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": found}
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment | lifeline.environment,
        pass_fds=[lifeline.child_fd],
        text=True,
        errors="replace",
    ) as child:
        _running.add(child)
        try:
            if _stopping.is_set():
                child.kill()
            lines = _watched(child)
        except BaseException:
            child.kill()
            raise
        finally:
            _running.discard(child)
            lifeline.close()
    return lines, child.returncode


def _watched(child):
    """Every line that matters for the outcome."""
    kept = []
    for line in child.stderr or ():
        line = line.rstrip()
        if _LOOKED.match(line):
            kept = [one for one in kept if not _LOOKED.match(one)]
        if line and not line.startswith(("INFO", "WARNING")):
            kept.append(line)
    return kept


def outcome(name, lines, seconds, status):
    """What the lines of a log and the exit status say. Raises UsageError without atheris."""
    looks = [found for line in lines if (found := _LOOKED.match(line))]
    stats = {found[1]: int(found[2]) for line in lines if (found := _STAT.match(line))}
    crashes = tuple(found[1] for line in lines if (found := _ARTIFACT.search(line)))
    if any("No module named 'atheris'" in line for line in lines):
        raise UsageError("atheris is not installed", fix="pip install 'edgeveil[fuzz]'")
    last = looks[-1] if looks else None
    runs = stats.get("number_of_executed_units", int(last[1]) if last else 0)
    why = next((one for one in lines if _WHY.search(one)), "")
    return Outcome(
        target=name,
        runs=runs,
        seconds=round(seconds, 1),
        runs_per_s=round(runs / seconds, 1),
        coverage=int(last[3]) if last else 0,
        new_paths=stats.get("new_units_added", 0),
        peak_rss_mb=stats.get("peak_rss_mb", 0),
        crashes=crashes,
        ended="done" if not status else (why or f"ended with {status}")[:200],
    )


@contextmanager
def _memory_folder():
    """A folder, on a file system in memory where there is one: inputs are written a lot. The lock
    in it says that its driver lives; what a killed one left is swept first."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    with _making:  # a folder that is not locked yet would look left behind
        sweep(place, PREFIX)
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        own = OwnFolder(folder)
    with own:
        try:
            (folder / "inputs").mkdir()
            yield folder / "inputs"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _escaped(word):
    return "".join(f"\\x{byte:02x}" for byte in word)
