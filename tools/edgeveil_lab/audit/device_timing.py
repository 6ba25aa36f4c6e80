"""Timing attack on one real device: the delays that the proxy can measure round by round.

`guarded=False` plants the flaw that the fixed release time prevents: answers are computed in the
device's process and sent when ready."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path

import numpy as np

from edgeveil.config.edge import EdgeSite
from edgeveil.crypto.keys import SigningKey
from edgeveil.data.records import Records
from edgeveil.errors import PrivacyError
from edgeveil.jobs import Job, compile_job, parse_job
from edgeveil.jobs.round_context import RoundContext
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages
from edgeveil.protocol.sealed import JobPackage, encode_package
from edgeveil.transport.runtime import Runtime
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.compute_process import ComputeProcess, RemoteComputer
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.role import DeviceRole, build
from edgeveil_lab.audit import timing
from edgeveil_lab.audit.guards import JOB_ID, AttackOutcome, Guard, announced, attacked_site
from edgeveil_tools.local.children import scratch

PACKET_BYTES = 1 << 24
DEADLINE_S = 60.0
BUDGET_S = 0.8
RUNS, QUICK_RUNS = 200, 10  # with r, and as many without
FLAWED_RUNS, QUICK_FLAWED_RUNS = 60, 40
_ROUNDS = 1000
_RECORDS = 3
_LONG = {"doublings": 7, "repeats": 300}  # about 20 ms per record
_MANY = 4  # records where the job expects one: they use much of the time budget


def audit_job(nominal: int, budget_s: float, rounds: int) -> Job:
    return parse_job(f"""
job: audit
data: {{source: audited, classes: {timing.CLASSES}, input_shape: [{timing.SHAPE[0]}],
       nominal_records: {nominal}, evaluation_share: 0.9999999999999991}}  # all are evaluated
