"""`edgeveil run --simulate`: one job's fleet in this process, without brokers and encryption.

Machines, hosts, ledgers and stores are those of a site. Time is virtual, so nobody is ever late;
chance is seeded, so a run repeats exactly. It shows what learning comes to; it protects nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from edgeveil import logs
from edgeveil.errors import JobFailed
from edgeveil.jobs import Job
from edgeveil_cloud.store import Store
from edgeveil_tools.local.children import Children, MemoryPeak
from edgeveil_tools.local.data import is_published
from edgeveil_tools.local.job import site_of
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.plain_sealing import PlainSealing
from edgeveil_tools.local.reference import Reference, has_reference
from edgeveil_tools.local.run_log import Listener, RunLog, RunReporter, unheard
from edgeveil_tools.local.simulate import MemoryFleet
from edgeveil_tools.result import write_whole
from edgeveil_tools.site.site_plan import SitePlan

THREADS = 2  # devices that compute at one time
BROKER = "none (simulated)"
_LOOK_S = 0.1


class Simulation:
    """Everything of one simulated job, as `run_fleet.Fleet`: `run` once, `stop`, `result`."""

    def __init__(
        self,
        job: Job,
        run: LocalRun,
        folder: Path,
        out: Path,
        hear: Listener = unheard,
        stop: threading.Event | None = None,
        *,
        reference: bool = True,
        record_dir: Path | None = None,
    ) -> None:
        self.job, self.settings, self.out = job, run, out
        self.log = RunLog(job, run, out, hear, stop)
        self._folder, self._wants_reference = folder, reference and has_reference(job)
        self._record_dir = record_dir
        self._memory = MemoryPeak(Children(out / "logs"))
        self._reference: Reference | None = None
        self._fleet: MemoryFleet | None = None
        self._executor: ThreadPoolExecutor | None = None
        self._events, self._next_look_s, self._job_id = 0, 0.0, ""
        self._seconds: float | None = None
        self._declined = ""

    @property
    def progress(self) -> RunReporter:
        """What a person sees."""
        return self.log.progress

    def run(self) -> None:
        """From keys to models. Raises EdgeVeilError, or KeyboardInterrupt at Ctrl-C."""
        self.progress.note("Simulation in one process: encryption off, noise seeded")
        import torch  # devices at work in two threads must not be the first to import it

        torch.set_num_threads(1)
        # One thread for each device at work: more would only stand in each other's way.
        with threadpool_limits(1), _log_file(self.out / "logs" / "simulation.log"):
            self._play()
        self._seconds = self.progress.elapsed_s
        if self._wants_reference:
            self.progress.doing("training the noise-free reference")
            self._reference = Reference(self.job, self.settings, self._site)
            self._reference.start()
            self._reference.wait(None)

    def stop(self) -> None:
        """Give up what is under way and close all files."""
        if self._fleet is not None:
            self._fleet.interrupt()
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
        if self._reference is not None:
            self._reference.stop()
        if self._fleet is not None:
            self._fleet.close()

    def result(self, reason: str) -> dict[str, Any]:
        """The content of `result.json`; `reason` is empty when the job completed."""
        return self.log.result(
            reason,
            broker=BROKER,
            protocol=None,
            memory_peak_bytes=self._memory.peak_bytes or None,
            reference=self._reference.rounds if self._reference else [],
            bytes={},
            seconds=self._seconds,
            simulated=True,
        )

    def _play(self) -> None:
        self.progress.doing(f"making {self.settings.devices} devices")
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="edgeveil-work")
        fleet = self._fleet = MemoryFleet(
            self._site,
            sealing=PlainSealing(),
            executor=self._executor,
            say=self._hear,
        )
        self._job_id = fleet.submit(self.job)
        fleet.net.run(self._look, limit_s=float("inf"))
        self._take_events(fleet.store)
        if not self.log.record.ended:
            raise JobFailed("the simulation came to a stand", where=self._job_id)
        published = is_published(self.job, self.settings)
        if self._declined and not published:  # may quote a record: for this console alone
            self.progress.note(self._declined)
        self.log.require_completed(self._job_id, self._declined if published else "")
        release = fleet.store.release(self._job_id)
        if release is None:
            raise JobFailed("the job left no model", where=self._job_id)
        write_whole(self.out / "model.onnx", release.onnx)
        write_whole(self.out / "model.safetensors", release.safetensors)

    @cached_property
    def _site(self) -> SitePlan:
        return site_of(self.job, self.settings, self._folder, self._record_dir)

    def _hear(self, line: str) -> None:
        """What an owner is told; the first reason to decline is kept."""
        logging.getLogger("edgeveil.devices").info(line)
        if not self._declined and " declined: " in line:
            self._declined = line

    def _look(self) -> bool:
        """Now and then, see how it stands; True once the job has ended."""
        now_s = time.monotonic()
        if now_s < self._next_look_s or self._fleet is None:
            return False
        self._next_look_s = now_s + _LOOK_S
        view, counts = self.progress.view, self._fleet.proxy_host
        view.memory_bytes, view.online = self._memory.look(), counts.online
        view.uploads = int(counts.round.get("uploads", view.uploads))
        view.declined = int(counts.round.get("declined", view.declined))
        self._take_events(self._fleet.store)
        self.log.look()
        return bool(self.log.record.ended)

    def _take_events(self, store: Store) -> None:
        for event in store.events_after(self._events, self._job_id):
            self._events = event.seq
            self.log.take(asdict(event))


@contextmanager
def _log_file(path: Path) -> Iterator[None]:
    """What the parties log goes to one file meanwhile, and not over the progress."""
    log, handler = logging.getLogger("edgeveil"), logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logs.formatter("text"))
    before = (log.level, log.propagate)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(before[0])
        log.propagate = before[1]
