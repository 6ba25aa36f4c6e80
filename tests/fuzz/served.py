"""Targets: HTTP requests to the cloud, and MQTT packets where EdgeVeil cuts them itself."""

import asyncio
from functools import cache
from unittest import mock

from edgeveil.errors import ProtocolError
from edgeveil.transport import mqtt_packets as mqtt
from edgeveil.transport.http_server import Connection
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.store import Store
from edgeveil_tools.site.broker_amqtt import BoundedReader, first_bytes
from tests.fuzz.target import Tape, Target, demand
from tests.kits.cloud_control import PlainControl

_TOKEN = "a token"
_LIMIT_BYTES = 1024
_STORE_INPUTS = 2_000  # then the store is a new one: it must not grow with the inputs
_PATHS = (
    *("/jobs", "/jobs/{}", "/jobs/{}/events", "/jobs/{}/cancel", "/jobs/{}/resume", "/status"),
    *("/backbones", "/jobs/{}/model.onnx", "/jobs/{}/model.safetensors", "/healthz", "/metrics"),
)
_QUERIES = (
    *("", "?after=0&wait_s=0", "?after=nan", "?wait_s=1e999", "?after=-1", "?after=", "?x=%ff"),
)


@cache
def _loop():
    return asyncio.new_event_loop()


def _done(work):
    return _loop().run_until_complete(work)


# --- the cloud's HTTP ----------------------------------------------------------------------


class _Served:
    def __init__(self):
        self.inputs = 0
        self.store = Store()
        self.server = make_app(self.store, PlainControl(self.store), lambda: {Scope.ADMIN: _TOKEN})
        self.server.most = 8  # as after its start
        self.server.stopping = True  # so that nobody waits for events
        self.job = PlainControl(self.store).submit("job: small")


_served = []


class _Wire(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.sent, self.closed = bytearray(), False

    def write(self, data):
        self.sent += data

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def can_write_eof(self):
        return False

    def pause_reading(self):
        pass

    resume_reading = pause_reading


def _fresh():
    if not _served or _served[0].inputs >= _STORE_INPUTS:
        for old in _served:
            old.store.close()
        _served[:] = [_Served()]
    _served[0].inputs += 1
    return _served[0]


def _http(data):
    served, tape = _fresh(), Tape(data)
    name = served.job if tape.number(2) else tape.take(8).hex()
    path = tape.choice(_PATHS).format(name) + tape.choice(_QUERIES)
    method = tape.choice(("GET", "POST", "PUT", "DELETE"))
    trusted = bool(tape.number(8))
    token = _TOKEN if trusted else tape.take(6).hex()
    body = tape.rest()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
    (status,) = _done(
        _answers(served, [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body])
    )
    demand(status < 500 or status == 501, "a request cannot break the server")
    open_to_all = path.startswith("/healthz")
    demand(trusted or open_to_all or status in (401, 404, 405, 413), "a stranger learns nothing")


def _bytes(data):
    """Any bytes, in any pieces: none of them is a request that the cloud trusts."""
    served, tape = _fresh(), Tape(data)
    jobs = len(served.store.jobs())
    for status in _done(_answers(served, _pieces(tape), patience=20)):
        demand(status in (400, 401, 403, 404, 405, 408, 413, 431, 501, 200), "a known answer")
    demand(len(served.store.jobs()) == jobs, "a stranger changes nothing")


async def _answers(served, pieces, patience=1000):
    """The status of each answer to these bytes, which a client sends and then leaves."""
    wire, connection = _Wire(), Connection(served.server)
    served.server.stopping = False
    connection.connection_made(wire)
    served.server.stopping = True
    for piece in pieces:
        if piece:
            connection.data_received(piece)
        for _ in range(3):
            await asyncio.sleep(0)
    task = connection.task
    for _ in range(patience):
        if task is None or task.done() or connection._data is not None:
            break
        await asyncio.sleep(0.001)
    connection.connection_lost(None)
    if task is not None:
        await asyncio.wait([task])
        demand(task.cancelled() or task.exception() is None, "a connection's task never fails")
    return [int(one[:3]) for one in bytes(wire.sent).split(b"HTTP/1.1 ")[1:]]


def _requests():
    yield b"\1\0\0\1\1job: small"
    yield b"\1\6\0\2\1" + bytes(100)
    yield from (bytes((1, path, query, 0, 1)) for path in range(11) for query in (0, 1))
    yield b"\1\0\0\0\0secret"


_HTTP_PARTS = (
    b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n",
    b"POST /jobs HTTP/1.1\r\nHost: localhost\r\n",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"\r\n3\r\nabc\r\n0\r\n\r\n",
    b"Authorization: Bearer x\r\n",
)


def _raw_requests():
    yield from (bytes(4) + b"\x20\x20" + one + b"\r\n" for one in _HTTP_PARTS)
    yield bytes(4) + b"".join(_HTTP_PARTS)


# --- MQTT ----------------------------------------------------------------------------------


def _pieces(tape):
    """The rest of the tape, as a socket might hand it over."""
    sizes = [1 + tape.number(64) for _ in range(4)]
    rest, pieces = tape.rest(), []
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    return [*pieces, rest]


def _mqtt(data):
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
        if first >> 4 == mqtt.CONNACK:
            mqtt.read_connack(body, protocol)
        elif first >> 4 == mqtt.PUBLISH:
            _, start = mqtt.read_publish(first, body, protocol)
            demand(0 < start <= len(body), "a payload lies inside its packet")


def _amqtt(data):
    tape = Tape(data)
    sizes = [tape.choice((1, 2, 16, _LIMIT_BYTES, _LIMIT_BYTES + 1, 2**28)) for _ in range(4)]
    _done(_read(tape.rest(), sizes))


@cache
def _transport():
    return mock.Mock(spec=asyncio.WriteTransport)


async def _read(stream, sizes):
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


def _packets():
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
    "http-bytes": Target(_bytes, _raw_requests, (), 1024, _HTTP_PARTS),
    "mqtt": Target(_mqtt, _packets, (ProtocolError,), 1024, _HEADS),
    "amqtt": Target(_amqtt, _packets, (), 512, _HEADS),
}
