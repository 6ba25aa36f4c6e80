"""One job at the cloud: announced, run round by round and released, in all cells.

**States** (`CLOUD_STATES`). In each step the host seals a broadcast for each cell, which is offered
to the cell's proxy until held. The proxies' batches are pulled part by part to the host's disk, and
opened, aggregated and committed together (`Absorb`). Only then are they acknowledged: a proxy keeps
its batch until the round is durable here.

**Masks.** A masked round has two further steps. Each proxy is asked for the checks of its batch's
masks, by factors that are disclosed only now, and uploads that do not fit are excluded. Once the
sums are durable, each proxy is asked for the masks of the chosen uploads. From then on the round is
never repeated, even after a restart, which finds the stored sums.

**Cells.** A step ends when no cell is awaited (`CellStatus`). A cell that is silent, refuses, or
misses the grace after the others' quorum loses only its own devices; it takes part again from the
round after it responded and holds the job. An attempt with too few uploads is repeated, at most
`retries` times a round, with the same devices and noise. After that, or if an operator must act,
the job pauses and keeps its round. Only `watchdog` ends a wait for a proxy; each message of the
proxy about this job restarts it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from msgspec.structs import replace

from edgeveil.crypto.keys import sign
from edgeveil.crypto.labels import RELEASE_AHEAD
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.cloud_reasons import SILENT, RoundAnswers, all_declined, resumes_by_itself

ONE_CELL = ("",)  # a fleet without named cells


@dataclass(frozen=True)
class StartJob:
    """A `Command`: run this job from `round` on."""

    job_id: bytes
    round: int  # 1 for a new job; `rounds + 1` if only the release is missing
    attempt: int  # first unused one
    rounds: int
    retries: int


@dataclass(frozen=True)
class SealJob:
    """Work: seal a job to all keys of these cells. Returns `CellBroadcasts` or `Obstacle`."""

    job_id: bytes
    cells: tuple[str, ...] = ONE_CELL


@dataclass(frozen=True)
class SealRound:
    """Work: select devices and seal the model. Returns as `SealJob`, or stored `AskUnmask`."""

    job_id: bytes
    round: int
    attempt: int
    cells: tuple[str, ...] = field(default=ONE_CELL, compare=False)


@dataclass(frozen=True)
class SealRelease:
    """Work: seal the final model, to a canary or to all. Returns as `SealJob`; {} without one."""

    job_id: bytes
    cells: tuple[str, ...] = ONE_CELL


@dataclass(frozen=True)
class Broadcast:
    manifest: m.Manifest
    data: bytes


@dataclass(frozen=True)
class CellBroadcasts:
    """Broadcast of each cell with devices for it."""

    by_cell: Mapping[str, Broadcast]


@dataclass(frozen=True)
class OpenArrived:
    """Work: open and sum the new part of a round's stream; `Absorb` does the remainder."""

    batch: m.Batch  # without counts while only its stream is available
    cell: str = ""


@dataclass(frozen=True)
class Absorb:
    """Work: open, validate, aggregate, evaluate and commit the stored batches, once."""

    batches: Mapping[str, m.Batch]

    @property
    def at(self) -> m.RoundId:
        return next(iter(self.batches.values())).at


@dataclass(frozen=True)
class AskChecks:
    """Result: uploads were summed under masks; ask these cells for the masks' checks."""

    checks: Mapping[str, m.CheckMasks]


@dataclass(frozen=True)
class TakeChecks:
    """Work: exclude uploads that do not fit their mask's check, and cells without checks."""

    at: m.RoundId
    checks: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class AskUnmask:
    """Result: sums under masks are durable; ask for masks and report `misfits`."""

    unmasks: Mapping[str, m.Unmask]
    misfits: Mapping[str, m.Misfits] = field(default_factory=dict)

    @property
    def at(self) -> m.RoundId:
        return next(iter(self.unmasks.values())).at


@dataclass(frozen=True)
class TakeMasks:
    """Work: subtract and verify masks, then commit; drops cells without, fails on wrong sums."""

    at: m.RoundId
    masks: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class RoundCommit:
    """Result: the round is committed, with the record of accepted segments of all cells.

    `last`: no further round follows, although the job planned some. `drifted`: columns that did, of
    a round with statistics to compare them with."""

    commit: m.Commit
    data: bytes
    last: bool = False
    drifted: int | None = None


@dataclass(frozen=True)
class TooFewUploads:
    """Result: too few valid segments; the round is repeated."""

    reason: str
    answers: RoundAnswers | None = None
    misfits: Mapping[str, m.Misfits] = field(default_factory=dict)


@dataclass(frozen=True)
class Obstacle:
    """Result: a temporary obstacle (devices, disk, database) pauses the job."""

    reason: str


@dataclass(frozen=True)
class TakeBatch:
    """Work: move `name` from the store to the batch. Returns `PutTaken` or `WorkFailed`."""

    batch: m.Batch
    name: str
    cell: str = ""


@dataclass(frozen=True)
class BatchPart:
    """Bytes of the batch or stream with this digest; need not survive the process."""

    digest: bytes
    offset: int
    data: bytes = field(repr=False)
    job_id: bytes = b""
    cell: str = ""


@dataclass(frozen=True)
class BatchDropped:
    job_id: bytes = b""
    cell: str = ""


@dataclass(frozen=True)
class ReleaseHeld:
    sequence: int
    cell: str = ""


@dataclass(frozen=True)
class JobStatus:
    job_id: bytes
    status: str
    reason: str = ""
    answers: RoundAnswers | None = None


