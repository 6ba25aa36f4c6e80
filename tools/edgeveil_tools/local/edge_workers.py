"""Workers of a local run, forked from one process that has loaded what all of them need.

    python -P -m edgeveil_tools.local.edge_workers FOLDER WORKERS MODULES CONFIG…

Each worker is `edgeveil edge` with its share of the site files, and logs to FOLDER."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from edgeveil.heap import keep_memory_private
from edgeveil_tools.cli.program import main
from edgeveil_tools.local.children import tail

USED = ("edgeveil_tools.cli.parties", "edgeveil_edge.main", "edgeveil_edge.compute_worker")


def run(folder: Path, workers: int, modules: str, configs: list[str]) -> int:
    """Fork the workers and wait until all have ended; the first failure ends the others."""
    keep_memory_private()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a device's computing process
    for module in (*USED, *filter(None, modules.split(","))):
        with suppress(ImportError):  # a device without it says so itself
            import_module(module)
    gc.collect()
    gc.freeze()  # garbage collection would copy shared pages
    logs = {}
    for number in range(workers):
        log = folder / f"worker-{number + 1}.log"
        pid = os.fork()
        if not pid:
            _work(log, [word for one in configs[number::workers] for word in ("--config", one)])
        logs[pid] = log
    for ignored in (signal.SIGTERM, signal.SIGINT):  # the workers end, and then this process
        signal.signal(ignored, signal.SIG_IGN)
    failed = 0
    for _ in range(workers):
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        if code and not failed:
            failed = code if code > 0 else 1
            print(f"{logs[pid].stem} ended with code {code}:\n{tail(logs[pid])}", flush=True)
            os.killpg(0, signal.SIGTERM)
    return failed


def _work(log: Path, words: list[str]) -> None:
    code = 1
    try:
        with log.open("wb") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(1, 2)
        code = main(["edge", *words])
    finally:
        os._exit(code)


if __name__ == "__main__":
    _, given, count, preloaded, *sites = sys.argv
    sys.exit(run(Path(given), int(count), preloaded, sites))
