"""Messages and server of the process that computes for a device.

Messages are plain values in MessagePack and safetensors over a pipe: neither side executes code
sent by the other. `ComputeServer` keeps devices and jobs; a fork of it answers requests one by one.
Records are read in a fork too, so records that crash or stall the reader affect only that fork.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from io import BufferedReader, FileIO
from multiprocessing.connection import Connection, Pipe
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgeveil import plugins
from edgeveil.config.edge import EdgeSite
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError, EdgeVeilError, PrivacyError, ProtocolError, RecordsError
from edgeveil.jobs.rehearsal import clocks, slowdown_since
from edgeveil.parts.features import prepare
from edgeveil.parts.methods import trains_model
from edgeveil.parts.own_records import halves
from edgeveil.parts.round import Answer
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.privacy.events import event_from_dict, to_dict
from edgeveil.protocol.sealed import RoundPackage, encode_at_once
from edgeveil.protocol.tensors import pack_tensors, tensor_views, unpack_tensors
from edgeveil_edge.compute import (
    Computation,
    Computer,
    Half,
    LoadRecords,
    TaughtJob,
    failure,
    load_own,
    reading_s,
    trial_seconds,
)
from edgeveil_edge.release_trial import try_release

# --- requests ---


class LoadJob(msgspec.Struct, frozen=True, tag="know"):
    digest: bytes
    canonical: bytes
    graph: bytes
    backbones: tuple[bytes, ...]
    trains: bool
    plugins: tuple[tuple[str, str], ...] = ()  # allowed by the owner: (name, digest)


class AddDevice(msgspec.Struct, frozen=True, tag="meet"):
    device: str
    site: bytes
    split_key: bytes
    records: bytes | None = None


class TryJob(msgspec.Struct, frozen=True, tag="try"):
    """Run a job on made-up records, once if that takes at most `enough_s`; gets a `TrialReport`."""

    device: str
    digest: bytes
    trains: bool
    enough_s: float = 0.0


class TryRelease(msgspec.Struct, frozen=True, tag="try_release"):
    onnx: bytes


class ReadRecords(msgspec.Struct, frozen=True, tag="read"):
    device: str
    share: float
    schema: bytes | None = None


class AskAnswer(msgspec.Struct, frozen=True, tag="ask"):
    """Compute an answer; gets `AnswerHalves` without records, then with them, or a `Refusal`."""

    number: int
    device: str
    digest: bytes
    round: int
    package: RoundPackage
    own: bytes
    trains: bool
    noise_key: bytes
    allowed_s: float


class ForgetJob(msgspec.Struct, frozen=True, tag="forget"):
    digest: bytes


class LoadModules(msgspec.Struct, frozen=True, tag="load"):
    """Import the modules of the job's trial and prepare its public features, for all workers."""

    modules: tuple[str, ...]
    digest: bytes


class RequestDone(msgspec.Struct, frozen=True, tag="taken"): ...


class TrialReport(msgspec.Struct, frozen=True, tag="tried"):
    needed_s: float
    refused: str
    modules: tuple[str, ...] = ()
    slowdown: float = 1.0


class HalfAnswer(msgspec.Struct, frozen=True):
    segments: memoryview  # into the received message, not a copy
    kept: memoryview
    events: tuple[dict[str, str | int | float | bool | None], ...]


class AnswerHalves(msgspec.Struct, frozen=True, tag="parts"):
    """Halves of the answer to request `number`; `without`: why records were not used."""

    number: int
    parts: dict[Half, HalfAnswer]
    without: str = ""
    slowdown: float = 1.0  # of the halves without records


class Refusal(msgspec.Struct, frozen=True, tag="refused"):
    """Error of request `number`, never caused by a record; `reason` is a ProtocolError's."""

    number: int
    what: str
    where: str = ""
    fix: str = ""
    reason: str = ""


StateChange = LoadJob | AddDevice | ReadRecords | ForgetJob | LoadModules
Request = StateChange | TryJob | TryRelease | AskAnswer
Reply = RequestDone | TrialReport | AnswerHalves | Refusal

_encoder = msgspec.msgpack.Encoder()
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytearray:
    return encode_at_once(_encoder, message)


def receive(connection: Connection) -> bytes:
    """Return the next message as `recv_bytes`, read into one buffer. Raises EOFError, OSError."""
    with BufferedReader(FileIO(connection.fileno(), closefd=False), 1) as pipe:  # no read-ahead
        need, head = 4, pipe.read(4)
        if head == b"\xff\xff\xff\xff":  # of a message over 2 GiB
            need, head = 8, pipe.read(8)
        raw = pipe.read(size := int.from_bytes(head, "big"))
    if len(head) < need or len(raw) < size:
        raise EOFError
    return raw