@dataclass(frozen=True)
class CloudSettings:
    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20  # a roster
    spool_bytes: int = 1 << 30  # the batches of all jobs
    resend_s: float = 3.0
    repair_s: float = 1.0
    proxy_margin_s: float = 30.0  # after a round's deadline, before the proxy counts as lost
    close_cap_s: float = 60.0  # between two announcements of a job's end
    push_bytes: int = 16 << 20  # larger broadcasts are pulled, with bounded credit
    out_of_band_bytes: int = 0  # minimum size of a blob that goes out of band; 0: none
    url_valid_s: float = 3600.0  # validity of a URL


def timer_name(kind: str, job_id: bytes = b"", cell: str = "") -> str:
    return "/".join([kind, job_id.hex(), cell]).rstrip("/")


BATCH_CREDIT = 256  # requested parts: they go to the disk, not into memory
BATCH_CREDIT_BYTES = 16 << 20


@dataclass(frozen=True)
class Cell:
    """Cell with the cloud's keys and limits, and its timers for one job or for none."""

    name: str
    signer: m.Signer
    releases: m.Signer
    settings: CloudSettings
    job_id: bytes = b""

    @property
    def proxy(self) -> fx.ProxyAddress:
        return fx.ProxyAddress(self.name)

    def set(self, kind: str, delay_s: float) -> fx.SetTimer:
        return fx.SetTimer(timer_name(kind, self.job_id, self.name), delay_s)

    def cancel(self, kind: str) -> fx.CancelTimer:
        return fx.CancelTimer(timer_name(kind, self.job_id, self.name))

    def ack(self, digest: bytes, status: Literal["held", "closed"]) -> fx.Effect:
        return fx.Send(self.proxy, self.signer.note(m.Ack(digest, status)))

    def ask(self, need: m.Need | None) -> fx.Effects:
        return [fx.Send(self.proxy, need)] if need else []


class OutgoingBroadcast:
    """The broadcast that is offered until the proxy holds it, with one timer."""

    def __init__(self, cell: Cell, timer: str) -> None:
        self._cell, self._timer = cell, timer
        self._manifest: m.Manifest | None = None
        self._data = tr.LentData(b"")
        settings = cell.settings
        self.shown = tr.ShownBlobs(cell.signer, settings.out_of_band_bytes, settings.url_valid_s)

    def offer(self, new: Broadcast) -> fx.Effects:
        self.drop()
        self._manifest, self._data = new.manifest, tr.LentData(new.data)
        return self.send(push=new.manifest.blob.size_bytes <= self._cell.settings.push_bytes)

    def drop(self) -> None:
        self._data.take_back()
        self._manifest = None

    def send(self, *, push: bool = False) -> fx.Effects:
        """Offer the broadcast; the proxy requests parts that are not pushed."""
        if self._manifest is None:
            return []
        cell, manifest = self._cell, self._manifest
        if manifest.kind == "job":
            proof = sign(cell.releases.key, RELEASE_AHEAD, m.proof_of_releases(manifest))
            manifest = replace(manifest, release_proof=proof)
        signer = cell.releases if manifest.kind == "release" else cell.signer
        packets = tr.sends(
            cell.proxy,
            signer.header(manifest),
            manifest.blob,
            self._data,
            cell.settings.packet_bytes,
            push=push,
            out_of_band=self.shown.takes(manifest.blob),
        )
        return [*packets, cell.set(self._timer, cell.settings.resend_s)]

    @property
    def sequence(self) -> int:
        return self._manifest.sequence if self._manifest else -1

    def is_blob(self, digest: bytes) -> bool:
        return self._manifest is not None and self._manifest.blob.digest == digest

    def lends(self, data: object) -> bool:
        return data is self._data

    def answer(self, need: m.Need, now_s: float) -> fx.Effects:
        """Send parts or the URL. Raises `unknown_blob`, `bad_index`."""
        if self._manifest is None or not self.is_blob(need.blob):
            raise ProtocolError("unknown_blob")
        proxy, blob = self._cell.proxy, self._manifest.blob
        if need.out_of_band:
            answer = self.shown.answer(proxy, blob, self._data, now_s)
            if answer is not None:
                return answer
        return tr.answer_need(proxy, need, blob, self._data)