features: [{{name: identity}}]
train: {{method: fm, rounds: {rounds}}}
privacy: {{epsilon: 1}}
round: {{deadline_s: {DEADLINE_S}, budget_s: {budget_s}}}
encrypt: {{laplace_eval: {{laplace_eval_eps: 1}}}}
unsupervised: {{every_rounds: 1}}
""")


class TimedDevice:
    """A device under `folder` whose owner allows at most `max_records` records."""

    def __init__(
        self,
        folder: Path,
        graph: bytes,
        records: Records,
        job: Job,
        *,
        max_records: int,
        guarded: bool = True,
    ) -> None:
        folder.mkdir(parents=True)
        np.savez(folder / "own.npz", x=records.x, y=records.y)
        self._plan, self._graph = compile_job(job), graph
        self._cloud, self._proxy = SigningKey.generate(), SigningKey.generate()
        self._loop = asyncio.new_event_loop()
        self._left: asyncio.Future[float] | None = None
        self._started = False
        self._greeted = asyncio.Event()  # set by the hello; the device accepts nothing before
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._process, self._reports = ComputeProcess(), ["no reason given"]
        data = {"source": "npz", "path": str(folder / "own.npz")}
        policy = {"max_inference_epsilon": 1e9, "max_epsilon_per_job": 10}
        site = attacked_site(
            *(folder, self._cloud, self._proxy, data),
            role="infer",
            policy={**policy, "max_records": max_records},
            limits={"packet_bytes": PACKET_BYTES, "blob_bytes": 1 << 30},
        )
        DeviceIdentity.load_or_create(site.state_dir)

        def remote(site: EdgeSite, identity: DeviceIdentity) -> RemoteComputer:
            return RemoteComputer(self._process, identity.device_id, site, identity.split_key)

        compute = remote if guarded else None
        self._device = build(
            site, link=self._join, on_message=self._reports.append, compute=compute
        )
        if not guarded:
            self._device.host._work.times_s = lambda manifest: (0.0, 0.0)  # type: ignore[method-assign]
        self._rounds = enumerate((one for one in self._plan.all_rounds if one.infer), start=1)

    def _join(self, device: DeviceRole) -> Runtime:
        log, host = logging.getLogger("edgeveil.audit"), device.host
        self._runtime = Runtime(
            device.machine, host, self._publish, self._executor, log, PACKET_BYTES
        )
        return self._runtime

    async def _publish(self, _to: fx.Address, frame: bytes) -> None:
        left, message = self._left, messages.decode(frame, PACKET_BYTES)
        body = messages.decode_body(message.body) if isinstance(message, messages.Note) else None
        if isinstance(message, messages.Note) and isinstance(body, messages.Hello):
            held = messages.Ack(hashlib.sha256(message.body.payload).digest(), "held")
            note = messages.Signer("proxy", self._proxy).note(held)
            await self._runtime.receive(fx.ProxyAddress(), messages.encode(note))
            self._greeted.set()
        if left is None or left.done():
            return
        if isinstance(message, messages.Offer):
            left.set_result(time.perf_counter())
        elif isinstance(body, messages.Decline):
            left.set_exception(PrivacyError("the device declines", fix=self._reports[-1]))

    def seconds(self) -> float:
        """Return the seconds to the next upload (inf: too late); raises PrivacyError on refusal."""
        return self._loop.run_until_complete(self._next_round())

    async def _next_round(self) -> float:
        if not self._started:
            self._started = True
            self._feed = asyncio.ensure_future(self._runtime.run())
            self._runtime.post(fx.PeerConnected(fx.ProxyAddress()))
            await self._greeted.wait()
            package = encode_package(JobPackage(self._plan.job.canonical(), self._graph))
            own = self._device.identity.opening
            manifest, blob, self._keys = announced(self._plan, package, own, PACKET_BYTES)
            await self._offer(manifest, blob)
        sequence, round = next(self._rounds)
        state = self._plan.cloud.initial_state()
        at, keys = messages.RoundId(JOB_ID, round.index, 1), self._keys
        context = RoundContext.of(self._plan, round.index)
        manifest, blob, _ = seal_round(context, state, keys, at, sequence, PACKET_BYTES)
        self._left = asyncio.get_running_loop().create_future()
        begun_s = time.perf_counter()
        await self._offer(manifest, blob)
        try:
            return await asyncio.wait_for(self._left, DEADLINE_S) - begun_s
        except TimeoutError:
            return math.inf

    async def _offer(self, manifest: messages.Manifest, blob: bytes) -> None:
        offer = messages.Signer("cloud", self._cloud).offer(manifest, blob)
        await self._runtime.receive(fx.ProxyAddress(), messages.encode(offer))

    def close(self) -> None:
        if self._started:
            self._feed.cancel()
            self._loop.run_until_complete(asyncio.wait([self._feed]))
        self._process.close()
        self._executor.shutdown()
        self._process.end()
        self._loop.close()
        self._device.close()


def _played(
    flawed: bool, quick: bool, graph: bytes, held: Sequence[timing.Values], nominal: int
) -> AttackOutcome:
    """Time two devices by turns, on evaluation records `held` with r and without."""
    memory = Path("/dev/shm")  # noqa: S108 - disk latency would add noise to the times
    parent = memory if memory.is_dir() else None
    job = audit_job(nominal, BUDGET_S, _ROUNDS)
    answers: list[Callable[[], float]] = []
    with scratch(keep=False, parent=parent) as folder, ExitStack() as stack:
        for number, x in enumerate(held):
            own = Records(x, np.zeros(len(x), np.int64))
            place, most = folder / str(number), len(held[0])
            device = TimedDevice(place, graph, own, job, max_records=most, guarded=not flawed)
            stack.callback(device.close)
            device.seconds()  # the first round is slower than the others
            answers.append(device.seconds)
        runs = (FLAWED_RUNS, QUICK_FLAWED_RUNS) if flawed else (RUNS, QUICK_RUNS)
        return timing.attacked(answers[0], answers[1], runs[quick])


def _subnormal(flawed: bool, quick: bool) -> AttackOutcome:
    """Compute on slow subnormal numbers if r is present."""
    given = timing.records(_RECORDS)
    graph = timing.crafted(given[-1], **_LONG)
    with timing.not_flushing() if flawed else nullcontext():
        return _played(flawed, quick, graph, (given, given[:-1]), nominal=_RECORDS)


def _count(flawed: bool, quick: bool) -> AttackOutcome:
    """Do the same work per record, on the allowed number of records against none."""
    given = timing.records(_MANY)
    graph = timing.crafted(given[-1], scale=0.0, shift=0.5, **_LONG)
    return _played(flawed, quick, graph, (given, given[:0]), nominal=1)


DEVICE_GUARDS = (
    Guard(
        "device answer",
        "an upload leaves at a public moment, whatever the records are",
        "answers leave when they are ready, subnormal numbers are not flushed",
        _subnormal,
        alone=True,
    ),
    Guard(
        "device count",
        "an upload leaves at a public moment, with far more records than expected or none",
        "answers leave when they are ready",
        _count,
        alone=True,
    ),
)
