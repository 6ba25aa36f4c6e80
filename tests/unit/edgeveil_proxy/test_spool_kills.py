"""A spool in a process that is killed at random moments.

Whatever was stored before a kill is in the round's uploads, bit for bit, or in its batch.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest
import spool_kit as sk

from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil_proxy.spool import Spool, uploads_of

pytestmark = pytest.mark.slow

DEVICES, KILLS, PART_BYTES = 120, 12, 5000


def sealed(number):
    return Random(number).randbytes(sk.SEGMENT_BYTES)


def name(number):
    return f"{number:016x}"


def driver(path):
    """One life: uploads that are not there yet, each told to the parent; then the batch."""
    spool = Spool(Path(path))
    memory = spool.load()
    if memory.batches:
        return
    if not memory.kept:
        sk.keep(spool)
    known = {kept.device for kept in memory.uploads}
    for number in Random(os.getpid()).sample(range(DEVICES), DEVICES):
        if name(number) not in known:
            data = sealed(number)
            for start in range(0, len(data), PART_BYTES):
                place = number * len(data) + start
                spool.store(UploadPart(sk.at(), place, data[start : start + PART_BYTES]))
            held = pr.HeldUpload((0,), hashlib.sha256(data).digest(), number)
            spool.store(pr.UploadKept(sk.at(), name(number), held))
        os.write(1, b"%d\n" % number)
    sk.batch(spool, DEVICES)


def life(path, after_s):
    """Kill a process after so long (None: not at all): whose upload it stored, how it ended."""
    command = [sys.executable, "-c", f"import {Path(__file__).stem} as t; t.driver({str(path)!r})"]
    process = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE)
    told = os.read(process.stdout.fileno(), 1)  # it has come so far as to store one
    if after_s is not None:
        time.sleep(after_s)
        process.kill()
    told += process.communicate()[0]
    whole = told[: told.rfind(b"\n") + 1]
    return {int(line) for line in whole.split()}, process.returncode


def check(path, stored):
    """Nothing that was stored is missing from the batch, or before it; whether there is one."""
    memory = sk.reopened(path)
    assert {name(number) for number in stored} <= {kept.device for kept in memory.uploads}
    file = path.with_suffix("") / uploads_of(sk.at())
    data = file.read_bytes() if file.exists() else b""
    for kept in memory.batches.values():
        data = kept.data
    size = sk.SEGMENT_BYTES
    segments = {data[start : start + size] for start in range(0, len(data), size)}
    assert {sealed(number) for number in stored} <= segments
    assert sk.names(path) <= {"kept", "batch" if memory.batches else "uploads"}
    return bool(memory.batches)


def test_nothing_stored_is_lost_by_kills_at_random_moments(path):
    chance, stored, ends = Random(7), set(), []
    while len(ends) < KILLS and not (ends and check(path, stored)):
        told, code = life(path, chance.expovariate(1 / 0.06))
        stored |= told
        ends.append(code)
    assert -signal.SIGKILL in ends
    if not check(path, stored):
        told, code = life(path, None)
        assert code == 0 and check(path, stored | told)
    assert len(sk.reopened(path).uploads) == DEVICES
