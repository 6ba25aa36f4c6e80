"""`python -m edgeveil_lab.bench.memory JOB`: peak memory and processor time of a real run.

Runs `edgeveil run JOB`, each device in a process of its own, and looks at all processes below it
every 50 ms. A phase ends where the run says that a round is over. Figures are the kernel's marks
(`VmHWM`), which are set back where a phase begins; each is of the largest process of its kind.
Processor's seconds are of all processes of a kind. Linux alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from edgeveil.errors import JobFailed
from edgeveil.transport.metrics import peak_rss_bytes

LOOK_S = 0.05
_CLEAR_PEAK = "5"  # proc(5), clear_refs
KINDS = ("cloud", "cloud's workers", "proxy", "device", "device's computing", "broker")
_FIRST = "to the end of round 1"


@dataclass
class Peaks:
    """The largest peak of each kind of process, by phase."""

    phases: list[str] = field(default_factory=lambda: [_FIRST])
    found: dict[tuple[str, str], int] = field(default_factory=dict)
    cpu_s: dict[tuple[str, str], float] = field(default_factory=dict)
    _cpu_before_s: dict[psutil.Process, float] = field(default_factory=dict)
    _watched: dict[psutil.Process, str] = field(default_factory=dict)

    def look(self, root: psutil.Process) -> None:
        """At every process below the run."""
        with suppress(psutil.Error):
            for process in root.children(recursive=True):
                # A process that was forked bears its starter's name until it has its own.
                if (kind := kind_of(process)) in KINDS:
                    self._watched[process] = kind
        for process, kind in list(self._watched.items()):
            at = self.phases[-1], kind
            with suppress(OSError, psutil.Error):
                self.found[at] = max(self.found.get(at, 0), peak_rss_bytes(process.pid) or 0)
                used = process.cpu_times()
                used_s = used.user + used.system
                before_s = self._cpu_before_s.get(process, 0.0)
                self.cpu_s[at] = self.cpu_s.get(at, 0.0) + used_s - before_s
                self._cpu_before_s[process] = used_s

    def begin(self, phase: str) -> None:
        """A phase is over; marks begin anew at what each process holds now."""
        self.phases.append(phase)
        for process in self._watched:
            with suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text(_CLEAR_PEAK)

    def table(self) -> Iterator[str]:
        """One line a phase: MiB of the largest process, and processor's seconds of all."""
        width = max(map(len, self.phases))
        yield " " * width + "".join(f"{kind:>20}" for kind in KINDS)
        for phase in self.phases:
            places = [(phase, kind) for kind in KINDS]
            shown = (
                f"{self.found[at] >> 20:,} MiB, {self.cpu_s.get(at, 0.0):.1f} s"
                if self.found.get(at)
                else "-"
                for at in places
            )
            yield phase.ljust(width) + "".join(f"{one:>20}" for one in shown)


def kind_of(process: psutil.Process) -> str:
    """One of KINDS, by what a process was started with and by whom; "" for any other."""
    try:
        command, parent = process.cmdline(), process.parent()
        above = parent.cmdline() if parent else []
    except psutil.Error:
        return ""
    if command and Path(command[0]).name == "mosquitto":
        return "broker"
    if "edge" in command:
        return "device's computing" if "edge" in above else "device"
    if "cloud" in above:
        return "cloud's workers"
    return next((kind for kind in ("cloud", "proxy") if kind in command), "")


def measure(job: Path, devices: int, out: Path) -> Peaks:
    """Run the job. Raises JobFailed where the run fails, with its own words on the console."""
    command = [sys.executable, "-P", "-m", "edgeveil_tools.cli", "run", str(job), "--out", str(out)]
    command += ["--devices", str(devices), "--workers", str(devices), "--no-reference"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)
    peaks, root, said = Peaks(), psutil.Process(run.pid), list[str]()

    def read() -> None:
        for line in run.stdout or ():
            print(line, end="", flush=True)
            said.append(line)

    reader = threading.Thread(target=read)
    reader.start()
    seen = 0
    while run.poll() is None:
        peaks.look(root)
        for line in said[seen:]:
            seen += 1
            if "  round " in line:
                peaks.begin(f"after round {line.split('round ', 1)[1].split(':', 1)[0]}")
        time.sleep(LOOK_S)
    reader.join()
    if run.returncode:
        raise JobFailed(f"the run ended with exit code {run.returncode}")
    return peaks


def main() -> None:
    """Print the run's own lines, then a table."""
    parser = argparse.ArgumentParser(
        prog="python -m edgeveil_lab.bench.memory", description=__doc__
    )
    parser.add_argument("job", type=Path, help="job file")
    parser.add_argument("--devices", type=int, default=10, help="each a process of its own")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        peaks = measure(args.job, args.devices, Path(folder))
    print("\nof each kind: peak memory of the largest process, processor's seconds of all")
    print("\n".join(peaks.table()))
    print(
        f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    )


if __name__ == "__main__":
    main()
