"""The proxy's machine, host and spool in a process that is killed at random moments.

Whatever was acknowledged before a kill is in the round's uploads, bit for bit, or in its batch.
"""

import asyncio
import hashlib
import logging
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import pytest
import spool_kit

from edgeveil.crypto.keys import SigningKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_rounds import ProxySettings
from edgeveil.protocol.transfer import describe, part
from edgeveil.transport.runtime import Runtime
from edgeveil_proxy.role import ProxyHost
from edgeveil_proxy.spool import Spool

pytestmark = pytest.mark.slow

PACKET_BYTES = 4096
PART_BYTES = PACKET_BYTES - 512
SEALED_BYTES = (5000, 2000)
DEVICES = 120
AT = m.RoundId(b"J" * 16, 1, 1)
KILLS = 12


@cache
def key(number):
    return SigningKey.from_bytes(hashlib.sha256(b"kill test %d" % number).digest())


CLOUD, PROXY = m.Signer("cloud", key(-1)), m.Signer("proxy", key(-2))


@cache
def device(number):
    return m.Signer(key(number).public().fingerprint(), key(number))


@cache
def segments(number):
    seed = Random(number)
    return tuple(seed.randbytes(size) for size in SEALED_BYTES)


class Admitted:
    """The registry."""

    def __init__(self):
        self._keys = {device(n).name: key(n).public() for n in range(DEVICES)}

    def verify_key(self, name):
        return self._keys.get(name)

    lineage = "5e" * 16

    def roster_expires_s(self):
        return 0.0

    def roster(self):
        return 1, b""

    def admitted(self):
        return list(self._keys)


def manifest(model):
    groups = [m.Group(f"g{n}", size - m.SEAL_OVERHEAD_BYTES) for n, size in enumerate(SEALED_BYTES)]
    return msgspec.structs.replace(
        spool_kit.manifest("round", AT, model),
        selected=DEVICES,
        quorum=DEVICES,
        deadline_s=600.0,
        groups=tuple(groups),
        blob=describe(model, PART_BYTES),
    )


class Driver:
    """All devices at once, over the real runtime; what is acknowledged is told to the parent."""

    def __init__(self, path):
        spool = Spool(path)
        settings = ProxySettings(PACKET_BYTES, min_batch_floor=3, credit_bytes=16 * PART_BYTES)
        machine = ProxyMachine(
            PROXY, m.PeerKeys.pinned(cloud=CLOUD_KEY), Admitted(), spool.load(), settings
        )
        host = ProxyHost(spool, Random(os.getpid()).shuffle)
        log = logging.getLogger("kill test")
        self.runtime = Runtime(machine, host, self.publish, None, log, PACKET_BYTES)
        self.done = asyncio.Event()
        self._numbers = {device(n).name: n for n in range(DEVICES)}

    async def publish(self, to, frame):
        message = m.decode(frame, PACKET_BYTES)
        if isinstance(to, fx.DeviceAddress):
            self._answer(to, message)
        elif isinstance(to, fx.CloudAddress) and not isinstance(message, m.Note):
            self.done.set()  # the batch is on its way

    def _answer(self, to, message):
        number = self._numbers[to.id]
        if isinstance(message, m.Need):
            data = b"".join(segments(number))
            blob = describe(data, PART_BYTES)
            for index in message.indices:
                self.runtime.post(fx.MessageReceived(to, part(blob, data, index)))
        elif isinstance(message, m.Note):
            body = m.decode_body(message.body)
            if isinstance(body, m.Ack) and body.status == "held":
                os.write(1, b"%d\n" % number)

    async def run(self):
        model = b"model"
        running = asyncio.create_task(self.runtime.run())
        self.runtime.post(fx.Command("started"))
        offer = CLOUD.offer(manifest(model), model)
        self.runtime.post(fx.MessageReceived(fx.CloudAddress(), offer))
        while not self.runtime.machine.rounds.collections:
            await asyncio.sleep(0.001)
        for number in Random(os.getpid()).sample(range(DEVICES), DEVICES):
            signer, data = device(number), b"".join(segments(number))
            header = m.Upload(AT, (0, 1), describe(data, PART_BYTES))
            self.runtime.post(
                fx.MessageReceived(fx.DeviceAddress(signer.name), signer.offer(header))
            )
            await asyncio.sleep(0)
        await self.done.wait()
        running.cancel()


CLOUD_KEY = key(-1).public()


def driver(path):
    """One life of the proxy."""
    asyncio.run(Driver(Path(path)).run())


def life(path, after_s):
    """One process, killed after so long (None: not at all): whom it acknowledged, how it ended."""
    code = f"import {Path(__file__).stem} as t; t.driver({str(path)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.PIPE
    )
    told = os.read(process.stdout.fileno(), 1)  # it has come so far as to acknowledge one
    if after_s is not None:
        time.sleep(after_s)
        process.kill()
    told += process.communicate()[0]
    whole = told[: told.rfind(b"\n") + 1]
    return [int(line) for line in whole.split()], process.returncode


def found(path):
    """What a new process finds, and each upload's bytes."""
    spool = Spool(path)
    memory = spool.load()
    spool.close()
    file = path.with_suffix("") / f"uploads-{AT.job_id.hex()}-1-1"
    size = sum(SEALED_BYTES)
    everything = file.read_bytes() if file.exists() else b""
    places = {kept.device: kept.held.slot for kept in memory.uploads}
    return memory, {d: everything[s * size : (s + 1) * size] for d, s in places.items()}


def in_batch(memory):
    """The segments of each group of the one batch."""
    (kept,) = memory.batches.values()
    offset = 0
    for count, size in zip(kept.batch.counts, SEALED_BYTES, strict=True):
        cut = [kept.data[offset + i * size : offset + (i + 1) * size] for i in range(count)]
        assert len(set(cut)) == count, "a segment twice"
        offset += count * size
        yield set(cut)
    assert offset == len(kept.data)


def check(path, acknowledged):
    """Whether the batch is there; nothing acknowledged may be missing from it or before it."""
    memory, uploads = found(path)
    known = {kept.device for kept in memory.uploads}
    assert {device(n).name for n in acknowledged} <= known
    if not memory.batches:
        for number in acknowledged:
            assert uploads[device(number).name] == b"".join(segments(number))
        return False
    for group, cut in enumerate(in_batch(memory)):
        assert {segments(n)[group] for n in acknowledged} <= cut
    names = {file.name.split("-")[0] for file in path.with_suffix("").iterdir()}
    assert names == {"kept", "batch"}
    return True


def test_nothing_acknowledged_is_lost_by_kills_at_random_moments(tmp_path):
    chance = Random(7)
    path = tmp_path / "spool.sqlite"
    acknowledged = set()
    killed = 0
    for _ in range(KILLS):
        told, code = life(path, chance.expovariate(1 / 0.06))
        acknowledged |= set(told)
        killed += code == -signal.SIGKILL
        if check(path, acknowledged):
            break
    assert killed
    if not check(path, acknowledged):
        told, code = life(path, None)
        assert code == 0
        assert check(path, acknowledged | set(told))
    memory, _ = found(path)
    assert len(memory.uploads) == DEVICES