def decode_reply(raw: bytes) -> Reply:
    """Decode a reply. Raises ProtocolError `malformed_answer`."""
    try:
        return _replies.decode(raw)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError):
        raise ProtocolError("malformed_answer", "the computing process sent no answer") from None


def records_bytes(records: Records | None) -> bytes | None:
    if records is None:
        return None
    stored = {} if records.stored is None else {"stored": records.stored}
    return pack_tensors({"x": records.x, "y": records.y, **stored})


def loader_of(raw: bytes) -> LoadRecords:
    found = unpack_tensors(raw)
    stored = found["stored"].astype(np.float32) if "stored" in found else None
    records = Records(found["x"].astype(np.float32), found["y"].astype(np.int64), stored)

    def load(
        _site: EdgeSite, split_key: bytes, share: float, _schema: DataSchema | None = None
    ) -> tuple[Records, Records]:
        return halves(records, split_key, share)

    return load


def part_of(answer: Answer) -> HalfAnswer:
    events = tuple(to_dict(event) for event in answer.events)
    segments, kept = pack_tensors(answer.segments), pack_tensors(answer.kept)
    return HalfAnswer(memoryview(segments), memoryview(kept), events)


def answer_of(part: HalfAnswer) -> Answer:
    """Invert `part_of`, with read-only arrays. Raises ProtocolError or PrivacyError."""
    events = tuple(event_from_dict(event) for event in part.events)
    return Answer(tensor_views(part.segments), events, tensor_views(part.kept))


def refusal_of(number: int, error: Exception) -> Refusal:
    """Convert an error to a message; an unexpected error shows only its type."""
    if isinstance(error, ProtocolError):
        return Refusal(number, str(error), reason=error.reason)
    if isinstance(error, EdgeVeilError):
        return Refusal(number, error.what, error.where, error.fix)
    return Refusal(number, f"internal error ({type(error).__name__})")


def error_of(refusal: Refusal) -> EdgeVeilError:
    if refusal.reason:
        return ProtocolError(refusal.reason, refusal.what)
    return PrivacyError(refusal.what, where=refusal.where, fix=refusal.fix)


# --- the server ---

READINGS = 64  # reading is killed after this multiple of `reading_s`


class ComputeServer:
    """State of the child (`change_state`), from which its forks answer (`work`)."""

    _connection: Connection

    def __init__(self) -> None:
        plugins.admit(())  # none until an owner allows some
        self.jobs: dict[bytes, TaughtJob] = {}
        self._devices: dict[str, tuple[EdgeSite, Computer]] = {}

    def loads_job(self, raw: bytes) -> bool:
        return isinstance(_requests.decode(raw), LoadJob)

    def change_state(self, raw: bytes) -> bytearray:
        request = _requests.decode(raw)
        try:
            match request:
                case LoadJob():
                    self._load_job(request)
                case AddDevice() if request.device not in self._devices:
                    site = EdgeSite.model_validate_json(request.site)
                    plugins.admit(site.policy.allowed_plugins)
                    load = load_own if request.records is None else loader_of(request.records)
                    self._devices[request.device] = site, Computer(site, request.split_key, load)
                case ReadRecords():
                    with suppress(Exception):  # reported with the first answer
                        site, computer = self._devices[request.device]
                        schema = None
                        if request.schema is not None:
                            schema = DataSchema.model_validate_json(request.schema, strict=True)
                        reading = request.share, schema
                        computer.make_room()
                        limit_s = READINGS * reading_s(site)
                        found = read_in_fork(lambda: computer.records(*reading), limit_s)
                        computer.keep(*reading, found)
                case ForgetJob():
                    self.jobs.pop(request.digest, None)
                case LoadModules():
                    _import_all(*request.modules)
                    if job := self.jobs.get(request.digest):
                        prepare(job.plan.features, job.plan.job.data.input_shape)
        except Exception as error:
            return encode(refusal_of(0, error))
        return encode(RequestDone())

    def work(self, connection: Connection) -> None:
        self._connection = connection
        with suppress(EOFError, OSError):
            while True:
                request = _requests.decode(receive(connection))
                if isinstance(request, TryJob):
                    self._try(request)
                elif isinstance(request, TryRelease):
                    self._send(TrialReport(0.0, try_release(request.onnx)))
                elif isinstance(request, AskAnswer):
                    self._answer(request)

    def _load_job(self, request: LoadJob) -> None:
        plugins.admit(plugins.Allowance(*one) for one in request.plugins)
        job = TaughtJob.of(request.canonical, request.graph, request.backbones)
        plan, self.jobs[request.digest] = job.plan, job
        if request.trains and trains_model(plan.job.train.method):
            _import_all("torch", "torch.func")
        if any(one.carries_model for one in plan.all_rounds):
            _import_all("onnxruntime")

    def _try(self, request: TryJob) -> None:
        site, _ = self._devices[request.device]
        job, before = self.jobs[request.digest], set(sys.modules)
        needed_s, refused, enough_s = 0.0, "", request.enough_s
        begun_s = clocks()
        try:
            needed_s = trial_seconds(job, site, trains=request.trains, enough_s=enough_s)
        except EdgeVeilError as error:
            refused = str(error)
        except Exception as error:
            refused = failure(error)
        modules = tuple(sorted(set(sys.modules) - before))
        self._send(TrialReport(needed_s, refused, modules, slowdown_since(begun_s)))

    def _answer(self, request: AskAnswer) -> None:
        _, computer = self._devices[request.device]
        number, begun_s = request.number, clocks()
        try:
            job = self.jobs[request.digest]
            one = Computation(
                job,
                job.plan.round(request.round),
                request.package,
                unpack_tensors(request.own),
                request.trains,
                DerivedRandom(request.noise_key),
                allowed_s=request.allowed_s,
            )
            computer.prepare(one)
            order = computer.order(one)
            blank = {half: part_of(computer.blank(one, half)) for half in order}
        except Exception as error:  # no record was read: fails the same for all records
            self._send(refusal_of(number, error))
            return
        self._send(AnswerHalves(number, blank, slowdown=slowdown_since(begun_s)))
        try:
            records, unread = computer.halves(one.job.plan, one.round.phase)
        except Exception as error:
            self._send(refusal_of(number, error))
            return
        for half in order:
            try:
                answer = computer.compute(one, half, *records)
                found, without = part_of(answer), unread or answer.without
                unread = ""
            except Exception as error:  # caused by the records: must not be visible
                found, without = blank[half], failure(error)
            self._send(AnswerHalves(number, {half: found}, without))

    def _send(self, reply: Reply) -> None:
        self._connection.send_bytes(encode(reply))


