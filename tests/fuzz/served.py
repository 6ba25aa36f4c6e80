"""Targets: HTTP requests to the cloud, and MQTT packets where EdgeVeil cuts them itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable, Mapping
from functools import cache
from typing import Any
from unittest import mock

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.streams import StreamReader
from aiohttp.test_utils import make_mocked_request

from edgeveil.errors import ConfigError, ProtocolError
from edgeveil.transport import mqtt_packets as mqtt
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_token import Scope
from edgeveil_cloud.rollouts import shown_rollout
from edgeveil_cloud.store import Store
from edgeveil_tools.site.broker_amqtt import BoundedReader, first_bytes
from tests.fuzz.target import Tape, Target, demand

_TOKEN = "a token"
_LIMIT_BYTES = 1024
_STORE_INPUTS = 2_000  # then the store is a new one: it must not grow with the inputs
_PATHS = (
    *("/jobs", "/jobs/{}", "/jobs/{}/events", "/jobs/{}/cancel", "/jobs/{}/resume", "/status"),
    *("/backbones", "/jobs/{}/model.onnx", "/jobs/{}/model.safetensors", "/healthz", "/metrics"),
)
_QUERIES = (
    "",
    "?after=0&wait_s=0",
    "?after=nan",
    "?wait_s=1e999",
    "?after=-1",
    "?after=",
    "?x=%ff",
)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _done(work: Coroutine[Any, Any, Any]) -> Any:
    return _loop().run_until_complete(work)


# --- the cloud's HTTP ----------------------------------------------------------------------


class _Control:
    """Takes any text with `job:` in it, and runs nothing; YAML has targets of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def check(self, job_yaml: str) -> None:
        if "job:" not in job_yaml:
            raise ConfigError(["(posted):1 job: missing"])

    def submit(self, job_yaml: str) -> str:
        self.check(job_yaml)
        return self._store.submit_job("job", b"{}", bytes(32), queue_limit=8).id

    def cancel(self, job: str) -> None:
        self._store.cancel(job)

    def resume(self, job: str) -> None:
        self._store.set_status(job, "running")

    def releases(self, job: str | None = None) -> list[dict[str, Any]]:
        return [shown_rollout(one) for one in self._store.rollouts.all() if job in (None, one.job)]

    def withdraw(self, job: str) -> None:
        self._store.rollouts.move(job, "withdrawn", "")

    def promote(self, job: str) -> None:
        self._store.rollouts.move(job, "all", "")

    def status(self) -> Mapping[str, Any]:
        return {"jobs": len(self._store.jobs())}


class _Served:
    def __init__(self) -> None:
        self.inputs = 0
        self.store = Store()
        self.app = make_app(self.store, _Control(self.store), lambda: {Scope.ADMIN: _TOKEN})
        self.job = _Control(self.store).submit("job: small")
        # Made once: a mock costs more than a request.
        self.protocol = mock.Mock(spec=BaseProtocol, _reading_paused=False)
        one = make_mocked_request("GET", "/", app=self.app, loop=_loop())
        self.ends: dict[str, Any] = {
            "protocol": one.protocol,
            "writer": one.writer,
            "transport": one.transport,
        }
        self.app.freeze()
        _done(self.app.shutdown())  # so that nobody waits for events


_served: list[_Served] = []


def _http(data: bytes) -> None:
    if not _served or _served[0].inputs >= _STORE_INPUTS:
        for old in _served:
            old.store.close()
        _served[:] = [_Served()]
    served, tape = _served[0], Tape(data)
    served.inputs += 1
    name = served.job if tape.number(2) else tape.take(8).hex()
    path = tape.choice(_PATHS).format(name) + tape.choice(_QUERIES)
    method = tape.choice(("GET", "POST", "PUT", "DELETE"))
    trusted = bool(tape.number(8))
    token = _TOKEN if trusted else tape.take(6).decode("latin-1")
    status = _done(_answer(served, method, path, f"Bearer {token}", tape.rest()))
    demand(status < 500, "a request cannot break the server")
    open_to_all = path.startswith(("/healthz", "/metrics"))
    demand(trusted or open_to_all or status in (401, 404, 405), "a stranger learns nothing")


