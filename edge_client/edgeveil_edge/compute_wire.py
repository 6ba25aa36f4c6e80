"""What a device's process and the process that computes for it tell each other, over a pipe.

Plain values in MessagePack and safetensors: neither side ever runs what the other one sends.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from edgeveil.errors import DataError, EdgeVeilError, PrivacyError, ProtocolError
from edgeveil.parts.exchange import Answer
from edgeveil.privacy.events import event_from_dict, to_dict
from edgeveil.protocol.sealed import pack_tensors, unpack_tensors
from edgeveil_edge.computation import Computation, Half


class Know(msgspec.Struct, frozen=True, tag="know"):
    """A job, named by the SHA-256 of its canonical bytes from now on."""

    digest: bytes
    canonical: bytes
    graph: bytes
    backbones: tuple[bytes, ...]
    trains: bool
    plugins: tuple[tuple[str, str], ...] = ()  # that the owner allows, by name and digest


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """A device: its site file as JSON, and what places its records."""

    device: str
    site: bytes
    split_key: bytes


class Try(msgspec.Struct, frozen=True, tag="try"):
    """Play a job on made-up records; answered by `Tried`."""

    device: str
    digest: bytes
    trains: bool


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Read the device's records ahead of its first answer."""

    device: str
    share: float


class AskAnswer(msgspec.Struct, frozen=True, tag="ask"):
    """A question; answered by `Parts` of both halves without records, then of each half with them,
    or by one `Refused`."""

    number: int
    device: str
    digest: bytes
    exchange: int
    tensors: bytes
    model: bytes
    own: bytes
    trains: bool
    noise_key: bytes
    allowed_s: float


class Forget(msgspec.Struct, frozen=True, tag="forget"):
    """A job has ended."""

    digest: bytes


class Load(msgspec.Struct, frozen=True, tag="load"):
    """Import what a trial was seen to need, so that the next worker has it from its beginning."""

    modules: tuple[str, ...]


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """What was told is known."""


class Tried(msgspec.Struct, frozen=True, tag="tried"):
    """What a trial came to, see `JobTrial`, and the modules that it loaded."""

    needed_s: float
    refused: str
    modules: tuple[str, ...] = ()


class HalfAnswer(msgspec.Struct, frozen=True):
    """One mechanism's noised tensors, their events, and what the device keeps to itself."""

    segments: bytes
    kept: bytes
    events: tuple[dict[str, str | int | float | bool | None], ...]


class Parts(msgspec.Struct, frozen=True, tag="parts"):
    """Halves of the answer to question `number`. `without` says why records had no part in it."""

    number: int
    parts: dict[Half, HalfAnswer]
    without: str = ""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why question `number` has no answer; never for what a record holds."""

    number: int
    kind: Literal["data", "privacy", "protocol", "other"]
    what: str
    where: str
    fix: str


Request = Know | Meet | Try | Read | AskAnswer | Forget | Load
Reply = Taken | Tried | Parts | Refused

_encode = msgspec.msgpack.Encoder().encode
_requests: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_replies: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    """The bytes of a message."""
    return _encode(message)


def decode_request(raw: bytes) -> Request:
    """What the device's process sent."""
    return _requests.decode(raw)


def decode_reply(raw: bytes) -> Reply:
    """What the computing process sent; ProtocolError for anything else."""
    try:
        return _replies.decode(raw)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError):
        raise ProtocolError("malformed_answer", "the computing process sent no answer") from None


def ask(number: int, device: str, digest: bytes, one: Computation, noise_key: bytes) -> AskAnswer:
    """A question as it travels."""
    package = one.package
    return AskAnswer(
        number,
        device,
        digest,
        one.exchange.index,
        package.tensors,
        package.model,
        pack_tensors(one.own),
        one.trains,
        noise_key,
        one.allowed_s,
    )


def part_of(answer: Answer) -> HalfAnswer:
    """One half's answer as it travels."""
    events = tuple(to_dict(event) for event in answer.events)
    return HalfAnswer(pack_tensors(answer.segments), pack_tensors(answer.kept), events)


def answer_of(part: HalfAnswer) -> Answer:
    """The inverse of `part_of`; raises ProtocolError, PrivacyError."""
    events = tuple(event_from_dict(event) for event in part.events)
    return Answer(unpack_tensors(part.segments), events, unpack_tensors(part.kept))


def refused(number: int, error: Exception) -> Refused:
    """An error as it travels. Of an unexpected one only the type is told."""
    match error:
        case ProtocolError():
            return Refused(number, "protocol", str(error), error.reason, "")
        case DataError() | PrivacyError():
            kind: Literal["data", "privacy"] = "data" if isinstance(error, DataError) else "privacy"
            return Refused(number, kind, error.what, error.where, error.fix)
        case EdgeVeilError():
            return Refused(number, "privacy", error.what, error.where, error.fix)
    return Refused(number, "other", f"internal error ({type(error).__name__})", "", "")


def error_of(refusal: Refused) -> EdgeVeilError:
    """The error that it stands for."""
    if refusal.kind == "protocol":
        return ProtocolError(refusal.where, refusal.what)
    kind = DataError if refusal.kind == "data" else PrivacyError
    return kind(refusal.what, where=refusal.where, fix=refusal.fix)