def _import_all(*modules: str) -> None:
    for module in modules:
        with suppress(Exception):
            import_module(module)


# --- reading records ---

_RecordHalves = tuple[Records, Records]
_DTYPES = (np.float32, np.int64, np.float32)  # of records' x, y and stored


class _Outcome(msgspec.Struct, frozen=True):
    """Shapes of both halves' arrays, which follow; or why the records cannot be read."""

    shapes: tuple[tuple[int, ...] | None, ...] = ()
    unreadable: str = ""


def read_in_fork(read: Callable[[], _RecordHalves], limit_s: float) -> _RecordHalves | RecordsError:
    """Run `read` in a fork; return its result, or RecordsError if it raises that, dies or is late.

    Raises DataError for any other exception of `read`.
    """
    ours, forks = Pipe(duplex=False)
    pid = os.fork()
    if not pid:
        try:
            ours.close()  # else the fork would block for ever once its parent is gone
            with suppress(Exception):
                _hand_over(read, forks)
        finally:
            os._exit(0)
    forks.close()
    try:
        if not ours.poll(limit_s):
            raise EOFError
        return _taken_over(ours)
    except (EOFError, OSError):  # OSError: a truncated message
        return RecordsError("reading them did not end as it should")
    except MemoryError:
        return RecordsError("they need more memory than this machine has")
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _hand_over(read: Callable[[], _RecordHalves], to: Connection) -> None:
    arrays: list[NDArray[Any] | None] = []
    try:
        arrays = [array for half in read() for array in (half.x, half.y, half.stored)]
        outcome = _Outcome(tuple(None if one is None else one.shape for one in arrays))
    except RecordsError as error:
        outcome = _Outcome(unreadable=str(error))
    except Exception:
        outcome = _Outcome()
    to.send_bytes(msgspec.msgpack.encode(outcome))
    for array in arrays:
        if array is not None and array.nbytes:  # an empty one has no bytes to cast
            to.send_bytes(np.ascontiguousarray(array).data.cast("B"))


def _taken_over(pipe: Connection) -> _RecordHalves | RecordsError:
    outcome = msgspec.msgpack.decode(pipe.recv_bytes(), type=_Outcome)
    if outcome.unreadable:
        return RecordsError(outcome.unreadable)
    if not outcome.shapes:
        raise DataError("cannot be read in this form", where="data", fix="see `edgeveil check`")
    arrays: list[Any] = []
    for shape, dtype in zip(outcome.shapes, 2 * _DTYPES, strict=True):
        array = None if shape is None else np.empty(shape, dtype)
        if array is not None and array.nbytes:
            pipe.recv_bytes_into(array.data.cast("B"))
        arrays.append(array)
    return Records(*arrays[:3]), Records(*arrays[3:])
