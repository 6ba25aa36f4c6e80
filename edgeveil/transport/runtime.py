"""Runtime of one machine on an asyncio loop: events in, effects out, in order.

One task feeds the machine. `Work` runs in an executor and returns as `WorkDone`. A message that
cannot be published because the link is down is dropped: the machine's timers send it again.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from edgeveil.errors import EdgeVeilError, ProtocolError
from edgeveil.logs import Place, follow
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Note, Offer, RoundId, decode, encode, short_name
from edgeveil.protocol.transfer import Carriage
from edgeveil.transport.link import LinkDown, SendWindow

if TYPE_CHECKING:
    from edgeveil.transport.blob_client import BlobClient

INBOX_EVENTS = 4096
INBOX_BYTES = 16 * 1024 * 1024
TOGETHER_EVENTS = 64  # queued events whose stores share one write to the disk
STUCK_S = 30.0  # a machine that handles no event for so long counts as stuck

Publish = Callable[[fx.Address, bytes], Awaitable[None]]
_Queued = tuple[bool, int, fx.Event, int]  # low priority, number, event, bytes


class Host(Protocol):
    def store(self, item: object) -> None:
        """Store durably before returning; inside `together`, at the end of the block."""

    def together(self) -> AbstractContextManager[None]:
        """Make all writes inside the block durable at its end, or none."""

    def perform(self, task: object) -> object: ...

    def report(self, report: fx.Report) -> None: ...


class Runner(Protocol):
    """Runs a role's machine: a process's `Runtime`, or a node of a network in memory."""

    @property
    def refused(self) -> Mapping[str, int]: ...

    def post(self, event: fx.Event) -> None: ...


class Gate(Protocol):
    def refusal(self, sender: fx.Address, frame: bytes) -> str | None:
        """Return why a frame is dropped before decoding, or None to accept; must be cheap."""

    def refused(self, sender: fx.Address, reason: str) -> None:
        """Count an accepted frame of this sender that was refused later."""


class Runtime:
    """One machine with its host and its publisher.

    `executor`, or the one that it returns for a task, does the work. Log lines after `follow_logs`,
    and those of the work, carry job (by `name_job`) and round. `gate` filters frames before
    decoding. `blobs` transfers data out of band.
    """

    def __init__(
        self,
        machine: fx.Machine,
        host: Host,
        publish: Publish,
        executor: Executor | Callable[[object], Executor] | None,
        log: logging.Logger,
        packet_bytes: int,
        name_job: Callable[[bytes], str] = short_name,
        gate: Gate | None = None,
        blobs: BlobClient | None = None,
    ) -> None:
        self.machine, self.host, self._publish = machine, host, publish
        self._executor, self._log, self._packet_bytes = executor, log, packet_bytes
        self.refusals = Refusals(log)
        self._place, self._name_job = Place(), name_job
        self._gate = gate
        self._blobs = blobs
        self._at: RoundId | None = None
        self._since_s = self._took_s = self._beat_s = 0.0
        self._beating: asyncio.TimerHandle | None = None
        self._feeding = False
        self._lost: asyncio.Future[None] | None = None
        self._strangers: set[fx.Address] = set()
        self._events: asyncio.PriorityQueue[_Queued] = asyncio.PriorityQueue()
        self._numbers = itertools.count()
        self._room = SendWindow(INBOX_EVENTS, INBOX_BYTES)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._working: set[asyncio.Task[None]] = set()

    @property
    def refused(self) -> Mapping[str, int]:
        return self.refusals.counts

    @property
    def waiting_events(self) -> int:
        return self._events.qsize()

    @property
    def waiting_bytes(self) -> int:
        return self._room.size_bytes

    @property
    def knows_keys(self) -> bool:
        """Whether cloud and proxy signed their last messages with their pinned keys."""
        return not self._strangers

    @property
    def turns(self) -> bool:
        """Whether the machine is fed and no effect or event waits for STUCK_S; thread-safe."""
        now_s, since_s = time.monotonic(), self._since_s
        in_time = not since_s or now_s - since_s < STUCK_S
        waits_s = 0.0 if self._events.empty() else now_s - max(self._took_s, since_s)
        beats = now_s - self._beat_s < STUCK_S
        return self._feeding and beats and in_time and waits_s < STUCK_S

    def _beat(self) -> None:
        self._beat_s = time.monotonic()
        self._beating = asyncio.get_running_loop().call_later(STUCK_S / 10, self._beat)

    def follow_logs(self) -> None:
        follow(self._place)

    def takes(self, sender: fx.Address | None, frame: bytes) -> bool:
        """Return whether to `receive` this frame; count a refusal."""
        reason: str | None = "foreign_topic"
        if sender is not None:
            reason = self._gate.refusal(sender, frame) if self._gate is not None else None
        if reason is not None:
            self.refusals.add(reason)
        return reason is None

    async def receive(self, sender: fx.Address, frame: bytes) -> None:
        """Decode and queue a frame; waits while too many events or bytes are queued."""
        try:
            message = decode(frame, self._packet_bytes)
        except ProtocolError as error:
            self.refusals.add(error.reason)
            self._blame(sender, error.reason)
            return
        await self._room.acquire(len(frame))
        self._queue(fx.MessageReceived(sender, message), len(frame))

    def _blame(self, sender: fx.Address, reason: str) -> None:
        if self._gate is not None:
            self._gate.refused(sender, reason)

    def post(self, event: fx.Event) -> None:
        self._queue(event, 0)

    def _queue(self, event: fx.Event, frame_bytes: int) -> None:
        """Queue an event; devices' messages are many, so they wait behind all others."""
        sender = event.sender if isinstance(event, fx.MessageReceived) else None
        behind = isinstance(sender, fx.DeviceAddress)
        if self._events.empty():
            self._took_s = time.monotonic()
        self._events.put_nowait((behind, next(self._numbers), event, frame_bytes))

    async def run(self) -> None:
        """Feed the machine until cancelled. Raises the error that kept work from starting."""
        self.follow_logs()
        self._lost = asyncio.get_running_loop().create_future()
        feeding = asyncio.ensure_future(self._feed())
        self._beat()
        try:
            await asyncio.wait([feeding, self._lost], return_when=asyncio.FIRST_COMPLETED)
            await (self._lost if self._lost.done() else feeding)
        finally:
            self._feeding = False
            if self._beating is not None:
                self._beating.cancel()
            feeding.cancel()
            self._lost.cancel()
            await asyncio.wait([feeding])
            for timer in self._timers.values():
                timer.cancel()
            for task in self._working:
                task.cancel()

    async def _feed(self) -> None:
        settled = asyncio.ensure_future(asyncio.sleep(0))
        self._feeding, self._took_s = True, time.monotonic()
        try:
            while True:
                decided = self._decide(await self._waiting(settled))
                await settled
                settled = asyncio.ensure_future(self._settle(decided))
        finally:
            settled.cancel()
            await asyncio.wait([settled])

    async def step(self, *events: fx.Event) -> None:
        await self._settle(self._decide(events))

    async def _waiting(self, settled: asyncio.Future[None]) -> list[fx.Event]:
        """Return the queued events, at least one; raises the error of `settled`."""
        if self._events.empty() and not settled.done():
            first = asyncio.ensure_future(self._events.get())
            try:
                either: list[asyncio.Future[Any]] = [first, settled]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if settled.done():
                    settled.result()
                queued = await first
            finally:
                first.cancel()
        else:
            queued = await self._events.get()
        self._took_s = time.monotonic()
        events = [self._taken(queued)]
        while len(events) < TOGETHER_EVENTS and not self._events.empty():
            events.append(self._taken(self._events.get_nowait()))
        return events

    def _decide(self, events: Iterable[fx.Event]) -> fx.Effects:
        effects: fx.Effects = []
        for event in events:
            made = self.machine.handle(event, time.monotonic())
            if isinstance(event, fx.MessageReceived):
                refused = [one for one in made if isinstance(one, fx.Refuse)]
                for effect in refused:
                    self._blame(effect.sender or event.sender, effect.reason)
                made += self._judge_key(event, any(one.reason == "forged" for one in refused))
            effects += made
            self._note_place(
                self.machine.at or self._at
            )  # the end of a job is logged with that job
        return effects

    def _judge_key(self, event: fx.MessageReceived, forged: bool) -> fx.Effects:
        """Notify the machine when a peer starts or stops signing with another key."""
        peer = event.sender
        if isinstance(peer, fx.DeviceAddress) or not isinstance(event.message, Note | Offer):
            return []
        if forged == (peer in self._strangers):
            return []
        (self._strangers.add if forged else self._strangers.discard)(peer)
        return self.machine.handle(fx.PeerSigned(peer, not forged), time.monotonic())

    async def _settle(self, effects: fx.Effects) -> None:
        """Execute effects in order; those after the first `Persist` wait for one durable write."""
        items = [effect.item for effect in effects if isinstance(effect, fx.Persist)]
        for effect in effects:
            # Per effect: many sends over a slow link do not count as stuck.
            self._since_s = time.monotonic()
            if isinstance(effect, fx.Persist):
                if items:
                    await self._store(items)
                    items = []
            else:
                await self._execute(effect)
        self._note_place(self.machine.at)
        self._since_s = 0.0

    def _named(self, at: RoundId) -> Place:
        return Place(self._name_job(at.job_id), at.round or None)

    @contextmanager
    def _about(self, at: RoundId | None) -> Iterator[None]:
        before, place = replace(self._place), self._named(at) if at else self._place
        self._place.job, self._place.round = place.job, place.round
        try:
            yield
        finally:
            self._place.job, self._place.round = before.job, before.round

    def _note_place(self, at: RoundId | None) -> None:
        if at != self._at:
            self._at, place = at, self._named(at) if at else Place()
            self._place.job, self._place.round = place.job, place.round

    async def _store(self, items: list[object]) -> None:
        def write() -> None:
            with self.host.together():
                for item in items:
                    self.host.store(item)

        written = asyncio.ensure_future(asyncio.to_thread(write))
        try:
            await asyncio.shield(written)
        except asyncio.CancelledError:
            await asyncio.wait([written])  # the process closes its files next
            raise

    def _taken(self, queued: _Queued) -> fx.Event:
        _, _, event, frame_bytes = queued
        if isinstance(event, fx.MessageReceived):
            self._room.release(frame_bytes)
        return event

    async def _execute(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send(to=to, message=message):
                await self._send(to, encode(message))
            case fx.SetTimer(name=name, delay_s=delay_s):
                self._cancel(name)
                loop = asyncio.get_running_loop()
                self._timers[name] = loop.call_later(delay_s, self._fire, name)
            case fx.CancelTimer(name=name):
                self._cancel(name)
            case fx.Work() as work:
                job = asyncio.create_task(self._perform(work))
                self._working.add(job)
                job.add_done_callback(self._worked)
            case fx.Refuse(reason=reason):
                self.refusals.add(reason)
            case fx.Report() as report:
                with self._about(report.at):
                    self.host.report(report)

    async def _send(self, to: fx.Address, frame: bytes) -> None:
        try:
            await self._publish(to, frame)
        except LinkDown:
            self.refusals.add("link_down")
        except ProtocolError as error:
            self.refusals.add(error.reason)

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        self.post(fx.Timer(name))

    def _cancel(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer:
            timer.cancel()

    def _worked(self, job: asyncio.Task[None]) -> None:
        """End the runtime if work could not be started: the machine would wait for ever."""
        self._working.discard(job)
        error = None if job.cancelled() else job.exception()
        if error is not None and self._lost is not None and not self._lost.done():
            self._lost.set_exception(error)

    async def _perform(self, work: fx.Work) -> None:
        task, loop, here = work.task, asyncio.get_running_loop(), contextvars.copy_context()
        executor = self._executor(task) if callable(self._executor) else self._executor
        at = work.at or getattr(getattr(task, "manifest", None), "at", None)
        here.run(follow, self._named(at) if isinstance(at, RoundId) else replace(self._place))
        result: object
        if not isinstance(task, Carriage):
            result = await loop.run_in_executor(
                executor, here.run, perform, self.host, task, self._log
            )
        elif self._blobs is None:
            result = fx.WorkFailed("no_route")
        else:  # not in the host's executor: a transfer waits for a network
            result = await loop.run_in_executor(self._blobs.executor, self._blobs.carry, task)
        self.post(fx.WorkDone(task, result))


def perform(host: Host, task: object, log: logging.Logger) -> object:
    """Return the host's outcome or `WorkFailed`; raises only if no thread can be started."""
    try:
        return host.perform(task)
    except ProtocolError as error:
        return fx.WorkFailed(error.reason)
    except EdgeVeilError as error:
        return fx.WorkFailed(str(error))
    except Exception as error:
        if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
            raise
        # The text of an unexpected error could quote data: log only its type and place.
        place = error.__traceback__
        while place and place.tb_next:
            place = place.tb_next
        where = f"{place.tb_frame.f_code.co_name}:{place.tb_lineno}" if place else "?"
        log.error("work_failed", extra={"error": type(error).__name__, "place": where})
        return fx.WorkFailed(f"internal error ({type(error).__name__} in {where})")


# --- refusals -------------------------------------------------------------------------------


LOG_EVERY_S = 60.0


class Refusals:
    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._log, self._clock = log, clock
        self._logged_s: dict[str, float] = {}

    def add(self, reason: str) -> None:
        self.counts[reason] += 1
        now = self._clock()
        if now - self._logged_s.get(reason, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[reason] = now
            self._log.warning("refused", extra={"reason": reason, "total": self.counts[reason]})
