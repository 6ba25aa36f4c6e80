"""Compute on records in a separate process, which is killed when it exceeds a public time limit.

The duration of a computation may depend on a record, so the time of an answer must not. Before it
reads a record, the worker sends the answer of a device without records. If the real answer is late,
or the worker dies, the first one is sent; an observer cannot distinguish them.

Theory of operation. The device's process (this file) sends requests and waits until a deadline that
was public beforehand. The child (`compute_child`) loads libraries, jobs and records. The worker
(`compute_worker`), a fork of the child, computes on the state as of its fork, so every change of
that state discards the worker. A late or dead worker is replaced within milliseconds.

Answers are requested in turns with public ends (`device_round.py`). A trial is visible outside, so
it starts after the previous answer's time slot, even if that answer was ready earlier.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle

from edgeveil.config.edge import EdgeSite
from edgeveil.config.policy import USUAL_ROOM
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.errors import EdgeVeilError, PrivacyError, ProtocolError
from edgeveil.jobs.job import LEAST_BUDGET_S
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.protocol.device_round import WORK_SHARE
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_edge import compute_worker as wire
from edgeveil_edge.compute import (
    READINGS,
    TRIAL_MARGIN,
    Computation,
    Compute,
    ComputedAnswer,
    Half,
    JobTrial,
    TaughtJob,
    reading_s,
)
from edgeveil_edge.compute_child import Forked

RELEASE_TRIAL_S = 60.0  # for the import of ONNX Runtime on a slow box too
_LATE_S = 0.05  # to read a late answer that is already in the pipe
TRIAL_S = 180.0  # covers imports on a slow box; a graph that never ends is killed then

_Reading = tuple[float, bytes | None]  # evaluation share, and the schema's bytes


class ComputeProcess:
    """One child process for `shared` devices, whose answers wait for one another.

    When its last job is forgotten, the child drops devices and records added since the first job.
    Calls are serial, except `close` and `forget`, which may run during another call.
    """

    def __init__(self, shared: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self.shared, self._clock = shared, clock
        self._child: subprocess.Popen[bytes] | Forked | None = None
        self._control: Connection | None = None
        self._connection: Connection | None = None  # to the worker
        self._overdue: set[Half] = set()  # late halves of request `_overdue_number`, not read yet
        self._overdue_number = 0
        self._jobs: set[bytes] = set()
        self._devices: set[str] = set()
        self._early: frozenset[str] | None = None  # devices loaded before the first job: kept
        self._read: dict[str, list[_Reading]] = {}  # by device: readings kept in the child
        self._trials: dict[tuple[bytes, bytes, bool, str, int, int], JobTrial] = {}
        self._number = 0
        self._closed = threading.Event()
        self._answers_until_s = -math.inf  # public end of the newest answer's time slot
        self._turn = threading.Lock()
        self._ended: deque[bytes] = deque()  # jobs to forget once nothing is under way

    def fork_early(self) -> None:
        """Fork the child from this process to share its memory; call before threads are started."""
        ours, theirs = Pipe()
        with theirs:
            self._child = Forked(ours, theirs)
        self._control = ours

    def start(self) -> None:
        if self._closed.is_set():
            raise ProtocolError("stopping")
        if self._child is not None and self._child.poll() is None:
            return
        self.end()
        ours, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-m", "edgeveil_edge.compute_child"]
            self._child = subprocess.Popen(
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the starter, which ends its child
            )
        self._control = ours
        if self._closed.is_set():  # meanwhile
            raise self._lost()

    def end(self) -> None:
        child, control = self._child, self._control
        self._child, self._control = None, None
        self._drop_worker()
        self._jobs.clear()
        self._devices.clear()
        self._read.clear()
        self._early = None
        if child is not None:
            _kill(child)
            child.wait()
        if control is not None:
            control.close()

    def close(self) -> None:
        """Shut down for good; a pending call raises ProtocolError `stopping`."""
        self._closed.set()
        child = self._child
        if child is not None:
            _kill(child)

    # --- tasks ---

    def try_job(self, device: RemoteComputer, job: TaughtJob, *, trains: bool) -> JobTrial:
        """Share one trial between devices with equal settings; see `Compute.try_job`."""
        site = device.site
        own = site.device, site.limits.memory_bytes, site.policy.max_records
        key = (digest_of(job), hashlib.sha256(job.graph).digest(), trains, *own)
        found = self._trials.get(key)
        if found is None:
            self._let_answers_end()
            with self._exclusive():
                found = self._trials[key] = self._tried(device, job, trains)
        return found

    def _tried(self, device: RemoteComputer, job: TaughtJob, trains: bool) -> JobTrial:
        refused = self._load_job(device, job, trains)
        if refused:
            return JobTrial(0.0, refused)
        round_ = job.plan.job.round
        budget_s, least_s = round_.time_budget_s, round_.device_budget_s(LEAST_BUDGET_S)
        enough_s = least_s * WORK_SHARE / (2 * TRIAL_MARGIN * self._queue_factor)
        self._send(wire.TryJob(device.name, digest_of(job), trains, enough_s))
        report = self._report("the job's computation", TRIAL_S + 4 * budget_s)
        if not report.refused:
            self._change_state(wire.LoadModules(report.modules, digest_of(job)))
        needed_s = report.needed_s * self._queue_factor
        return JobTrial(needed_s, report.refused, slowdown=report.slowdown)

    @property
    def _queue_factor(self) -> float:
        """Factor by which answers take longer because devices wait for one another."""
        return max(1.0, self.shared / USUAL_ROOM)

    def _report(self, what: str, limit_s: float) -> wire.TrialReport:
        how = "was answered by something else"
        try:
            reply = self._receive(self._clock() + limit_s)
            if isinstance(reply, wire.TrialReport):
                return reply
        except TimeoutError:
            how = f"did not end within {limit_s:g} s"
        except EOFError:
            how = "ended the process"
        self.replace_worker()
        return wire.TrialReport(0.0, f"{what} on made-up records {how}")

    def try_release(self, onnx: bytes) -> str:
        self._let_answers_end()
        with self._exclusive():
            self.start()
            self._send(wire.TryRelease(onnx))
            return self._report("running it", RELEASE_TRIAL_S).refused

    def read_ahead(
        self, device: RemoteComputer, share: float, schema: DataSchema | None = None
    ) -> bool:
        """Return at a public time, independent of the records; see `Compute.read_ahead`."""
        reading = share, None if schema is None else schema.model_dump_json().encode()
        if reading in self._read.get(device.name, ()):
            return False
        self._let_answers_end()
        with self._exclusive():
            began_s, read = self._clock(), False
            with suppress(ProtocolError):
                self._add_device(device)
                self._change_state(wire.ReadRecords(device.name, *reading))
                read = True
            # Also if the child died of it: then the answer is computed without records.
            if self._jobs or self._early is None:  # else dropped with the job that is ending
                kept = self._read.setdefault(device.name, [])
                kept.append(reading)
                del kept[: -READINGS * device.site.policy.max_jobs]  # as `Computer.records`
            if self.shared == 1:
                step_s = reading_s(device.site)
                took_s = self._clock() - began_s
                self._wait_until(began_s + public_time_s(took_s, step_s))
        return read

    def answer(self, device: RemoteComputer, one: Computation) -> ComputedAnswer:
        """Take until `one.until_s`; see `Compute.answer`. Raises PrivacyError after `closes_s`."""
        if not isinstance(one.noise, DerivedRandom):
            raise PrivacyError("only derived noise can be drawn in another process")
        if one.until_s < math.inf:
            self._answers_until_s = max(self._answers_until_s, one.until_s)
        with self._exclusive():
            return self._answer(device, one, one.noise.to_bytes())

    def _let_answers_end(self) -> None:
        self._wait_until(self._answers_until_s)

    def _wait_until(self, at_s: float) -> None:
        while (left_s := at_s - self._clock()) > 0:
            if self._closed.wait(left_s):
                return

    def _answer(self, device: RemoteComputer, one: Computation, noise: bytes) -> ComputedAnswer:
        refused = self._load_job(device, one.job, one.trains)
        if refused:
            raise PrivacyError(refused)
        self._number += 1
        place = self._number, device.name, digest_of(one.job), one.round.index
        own = pack_tensors(one.own)
        asked = wire.AskAnswer(*place, one.package, own, one.trains, noise, one.allowed_s)
        halves, slowdown = self._blank(asked, max(one.until_s, one.closes_s))
        without, late = self._with_records(halves, one.until_s)
        answers = (wire.answer_of(halves[half]) for half in sorted(halves))
        return ComputedAnswer(tuple(answers), "; ".join(without), late, slowdown)

    def _blank(
        self, asked: wire.AskAnswer, closes_s: float
    ) -> tuple[dict[Half, wire.HalfAnswer], float]:
        try:
            try:
                self._send(asked)
                found = self._reply(asked.number, closes_s)
            except EOFError:  # the worker may have died before the request
                self.replace_worker()
                self._send(asked)
                found = self._reply(asked.number, closes_s)
            return dict(found.parts), found.slowdown
        except TimeoutError:
            what = "the box was too slow: the round closed"
            fix = "raise it, or give the box less other work"
        except EOFError:
            what, fix = "the computing process ended", "see its line on the console"
        self.replace_worker()
        raise PrivacyError(f"{what} before records were read", where="round.budget_s", fix=fix)

    def _with_records(
        self, halves: dict[Half, wire.HalfAnswer], until_s: float
    ) -> tuple[list[str], bool]:
        """Replace blank halves by those in time; return why some stay, and if work overran."""
        in_time, late, missing, without = self._clock() <= until_s, False, set(halves), list[str]()
        try:
            while missing:
                found = self._reply(self._number, until_s)
                halves.update(found.parts)
                missing -= set(found.parts)
                without += [found.without] * bool(found.without)
        except TimeoutError:
            without.append("it was not done within the round's time budget")
            late = in_time
        except EOFError:  # a record may crash it each time: that is no sign of a slow box
            without.append("the computing process ended with the records")
        if missing and in_time:
            self.replace_worker()
        elif missing:  # the worker had no time at all: keep it
            self._overdue, self._overdue_number = missing, self._number
        return without, late

    def forget(self, job: TaughtJob) -> None:
        self._ended.append(digest_of(job))
        self._forget_ended()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Serialise requests, since a state change would discard a busy worker."""
        try:
            with self._turn:
                yield
        finally:
            self._forget_ended()

    def _forget_ended(self) -> None:
        while self._ended and self._turn.acquire(blocking=False):
            try:
                while self._ended:
                    self._forget(self._ended.popleft())
            finally:
                self._turn.release()

    def _forget(self, digest: bytes) -> None:
        for key in [key for key in self._trials if key[0] == digest]:
            del self._trials[key]
        if digest in self._jobs:
            self._jobs.discard(digest)
            with suppress(ProtocolError):
                self._change_state(wire.ForgetJob(digest))
            if not self._jobs:
                self._devices = set(self._early or ())
                self._read.clear()

    # --- the child ---

    def _load_job(self, device: RemoteComputer, job: TaughtJob, trains: bool) -> str:
        """Load job and device into the child; return why the job cannot be loaded, or ""."""
        digest = digest_of(job)
        self.start()
        if digest not in self._jobs:
            backbones = tuple(job.plan.artifacts.values())
            owners = device.site.policy.allowed_plugins
            allowed = tuple((one.distribution, one.sha256) for one in owners)
            if self._early is None:
                self._early = frozenset(self._devices)
            request = wire.LoadJob(digest, job.canonical, job.graph, backbones, trains, allowed)
            reply = self._change_state(request)
            if isinstance(reply, wire.Refusal):
                return str(wire.error_of(reply))
            self._jobs.add(digest)
        self._add_device(device)  # after the job: a child with a job drops no device
        return ""

    def _add_device(self, device: RemoteComputer) -> None:
        self.start()
        if device.name in self._devices:
            return
        site = device.site.model_dump_json().encode()
        given = wire.records_bytes(device.records)
        self._change_state(wire.AddDevice(device.name, site, device.split_key, given))
        if self._jobs or self._early is None:
            self._devices.add(device.name)

    def _change_state(self, request: wire.Request) -> wire.Reply:
        """Send a state change to the child; discards the worker, which lacks the change."""
        self._drop_worker()
        try:
            control = self._to_child(wire.encode(request))
            return wire.decode_reply(wire.receive(control))
        except (OSError, EOFError):
            raise self._lost() from None

    def _to_child(self, raw: bytearray) -> Connection:
        if self._control is None:
            raise OSError("no child")
        self._control.send_bytes(raw)
        return self._control

    def _fork(self) -> Connection:
        if self._connection is not None:
            return self._connection
        ours, theirs = Pipe()
        try:
            with theirs:
                send_handle(self._to_child(bytearray()), theirs.fileno(), 0)
        except OSError:
            ours.close()
            raise self._lost() from None
        self._connection = ours
        return ours

    def _drop_worker(self) -> None:
        self._overdue = set()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def replace_worker(self) -> None:
        self._drop_worker()
        with suppress(ProtocolError):
            self._fork()

    def _lost(self) -> ProtocolError:
        self.end()
        reason = "stopping" if self._closed.is_set() else "no_computing"
        return ProtocolError(reason, "the computing process has ended")

    # --- the worker ---

    def _send(self, request: wire.Request) -> None:
        self._take_late()
        raw = wire.encode(request)
        for _ in range(2):  # the previous worker may have died
            with suppress(OSError):
                self._fork().send_bytes(raw)
                return
            self._drop_worker()
        raise self._lost()

    def _take_late(self) -> None:
        """Discard late halves; drop a worker still computing them, as pipe buffers are small."""
        try:
            while self._overdue:
                late = self._reply(self._overdue_number, self._clock() + _LATE_S)
                self._overdue -= set(late.parts)
        except (TimeoutError, EOFError, EdgeVeilError):
            self._drop_worker()

    def _reply(self, number: int, until_s: float) -> wire.AnswerHalves:
        """Return the next halves of answer `number`. Raises as `_receive`, or a refusal."""
        while True:
            reply = self._receive(until_s)
            if isinstance(reply, wire.Refusal) and reply.number == number:
                raise wire.error_of(reply)
            if isinstance(reply, wire.AnswerHalves) and reply.number == number:
                return reply

    def _receive(self, until_s: float) -> wire.Reply:
        """Return the worker's next message. Raises TimeoutError or EOFError.

        A message that arrives after `until_s` is left unread: its time depends on the records.
        """
        connection = self._connection
        if connection is None:
            raise EOFError
        left_s, raw = until_s - self._clock(), None
        try:
            if left_s > 0 and connection.poll(None if left_s == math.inf else left_s):
                raw = wire.receive(connection)
        except (EOFError, OSError):
            if self._closed.is_set():
                raise ProtocolError("stopping") from None
            raise EOFError from None
        if raw is None:
            raise TimeoutError
        return wire.decode_reply(raw)


class RemoteComputer(Compute):
    """One device's interface to a `ComputeProcess`; `records` replace the site's data source."""

    def __init__(
        self,
        process: ComputeProcess,
        name: str,
        site: EdgeSite,
        split_key: bytes,
        records: Records | None = None,
    ) -> None:
        self._process, self.name, self.site, self.split_key = process, name, site, split_key
        self.records = records

    def try_job(self, job: TaughtJob, *, trains: bool) -> JobTrial:
        return self._process.try_job(self, job, trains=trains)

    def try_release(self, onnx: bytes) -> str:
        return self._process.try_release(onnx)

    def read_ahead(self, share: float, schema: DataSchema | None = None) -> bool:
        return self._process.read_ahead(self, share, schema)

    def answer(self, one: Computation) -> ComputedAnswer:
        return self._process.answer(self, one)

    def forget(self, job: TaughtJob) -> None:
        self._process.forget(job)


def public_time_s(took_s: float, step_s: float) -> float:
    while step_s < took_s:
        step_s *= 2
    return step_s


def _kill(child: subprocess.Popen[bytes] | Forked) -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)  # it may not be in its group yet
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def digest_of(job: TaughtJob) -> bytes:
    return hashlib.sha256(job.canonical).digest()