async def _answer(served: _Served, method: str, path: str, token: str, body: bytes) -> int:
    payload = StreamReader(served.protocol, 1 << 20, loop=asyncio.get_running_loop())
    payload.feed_data(body)
    payload.feed_eof()
    headers = {"Authorization": token, "Content-Length": str(len(body))}
    request = make_mocked_request(
        method, path, headers=headers, payload=payload, app=served.app, **served.ends
    )
    try:
        answer = await served.app._handle(request)
    except web.HTTPException as refusal:  # an unknown path or method
        return refusal.status
    if isinstance(answer, web.Response) and answer.content_type == "application/json":
        json.loads(answer.text or "null")
    return answer.status


def _requests() -> Iterable[bytes]:
    yield b"\1\0\0\1\1job: small"
    yield b"\1\6\0\2\1" + bytes(100)
    yield from (bytes((1, path, query, 0, 1)) for path in range(11) for query in (0, 1))
    yield b"\1\0\0\0\0secret"


# --- MQTT ----------------------------------------------------------------------------------


def _pieces(tape: Tape) -> list[bytes]:
    """The rest of the tape, as a socket might hand it over."""
    sizes = [1 + tape.number(64) for _ in range(4)]
    rest, pieces = tape.rest(), []
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    return [*pieces, rest]


def _mqtt(data: bytes) -> None:
    """A load test's device hears from a broker, and a relay of a chaos run passes it on."""
    tape = Tape(data)
    protocol = tape.choice((4, 5))
    pieces, framer = _pieces(tape), mqtt.PacketCutter(_LIMIT_BYTES)
    packets = [packet for piece in pieces for packet in framer.feed(piece)]
    whole = mqtt.PacketCutter(_LIMIT_BYTES).feed(b"".join(pieces))
    demand(packets == whole, "packets do not depend on how they come")
    passed_on = b"".join(mqtt.packet(first, body) for first, body in packets)
    demand(b"".join(pieces).startswith(passed_on), "nothing is lost or changed")
    for first, body in packets:
        demand(len(body) <= _LIMIT_BYTES, "no packet above the limit")
        mqtt.asked_version(first, body)
        if first >> 4 == mqtt.CONNACK:
            mqtt.read_connack(body, protocol)
        elif first >> 4 == mqtt.PUBLISH:
            _, start = mqtt.read_publish(first, body, protocol)
            demand(0 < start <= len(body), "a payload lies inside its packet")


def _amqtt(data: bytes) -> None:
    """The library's broker behind a look at the first bytes."""
    tape = Tape(data)
    sizes = [tape.choice((1, 2, 16, _LIMIT_BYTES, _LIMIT_BYTES + 1, 2**28)) for _ in range(4)]
    _done(_read(tape.rest(), sizes))


@cache
def _transport() -> asyncio.WriteTransport:
    return mock.Mock(spec=asyncio.WriteTransport)


async def _read(stream: bytes, sizes: list[int]) -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(stream)
    reader.feed_eof()
    try:
        first = await first_bytes(reader)
        demand(len(first) <= 12, "no more than the head of a CONNECT")
        bounded = BoundedReader(reader, _transport(), _LIMIT_BYTES, first)
        got = b""
        for size in sizes:
            piece = await bounded.read(size)
            demand(len(piece) == size <= _LIMIT_BYTES, "exactly what was asked for, within bounds")
            got += piece
    except (asyncio.IncompleteReadError, ProtocolError):
        return
    demand(stream.startswith(got), "the stream as it came")


def _packets() -> Iterable[bytes]:
    login = mqtt.Login("device", "user", "word", ("topic", b"gone"), 60, 65536)
    topic = mqtt.encoded_topic("edgeveil/v1/all/down")
    for protocol in (4, 5):
        connack = b"\x20\x02\0\0" if protocol == 4 else b"\x20\x06\0\0\3\x21\0\x0a"
        publish = mqtt.publish_head(topic, 4, 7, protocol) + b"data"
        stream = mqtt.connect(login, protocol) + connack + publish + mqtt.puback(7)
        yield bytes((protocol == 5, 9, 3, 60, 1)) + stream + mqtt.PINGREQ
        yield bytes(5) + publish * 3
    yield bytes(5) + b"\x30\xff\xff\xff\x7f"


_HEADS = (
    b"\x20\x03\0\0\0",
    b"\x30\xff\xff\xff\xff",
    b"\x10\x0c\0\4MQTT\5",
    b"\x32\x80\x08",
    b"\x26\0\1",
)

TARGETS = {
    "http": Target(_http, _requests, (), 1024, (b"job: ",)),
    "mqtt": Target(_mqtt, _packets, (ProtocolError,), 1024, _HEADS),
    "amqtt": Target(_amqtt, _packets, (), 512, _HEADS),
}