class BatchArrival:
    """Batch of one job and cell; timer `repair`; each part restarts `watchdog`."""

    def __init__(self, cell: Cell) -> None:
        self._cell, settings = cell, cell.settings
        self._batch: tr.Fetch[m.Batch] | None = None  # its bytes go to the host
        self._stream: tr.Fetch[m.Batch] | None = None  # the front of an incomplete one
        self._at_work = self._more = False  # the host opens a stream; more was received since
        self.grants = tr.PutGrants[m.Batch](
            cell.signer, settings.out_of_band_bytes, settings.url_valid_s
        )

    @property
    def whole_batch(self) -> m.Batch | None:
        """The batch, once every part of it was handed to the host."""
        batch = self._batch
        return batch.header if batch and batch.complete else None

    @property
    def batch_bytes(self) -> int:
        return self._batch.header.blob.size_bytes if self._batch else 0

    @property
    def claimed_bytes(self) -> int:
        under_way = self._batch or self._stream
        return under_way.header.blob.size_bytes if under_way else 0

    def knows(self, digest: bytes) -> bool:
        under_way = self._batch or self._stream
        if under_way is None:
            return False
        return digest in (under_way.header.blob.digest, under_way.header.stream)

    def batch(self, offer: m.Offer, header: m.Batch, now_s: float) -> fx.Effects:
        """Pull an offered batch if it is large or streamed, or assign a URL."""
        cell, batch, stream, known = self._cell, self._batch, self._stream, False
        new = batch is None or batch.header != header
        if batch is None or new:
            if stream is not None and stream.header.stream == header.stream:
                try:
                    stream.grow(offer, header)  # its parts are the front of this batch
                    known = True
                except ProtocolError:
                    pass
            batch = stream if known and stream else self._fetch(offer, header)
            self._batch, self._stream = batch, None
        proxy, blob = cell.proxy, header.blob
        repair = cell.set("repair", cell.settings.repair_s)
        if offer.out_of_band and not header.stream and self.grants.takes(proxy, blob, now_s):
            batch.in_transit = True
            grant = self.grants.offered(proxy, cell.job_id, blob, header, now_s)
            return [*grant, repair, self.watch()]
        batch.in_transit = False
        out: fx.Effects = []
        for part in tr.first_data(offer, blob):
            out += self._store(batch, part)
        if known:
            out += cell.ask(batch.next_need(timer=False))
        elif new and (header.stream or blob.size_bytes > cell.settings.push_bytes):
            out += cell.ask(batch.next_need(timer=True))
        return [*out, repair, self.watch()] if new else [*out, repair]

    def is_put(self, put: m.BlobPut) -> fx.Effects:
        grant = self.grants.get(self._cell.proxy, put.blob)
        if grant is None or grant.taking or not grant.name:
            return []
        grant.taking = True
        return [fx.Work(TakeBatch(grant.arrival, grant.name, self._cell.name), grant.arrival.at)]

    def taken(self, task: TakeBatch, result: object) -> fx.Effects:
        batch = self._batch
        if batch is None or batch.header != task.batch:
            # The round ended meanwhile.
            return [] if batch or self._stream else [self._dropped()]
        self.grants.end(self._cell.job_id)
        if isinstance(result, tr.PutTaken):
            batch.fill(b"")
            return []
        return [fx.Refuse(f"beside_{tr.why_not(result)}")]

    def stream(self, arrived: m.Arrived) -> fx.Effects:
        """Request the front of a batch. Raises ProtocolError."""
        blob = arrived.blob
        tr.check_claim(blob, self._cell.settings.spool_bytes)
        if blob.size_bytes % blob.part_bytes or not blob.size_bytes:
            raise ProtocolError("malformed")
        if self._batch is not None:
            return []  # the batch includes it
        header = m.Batch(arrived.at, 0, 0, (), blob, blob.digest)
        offer = m.Offer(m.Envelope("proxy", b"", bytes(64)))
        stream = self._stream
        if stream is None or stream.header.stream != header.stream:
            stream = self._stream = self._fetch(offer, header)
        elif blob.size_bytes <= stream.header.blob.size_bytes:
            return []  # already known
        stream.grow(offer, header)
        return self._cell.ask(stream.next_need(timer=False))

    def opened(self) -> fx.Effects:
        self._at_work, more, self._more = False, self._more, False
        batch = self._batch or self._stream
        return self._open(batch.header) if more and batch and batch.header.stream else []

    def part(self, part: m.BlobPart) -> fx.Effects:
        batch = self._batch or self._stream
        return self._store(batch, part) if batch is not None and self.knows(part.blob) else []

    def repair(self) -> fx.Effects:
        batch = self._batch
        if batch is None or batch.complete:
            return []
        out = self._cell.ask(batch.next_need(timer=True))
        if not batch.idle_timeouts and not batch.in_transit:
            # The round is closed: from now on only the proxy's silence counts.
            out.append(self.watch())
        return [*out, self._cell.set("repair", self._cell.settings.repair_s)]

    def acknowledge(self) -> fx.Effects:
        if self._batch is None:
            return []
        ack = self._cell.ack(self._batch.header.blob.digest, "held")
        return [*self.drop(), ack]

    def drop(self) -> fx.Effects:
        batch = self._batch or self._stream
        self._batch = self._stream = None
        self.grants.end(self._cell.job_id)
        return [] if batch is None else [self._dropped()]

    def drop_stream(self) -> fx.Effects:
        """Drop the front of an incomplete batch; it is sent again with the batch."""
        return self.drop() if self._batch is None else []

    def watch(self) -> fx.SetTimer:
        return self._cell.set("watchdog", self._cell.settings.proxy_margin_s)

    def _dropped(self) -> fx.Effect:
        return fx.Persist(BatchDropped(self._cell.job_id, self._cell.name))

    def _fetch(self, offer: m.Offer, header: m.Batch) -> tr.Fetch[m.Batch]:
        most_bytes = self._cell.settings.spool_bytes
        credit = min(BATCH_CREDIT, max(tr.NEED_LIMIT, BATCH_CREDIT_BYTES // header.blob.part_bytes))
        return tr.Fetch(offer, header, most_bytes, keep=False, credit=credit)

    def _store(self, batch: tr.Fetch[m.Batch], part: m.BlobPart) -> fx.Effects:
        cell, blob, stream = self._cell, batch.header.blob, batch.header.stream
        again = part.index in batch
        batch.add(part)
        if again:
            return []
        place = part.index * blob.part_bytes
        kept = BatchPart(stream or blob.digest, place, part.data, cell.job_id, cell.name)
        opening = self._open(batch.header) if stream else []
        return [fx.Persist(kept), *opening, *cell.ask(batch.next_need(timer=False))]

    def _open(self, batch: m.Batch) -> fx.Effects:
        if self._at_work:
            self._more = True
            return []
        self._at_work = True
        return [fx.Work(OpenArrived(batch, self._cell.name), batch.at)]


class _MaskArrivals:
    """One request about masks, repeated by the timer `unmask` until `masks` is complete."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._request: m.CheckMasks | m.Unmask | None = None
        self._answer: tr.Fetch[m.MaskSums] | None = None
        self.masks: bytes | None = None

    def ask(self, request: m.CheckMasks | m.Unmask) -> fx.Effects:
        self._request, self._answer, self.masks = request, None, None
        return self.send()

    def drop(self) -> fx.Effects:
        self._request, answer, self._answer, self.masks = None, self._answer, None, None
        ack = [self._cell.ack(answer.header.blob.digest, "held")] if answer else []
        return [self._cell.cancel("unmask"), *ack]

    @property
    def question(self) -> bytes:
        request = self._request
        return hashlib.sha256(m.encode_inner(request)).digest() if request else b""

    def send(self) -> fx.Effects:
        if self._request is None or self.masks is not None:
            return []
        cell = self._cell
        again = cell.set("unmask", cell.settings.resend_s)
        if self._answer is None:
            return [fx.Send(cell.proxy, cell.signer.note(self._request)), again]
        need = self._answer.next_need(timer=True)
        if self._answer.idle_timeouts > 1:  # the proxy may have restarted and lost the answer
            self._answer = None
        return [*cell.ask(need), again]

    def offer(self, offer: m.Offer, header: m.MaskSums) -> fx.Effects:
        request = self._request
        if request is None or header.question != self.question or header.at != request.at:
            return [self._cell.ack(header.blob.digest, "held")]
        limit_bytes = self._cell.settings.blob_bytes
        tr.check_fetchable(offer, header.blob, limit_bytes)
        if self._answer is None or self._answer.header != header:
            self._answer = tr.Fetch(offer, header, limit_bytes)
        if self.masks is not None:
            return []  # already in use
        complete = False
        for part in tr.first_data(offer, header.blob):
            complete = self._answer.add(part)
        return self._whole(self._answer) if complete else []

    def knows(self, digest: bytes) -> bool:
        return self._answer is not None and self._answer.header.blob.digest == digest

    def part(self, part: m.BlobPart) -> fx.Effects | None:
        """Take a part of the answer; returns None if it is of another blob."""
        answer = self._answer
        if answer is None or answer.header.blob.digest != part.blob:
            return None
        if part.index in answer:
            return []
        if answer.add(part):
            return self._whole(answer)
        return self._cell.ask(answer.next_need(timer=False))

    def _whole(self, answer: tr.Fetch[m.MaskSums]) -> fx.Effects:
        try:
            self.masks = answer.finish()
        except ProtocolError:
            self._answer = None
            raise
        return [self._cell.cancel("unmask")]


class CellStatus(Enum):
    OUT = "out"  # takes no part in the step
    OFFERED = "offered"  # its proxy does not hold the broadcast yet
    HELD = "held"  # the proxy holds it; in a round, the batch is awaited
    ASKED = "asked"  # the proxy is asked about masks
    RECEIVED = "received"  # the batch is complete, or the checks or sums of masks
    SHORT = "short"  # too few devices answered
    FAILED = "failed"  # silent or refusing; costs only the cell's devices


class RepeatedNotes:
    """Notes repeated with growing intervals until each is confirmed; one timer for all."""

    def __init__(self, cell: Cell, signer: m.Signer, timer: str) -> None:
        self._cell, self._signer, self._timer = cell, signer, timer
        self._open: dict[bytes, tuple[m.Body, m.Note]] = {}
        self._wait_s = cell.settings.resend_s

    def add(self, key: bytes, body: m.Body) -> fx.Effects:
        self._open[key] = body, self._signer.note(body)
        self._wait_s = self._cell.settings.resend_s
        return self.send()

    def sign_anew(self) -> fx.Effects:
        self._open = {k: (body, self._signer.note(body)) for k, (body, _) in self._open.items()}
        self._wait_s = self._cell.settings.resend_s
        return self.send()

    def send(self) -> fx.Effects:
        if not self._open:
            return []
        cell, wait_s = self._cell, self._wait_s
        self._wait_s = min(2 * wait_s, cell.settings.close_cap_s)
        notes = [fx.Send(cell.proxy, note) for _, note in self._open.values()]
        return [*notes, cell.set(self._timer, wait_s)]

    def confirmed(self, digest: bytes) -> fx.Effects | None:
        """Remove the note with this digest; returns None if there is none."""
        for key, (_, note) in self._open.items():
            if hashlib.sha256(note.body.payload).digest() == digest:
                del self._open[key]
                return [] if self._open else [self._cell.cancel(self._timer)]
        return None


class CellRun:
    """One job in one cell; `joined`: its proxy holds the job and may get rounds."""

    def __init__(self, home: Cell, *, alone: bool) -> None:
        self.home, self._alone, self.cell = home, alone, home.name  # alone: the only cell
        self.out = OutgoingBroadcast(home, "resend")
        self.arrival = BatchArrival(home)
        self.masks = _MaskArrivals(home)
        self.status, self.reason = CellStatus.OUT, ""
        self.joined = self.joining = self.responding = False
        self.link = self.outage = ""  # link that is down now; that was, since the last offer
        self.manifest: m.Manifest | None = None  # newest offered
        self.shortfall: m.Shortfall | None = None

    @property
    def awaited(self) -> bool:
        return self.status in (CellStatus.OFFERED, CellStatus.HELD, CellStatus.ASKED)

    @property
    def silent(self) -> bool:
        return self.reason == SILENT and not self.responding

    def offer(self, new: Broadcast) -> fx.Effects:
        self.status, self.reason, self.shortfall = CellStatus.OFFERED, "", None
        self.outage = self.link
        self.manifest = new.manifest
        return [*self.out.offer(new), self.wait()]

    def linked(self, down: str) -> fx.Effects:
        """Record the failed link (`down`, "" if none), which excuses the cell's silence."""
        before, self.link = self.link, down
        self.outage = down or self.outage
        return [self.wait()] if before and not down and self.awaited else []

    def on_held(self) -> fx.Effects:
        """Start the round's wait; the proxy's deadline runs from here, not from sealing."""
        self.status = CellStatus.HELD
        self.out.drop()
        return [self.home.cancel("resend"), self.wait()]

    def ask(self, request: m.CheckMasks | m.Unmask) -> fx.Effects:
        self.status, self.reason = CellStatus.ASKED, ""
        return [*self.masks.ask(request), self.arrival.watch()]

    def on_received(self) -> fx.Effects:
        self.status = CellStatus.RECEIVED
        return self.cancel_timers()

    def fail(self, reason: str) -> fx.Effects:
        self.status, self.reason = CellStatus.FAILED, reason
        self.joined = self.responding = False
        return self._drop_all()

    def drop(self) -> fx.Effects:
        self.status, self.joining = CellStatus.OUT, False
        return self._drop_all()

    def _drop_all(self) -> fx.Effects:
        self.out.drop()
        return [*self.arrival.drop(), *self.masks.drop(), *self.cancel_timers()]

    def cancel_timers(self) -> fx.Effects:
        return [self.home.cancel("watchdog"), self.home.cancel("resend")]

    def send_record(self, commit: m.Commit, data: bytes) -> fx.Effects:
        out = [*self.masks.drop(), *self.arrival.acknowledge(), *self.arrival.drop()]
        self.out.drop()
        self.status, cell = CellStatus.OUT, self.home
        signed, packet_bytes = cell.signer.header(commit), cell.settings.packet_bytes
        return [*out, *tr.sends(cell.proxy, signed, commit.blob, data, packet_bytes)]

    def wait(self) -> fx.SetTimer:
        last = self.manifest
        held = self._alone or self.status is CellStatus.HELD
        round_s = last.deadline_s + last.grace_s if last and held else 0.0
        return self.home.set("watchdog", round_s + self.home.settings.proxy_margin_s)

    def send(self) -> fx.Effects:
        return [*self.out.send(), *self.masks.send()]

    def knows(self, digest: bytes) -> bool:
        return self.masks.knows(digest) or self.arrival.knows(digest)

    def asks_about(self, ack: m.Ack) -> bool:
        return ack.blob == self.masks.question or self.out.is_blob(ack.blob)


class CloudState(Enum):
    IDLE = "idle"
    SEALING_JOB = "sealing_job"
    ANNOUNCING = "announcing"
    SEALING = "sealing"
    BROADCASTING = "broadcasting"
    WAITING = "waiting"
    ABSORBING = "absorbing"
    CHECKING = "checking"
    UNMASKING = "unmasking"
    SEALING_RELEASE = "sealing_release"
    RELEASING = "releasing"


_S = CloudState
_ASKING = (_S.CHECKING, _S.UNMASKING)  # about masks
_WAITING_ON = (_S.ANNOUNCING, *_ASKING, _S.RELEASING)  # blocked until a cell responds
_RUNNING = [state for state in CloudState if state is not _S.IDLE]
CLOUD_STATES = fx.StateTable(
    _S.IDLE,
    {
        (_S.IDLE, "start"): _S.SEALING_JOB,
        (_S.SEALING_JOB, "sealed"): _S.ANNOUNCING,
        (_S.ANNOUNCING, "held"): _S.SEALING,
        (_S.ANNOUNCING, "held_all_committed"): _S.SEALING_RELEASE,
        (_S.SEALING, "sealed"): _S.BROADCASTING,
        (_S.BROADCASTING, "held"): _S.WAITING,
        (_S.BROADCASTING, "batch"): _S.ABSORBING,
        (_S.WAITING, "batch"): _S.ABSORBING,
        (_S.ABSORBING, "committed"): _S.SEALING,
        (_S.ABSORBING, "committed_last"): _S.SEALING_RELEASE,
        (_S.ABSORBING, "opened"): _S.CHECKING,
        (_S.ABSORBING, "summed"): _S.UNMASKING,
        (_S.CHECKING, "summed"): _S.UNMASKING,
        (_S.SEALING, "summed"): _S.UNMASKING,
        (_S.UNMASKING, "committed"): _S.SEALING,
        (_S.UNMASKING, "committed_last"): _S.SEALING_RELEASE,
        (_S.SEALING_RELEASE, "sealed"): _S.RELEASING,
        (_S.RELEASING, "held"): _S.IDLE,
    }
    | {(s, "repeat"): _S.SEALING for s in (_S.BROADCASTING, _S.WAITING, _S.ABSORBING, _S.CHECKING)}
    | {(s, "rekeyed"): _S.SEALING_JOB for s in (_S.SEALING, _S.BROADCASTING, _S.WAITING)}
    | {(s, how): _S.IDLE for how in ("pause", "end") for s in _RUNNING},
)


_EVALUATIONS = ("evaluate", "cluster", "ask")  # phases that change no model
_SLOW = "the other cells had a quorum of all devices before it answered"


class JobRun:
    """One job from its start to its end, when its state is `idle` again."""

    def __init__(self, start: StartJob, cells: list[Cell], ends: list[RepeatedNotes]) -> None:
        """`cells` have this job's timers; the job's end is sent by `ends`."""
        self.start, self._ends, self._settings = start, ends, cells[0].settings
        self.job_id = start.job_id
        self.state = CLOUD_STATES.start
        self.round, self.attempt = start.round, start.attempt
        self.retries_left = start.retries
        # After the current commit: the key that announced the job was replaced.
        self._announce_again = False
        alone = len(cells) == 1
        self.cells = {cell.name: CellRun(cell, alone=alone) for cell in cells}

    @property
    def at(self) -> m.RoundId:
        return m.RoundId(self.job_id, self.round, self.attempt)

    @property
    def sealing(self) -> SealRound:
        joined = tuple(one.cell for one in self.cells.values() if one.joined)
        return SealRound(self.job_id, self.round, self.attempt, joined or tuple(self.cells))

    @property
    def over(self) -> bool:
        return self.state is CloudState.IDLE

    @property
    def releasing(self) -> bool:
        return self.state in (_S.SEALING_RELEASE, _S.RELEASING)

    def awaits(self, task: object) -> bool:
        """Return whether this task belongs to the current attempt."""
        match task:
            case SealJob(job_id=job_id) | SealRelease(job_id=job_id):
                return job_id == self.job_id
            case SealRound():
                return task == self.sealing
            case Absorb(at=at) | TakeChecks(at=at) | TakeMasks(at=at):
                return at == self.at
        return False

    def _step(self, happened: str) -> None:
        self.state = CLOUD_STATES.step(self.state, happened)

    def _may(self, event: str) -> bool:
        return CLOUD_STATES.allows(self.state, event)

    def _work(self, task: object) -> fx.Work:
        return fx.Work(task, self.at)

    def _report(self, event: str, **data: Any) -> fx.Report:
        return fx.Report(event, data, self.at)

    @property
    def _manifests(self) -> list[m.Manifest]:
        active = [one.manifest for one in self.cells.values() if one.status is not CellStatus.OUT]
        return [manifest for manifest in active if manifest is not None]

    def _where(self, *statuses: CellStatus) -> list[CellRun]:
        return [one for one in self.cells.values() if one.status in statuses]

    def begin(self) -> fx.Effects:
        """Announce the job. Raises ProtocolError `illegal_transition` if it runs."""
        self._step("start")
        data = {"job_id": self.job_id.hex(), "rounds": self.start.rounds}
        return [self._report("job_started", **data), self._work(self._announcement)]

    @property
    def _announcement(self) -> SealJob:
        return SealJob(self.job_id, tuple(self.cells))

    def cancel(self) -> fx.Effects:
        return self._end("cancelled", "cancelled by the operator")

    def rekeyed(self) -> fx.Effects:
        if not self._may("rekeyed"):
            # Signed offers are no longer needed, or repeated with the new key.
            self._announce_again = self.state in (_S.ABSORBING, *_ASKING)
            return [one for cell in self.cells.values() for one in cell.send()]
        self.attempt += 1
        return self._announce_anew()

    def _announce_anew(self) -> fx.Effects:
        self._step("rekeyed")
        self._announce_again = False
        return [*self._drop_all(), self._work(self._announcement)]

    def _drop_all(self) -> fx.Effects:
        return [one for cell in self.cells.values() for one in cell.drop()]

    def _pause(self, reason: str, answers: RoundAnswers | None = None) -> fx.Effects:
        self._step("pause")
        return self._stop("paused", reason, answers)

    def _end(self, status: str, reason: str) -> fx.Effects:
        self._step("end")
        return self._stop(status, reason)

    def _stop(self, status: str, reason: str, answers: RoundAnswers | None = None) -> fx.Effects:
        close = m.Close(self.job_id, status)  # type: ignore[arg-type]
        ends = self._ends if status != "paused" else ()
        return [
            *self._drop_all(),
            fx.Persist(JobStatus(self.job_id, status, reason, answers)),
            *(one for end in ends for one in end.add(self.job_id, close)),
            self._report("job_" + status, job_id=self.job_id.hex(), reason=reason),
        ]

    def done(self, task: object, result: object) -> fx.Effects:
        cells = self.cells
        if isinstance(task, SealJob) and self.state is not _S.SEALING_JOB:
            joining = [cells[cell] for cell in task.cells if cells[cell].joining]
            if joining:
                return self._offer_job(joining, result)
        match result:
            case fx.WorkFailed(reason=reason) | Obstacle(reason=reason) if isinstance(
                task, Absorb | TakeChecks
            ):
                # Not acknowledged: the proxies keep the batch until the next attempt.
                return self._repeat(reason)
            case fx.WorkFailed(reason=reason):
                return self._end("failed", reason)
            case Obstacle(reason=reason):
                return self._pause(reason)
            case CellBroadcasts(by_cell=by_cell):
                return self._sealed(by_cell) if by_cell else self._end("completed", "")
            case RoundCommit(commit=commit, data=data, last=last):
                return self._committed(commit, data, last)
            case AskChecks(checks=checks):
                # Uploads of other cells are not checked individually.
                self._step("opened")
                requests = [one for cell, check in checks.items() for one in cells[cell].ask(check)]
                return [self._report("checking", round=self.round), *requests]
            case AskUnmask(unmasks=unmasks, misfits=misfits):
                self._step("summed")
                self.attempt = next(iter(unmasks.values())).at.attempt
                out = [*self._blame(misfits), self._report("unmasking", round=self.round)]
                for cell in cells.values():
                    request = unmasks.get(cell.cell)
                    out += cell.ask(request) if request else cell.drop()
                return out
            case TooFewUploads(reason=reason, answers=answers, misfits=misfits):
                acks = [one for cell in cells.values() for one in cell.arrival.acknowledge()]
                return [*self._blame(misfits), *acks, *self._repeat(reason, answers)]
        return []

    def _blame(self, misfits: Mapping[str, m.Misfits]) -> fx.Effects:
        """Report misfits to the proxies while these know the senders."""
        homes = [(self.cells[cell].home, note) for cell, note in misfits.items()]
        return [fx.Send(home.proxy, home.signer.note(note)) for home, note in homes]

    def _sealed(self, by_cell: Mapping[str, Broadcast]) -> fx.Effects:
        self._step("sealed")
        first = next(iter(by_cell.values())).manifest
        at, kind = first.at, first.kind
        # A job and a release are one broadcast for all cells.
        counts = [one.manifest.selected for one in by_cell.values()]
        selected = sum(counts) if kind == "round" else first.selected
        data = {"round": at.round, "kind": kind, "selected": selected, "attempt": at.attempt}
        out: fx.Effects = [self._report("broadcast", **data)]
        for cell in self.cells.values():
            if cell.cell in by_cell:
                out += cell.offer(by_cell[cell.cell])
            elif not cell.joining:
                out += cell.drop()
        return out

    def _committed(self, commit: m.Commit, data: bytes, last: bool) -> fx.Effects:
        last = last or self.round >= self.start.rounds
        self._step("committed_last" if last else "committed")
        out: fx.Effects = []
        for cell in self.cells.values():
            if cell.status is not CellStatus.OUT:
                out += cell.send_record(commit, data)
        self.retries_left, self.attempt = self.start.retries, 1
        if last:
            return [*out, self._work(SealRelease(self.job_id, tuple(self.cells)))]
        self.round += 1
        if self._announce_again:
            return [*out, *self._announce_anew()]
        return [*out, *self._join(), self._work(self.sealing)]

    def _repeat(self, reason: str, answers: RoundAnswers | None = None) -> fx.Effects:
        """Start another attempt, without using a retry after an outage; pause during one."""
        active = [one for one in self.cells.values() if one.status is not CellStatus.OUT]
        if down := next((one.link for one in active if one.link), ""):
            return self._pause(down, answers)
        outage = any(one.outage for one in active)
        if self.retries_left <= 0 and not outage:
            return self._pause(reason, answers)
        self._step("repeat")
        self.retries_left -= not outage
        self.attempt += 1
        counts = {} if answers is None else {"answers": answers.to_dict()}
        data = {"round": self.round, "attempt": self.attempt, "why": reason, **counts}
        report = self._report("round_repeated", **data)
        if self._announce_again:
            return [report, *self._announce_anew()]
        dropped = [one for cell in self.cells.values() if not cell.joining for one in cell.drop()]
        return [*dropped, report, *self._join(), self._work(self.sealing)]

    def _join(self) -> fx.Effects:
        """Seal the job for cells that responded without holding it, in parallel to rounds."""
        late = [one for one in self.cells.values() if one.responding and not one.joined]
        late = [one for one in late if not one.joining]
        for cell in late:
            cell.joining = True
        return [self._work(SealJob(self.job_id, tuple(one.cell for one in late)))] if late else []

    def _offer_job(self, joining: list[CellRun], result: object) -> fx.Effects:
        by_cell = result.by_cell if isinstance(result, CellBroadcasts) else {}
        out: fx.Effects = []
        for cell in joining:
            offered = by_cell.get(cell.cell)
            if offered is None:
                cell.joining = False
            else:
                out += cell.out.offer(offered)
        return out

    def answer(self, cell: str, need: m.Need, now_s: float) -> fx.Effects:
        run = self.cells[cell]
        out = run.out.answer(need, now_s)
        return [*out, run.wait()] if run.status is CellStatus.OFFERED else out

    def acknowledged(self, cell: str, ack: m.Ack) -> fx.Effects:
        run = self.cells[cell]
        if ack.blob == run.masks.question:
            request = "check masks" if self.state is _S.CHECKING else "unmask"
            return self._fail(run, f"the proxy refused to {request}: {ack.reason}")
        if run.joining:
            run.joining, run.joined = False, ack.status == "held"
            run.out.drop()
            return run.cancel_timers()
        if run.status is not CellStatus.OFFERED:
            return []
        if ack.status != "held":
            return self._fail(run, f"the proxy refused the broadcast: {ack.reason}")
        sequence = run.out.sequence
        out = run.on_held()
        if self.state is CloudState.RELEASING:
            out = [fx.Persist(ReleaseHeld(sequence, cell)), *out]
        run.joined = True
        if not self._may("batch"):
            out += run.cancel_timers()
        return [*out, *self._move()]

    def takes(self, cell: str, header: m.Batch) -> bool:
        run = self.cells[cell]
        accepts = run.status in (CellStatus.OFFERED, CellStatus.HELD, CellStatus.FAILED)
        offered = run.manifest is not None and run.manifest.at == self.at
        return header.at == self.at and self._may("batch") and accepts and offered

    def batch(
        self, cell: str, offer: m.Offer, header: m.Batch, room_bytes: int, now_s: float
    ) -> fx.Effects:
        """Take an offered batch if `room_bytes` suffice. Raises ProtocolError."""
        settings, size_bytes = self._settings, header.blob.size_bytes
        takes, run = self.takes(cell, header), self.cells[cell]
        if takes and size_bytes > settings.spool_bytes:
            # Another attempt would have the same size.
            return self._pause(
                f"the batch has {size_bytes} bytes, limits.spool_bytes is {settings.spool_bytes}"
            )
        tr.check_fetchable(offer, header.blob, settings.spool_bytes)
        if header.at != self.at:
            # The host may hold sums of this round, for which the proxy must keep the seeds.
            summing = self.state in (_S.SEALING_JOB, _S.ANNOUNCING, _S.SEALING)
            keep = header.at.round == self.round and summing
            return [] if keep else [run.home.ack(header.blob.digest, "closed")]
        if not takes:
            return []  # being absorbed: the acknowledgement follows the commit
        if size_bytes > room_bytes:
            # The proxy offers it again, and room becomes free; meanwhile the proxy is not silent.
            return [fx.Refuse("spool_full"), run.arrival.watch()]
        return self._arrived(run, run.arrival.batch(offer, header, now_s))

    def taken(self, task: TakeBatch, result: object) -> fx.Effects:
        run = self.cells[task.cell]
        return self._arrived(run, run.arrival.taken(task, result))

    def stream(self, cell: str, arrived: m.Arrived, room_bytes: int) -> fx.Effects:
        if arrived.at != self.at or not self._may("batch"):
            return []
        if arrived.blob.size_bytes > room_bytes or not self.cells[cell].awaited:
            return []  # sent with the batch
        return self.cells[cell].arrival.stream(arrived)

    def part(self, cell: str, part: m.BlobPart) -> fx.Effects:
        run = self.cells[cell]
        taken = run.masks.part(part)
        if taken is None:
            return self._arrived(run, run.arrival.part(part))
        return self._unmasked(run, taken)

    def masks(self, cell: str, offer: m.Offer, header: m.MaskSums) -> fx.Effects:
        """Take offered sums of masks. Raises ProtocolError if they cannot be fetched."""
        return self._unmasked(self.cells[cell], self.cells[cell].masks.offer(offer, header))

    def _unmasked(self, cell: CellRun, out: fx.Effects) -> fx.Effects:
        if cell.masks.masks is None or cell.status is not CellStatus.ASKED:
            return out
        return [*out, *cell.on_received(), *self._move()]

    def _arrived(self, cell: CellRun, out: fx.Effects) -> fx.Effects:
        batch = cell.arrival.whole_batch
        if batch is None or not self.takes(cell.cell, batch):
            return out
        return [*out, *cell.on_received(), *self._move()]

    def short(self, cell: str, short: m.Shortfall) -> fx.Effects:
        run = self.cells[cell]
        waits = run.status in (CellStatus.OFFERED, CellStatus.HELD)
        if short.at != self.at or not self._may("batch") or not waits:
            return []
        run.status, run.shortfall = CellStatus.SHORT, short
        run.out.drop()
        return [*run.cancel_timers(), *self._move()]

    def _fail(self, cell: CellRun, reason: str) -> fx.Effects:
        out = cell.fail(reason)
        if len(self.cells) > 1:
            which = {"cell": cell.cell} if cell.cell else {}
            out.append(self._report("cell_gone", round=self.round, why=reason, **which))
        return [*out, *self._move()]

    def _move(self) -> fx.Effects:
        offered, held = self._where(CellStatus.OFFERED), self._where(CellStatus.HELD)
        received = self._where(CellStatus.RECEIVED)
        if self._may("batch"):
            return self._round_moves(offered, held, received)
        if self.state in _ASKING and not self._where(CellStatus.ASKED):
            answers = {one.cell: one.masks.masks for one in received}
            masks = {cell: data for cell, data in answers.items() if data is not None}
            if self.state is _S.UNMASKING:
                work = self._work(TakeMasks(self.at, masks))
                return [work] if masks else self._pause(self._why())
            work = self._work(TakeChecks(self.at, masks))
            return [work] if received else self._repeat(self._why())
        if self.state not in (_S.ANNOUNCING, _S.RELEASING) or offered:
            return []
        if not held:
            return self._pause(self._why())
        if self.state is _S.RELEASING:
            self._step("held")
            return self._stop("completed", "")
        # A job may be resumed after its last commit and before its release.
        trained = self.round > self.start.rounds
        self._step("held_all_committed" if trained else "held")
        self.retries_left = self.start.retries
        next_ = SealRelease(self.job_id, tuple(self.cells)) if trained else self.sealing
        return [self._report("held", round=self.round), self._work(next_)]

    def _why(self) -> str:
        """Return why no cell has the step's result: a refusal before silence."""
        reasons = [one.reason for one in self._where(CellStatus.FAILED)]
        return next((one for one in reasons if one != SILENT), SILENT)

    def _round_moves(
        self, offered: list[CellRun], held: list[CellRun], received: list[CellRun]
    ) -> fx.Effects:
        """Absorb the batches once no cell is awaited; a quorum starts `grace_s`."""
        out: fx.Effects = []
        if held and not offered and self._may("held"):
            self._step("held")
            out.append(self._report("held", round=self.round))
        wholes = {one.cell: one.arrival.whole_batch for one in received}
        batches = {cell: batch for cell, batch in wholes.items() if batch is not None}
        uploads = sum(batch.uploads for batch in batches.values())
        if offered or held:
            quorum = sum(manifest.quorum for manifest in self._manifests)
            if received and uploads >= quorum:
                grace_s = max(one.manifest.grace_s for one in received if one.manifest)
                out.append(fx.SetTimer(timer_name("enough", self.job_id), grace_s))
            return out
        if not received:
            return [*out, *self._no_batch()]
        self._step("batch")
        report = self._report("batch", round=self.round, uploads=uploads)
        cancel = fx.CancelTimer(timer_name("enough", self.job_id))
        return [*out, report, cancel, self._work(Absorb(batches))]

    def _no_batch(self) -> fx.Effects:
        short = [one.shortfall for one in self.cells.values() if one.status is CellStatus.SHORT]
        if not short:
            why = self._why()
            return self._repeat(why) if resumes_by_itself(why) else self._pause(why)
        selected = sum(manifest.selected for manifest in self._manifests)
        answers = RoundAnswers.of(selected, [one for one in short if one is not None])
        if self.attempt == 1 and answers.ends_job(self.round):
            # A repetition cannot change the refusals, or no budget was spent yet.
            why = all_declined(answers)
            if any(manifest.phase in _EVALUATIONS for manifest in self._manifests):
                return self._pause(why)  # keeps the trained model despite missing figures
            data = {"declined": answers.declined, "causes": dict(answers.causes)}
            report = self._report("all_declined", round=self.round, **data)
            return [report, *self._end("failed", why)]
        return self._repeat(f"{answers}: below the minimum", answers)

    def timer(self, kind: str, cell: str) -> fx.Effects:
        if kind == "enough":  # the other cells have a quorum
            slow = self._where(CellStatus.OFFERED, CellStatus.HELD) if self._may("batch") else []
            return [one for run in slow for one in self._fail(run, _SLOW)]
        run = self.cells[cell]
        match kind:
            case "resend":
                return run.out.send()
            case "repair":
                return run.arrival.repair()
            case "unmask":
                return run.masks.send()
            case "watchdog":
                return self._silent(run) if run.awaited else []
        return []

    def _silent(self, cell: CellRun) -> fx.Effects:
        """Offer or ask again, using a retry; a round is not awaited twice."""
        others = self._where(CellStatus.HELD, CellStatus.RECEIVED)
        if self.state not in _WAITING_ON or others or self.retries_left <= 0 or cell.link:
            return self._fail(cell, cell.link or SILENT)
        waiting = self._where(CellStatus.OFFERED, CellStatus.ASKED)
        self.retries_left -= cell is waiting[0]
        return [*cell.out.send(), cell.arrival.watch()]
