"""A device killed at random moments: its ledger, outbox and receipts agree, and no word is broken.

Each life is a process of its own, with the real machine, host, store and ledger, and ends by
`kill -9`. Cloud and proxy are a script in the same process, which notes what it heard and said.
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from random import Random

import pytest
from edge_kit import JOB_ID, Device, Round, job

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.jobs import compile_job
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.device_round import DeviceSettings, SealedAnswer, timer_name
from edgeveil.protocol.messages import (
    SEAL_OVERHEAD_BYTES,
    Ack,
    Commit,
    Note,
    Offer,
    PeerKeys,
    Signer,
    Upload,
    decode_header,
)
from edgeveil.protocol.sealed import segment_mark
from edgeveil.protocol.transfer import describe
from edgeveil.transport.runtime import perform
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.store import DeviceStore

pytestmark = pytest.mark.slow

ROUNDS, ATTEMPTS, LIVES = 12, 3, 25
MOST_EVENTS, EVENT_S = 25, 0.02  # how long a life may be, and about how long an event takes
PLAN = compile_job(job(train={"method": "fm", "rounds": ROUNDS}))
INDICES = range(1, ROUNDS)
CLOUD = Signer("cloud", SigningKey.generate())
PROXY = Signer("proxy", SigningKey.generate())
NOTES = "notes"


class World:
    """What the device's process hears of cloud and proxy; every step is noted first."""

    def __init__(self, folder, rounds, chance):
        self._path, self._rounds, self._chance = folder / NOTES, rounds, chance
        done = [(int(a), int(b)) for what, a, b, _ in notes(folder) if what == "next"]
        self.at = done[-1] if done else (INDICES[0], 1)

    def offer(self):
        sealed = self._rounds[self.at]
        return [CLOUD.offer(sealed.manifest, sealed.blob)]

    def heard(self, message):
        if isinstance(message, Note):  # its hello
            return [PROXY.note(Ack(hashlib.sha256(message.body.payload).digest(), "held"))]
        if not isinstance(message, Offer):
            return []
        upload = decode_header(message.header)
        assert isinstance(upload, Upload)
        at = (upload.at.round, upload.at.attempt)
        self._note("offered", at, upload.blob.digest.hex())
        if at != self.at:  # offered again by a new life, and the round is over
            return [PROXY.note(Ack(upload.blob.digest, "closed"))]
        kind = self._chance.random()
        if kind < 0.2:  # the proxy lost it, and the cloud asks again
            return self._next(repeat=True)
        self._note("acked", at, upload.blob.digest.hex())
        said = [PROXY.note(Ack(upload.blob.digest, "held"))]
        if kind < 0.4:
            return said + self._next(repeat=True)
        if kind < 0.9:
            said.append(self._commit(upload, message.data))
        return said + self._next(repeat=False)

    def _commit(self, upload, data):
        sealed = self._rounds[self.at]
        hashes, offset = [], 0
        for g in upload.groups:
            size = sealed.manifest.groups[g].padded_bytes + SEAL_OVERHEAD_BYTES
            hashes.append(segment_mark(sealed.secret.membership, data[offset : offset + size]))
            offset += size
        blob = b"".join(sorted(hashes))
        return CLOUD.offer(Commit(upload.at, len(hashes), describe(blob, 1024)), blob)

    def _next(self, *, repeat):
        number, attempt = self.at
        if repeat and attempt < ATTEMPTS:
            self.at = (number, attempt + 1)
        elif number + 1 in INDICES:
            self.at = (number + 1, 1)
        else:
            os.kill(os.getpid(), signal.SIGKILL)
        self._note("next", self.at, "-")
        return self.offer()

    def _note(self, what, at, digest):
        with self._path.open("ab", buffering=0) as file:
            file.write(f"{what} {at[0]} {at[1]} {digest}\n".encode())


def notes(folder):
    path = folder / NOTES
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def live(folder, rounds, chance, beat):
    """One life: whatever the device says is answered, until the process is killed."""
    device = Device(folder).knows(PLAN)
    signer = Signer(device.identity.device_id, device.identity.signing)
    keys = PeerKeys.pinned(cloud=CLOUD.key.public(), proxy=PROXY.key.public())
    machine = DeviceMachine(signer, keys, device.store.load(), DeviceSettings(packet_bytes=1 << 20))
    world = World(folder, rounds, chance)
    events = deque([fx.PeerConnected(fx.ProxyAddress())])
    events += [fx.MessageReceived(fx.ProxyAddress(), message) for message in world.offer()]
    while events:
        os.write(beat, b".")
        effects = machine.handle(events.popleft(), 0.0)
        with device.host.together():
            for effect in effects:
                if isinstance(effect, fx.Persist):
                    device.host.store(effect.item)
        for effect in effects:
            if isinstance(effect, fx.Send):
                heard = world.heard(effect.message)
                events += [fx.MessageReceived(fx.ProxyAddress(), message) for message in heard]
            if isinstance(effect, fx.Work):
                log = logging.getLogger("life")
                events.append(fx.WorkDone(effect.task, perform(device.host, effect.task, log)))
        if not events:  # all was said and nothing came of it: as after a lost link
            events.append(
                fx.Timer(timer_name("resend", JOB_ID))
            )  # the moment of an answer that waits for it
            events += [fx.MessageReceived(fx.ProxyAddress(), message) for message in world.offer()]
            time.sleep(0.001)


def check(folder, rounds):
    """The laws, after a life."""
    noted = notes(folder)
    offered = {}
    for what, number, attempt, digest in noted:
        if what == "offered":
            offered.setdefault((int(number), int(attempt)), set()).add(digest)
    assert all(len(digests) == 1 for digests in offered.values()), "an upload changed under way"
    store = DeviceStore(folder / "device.sqlite")
    receipts, item = (
        {(r.round, r.attempt): r for r in store.receipts()},
        store.load().uploads.get(JOB_ID),
    )
    store.close()
    account = read_ledger(folder / LEDGER_FILE).account("bench")
    job_entry = account.get(JOB_ID.hex())
    released = set(job_entry.releases) if job_entry else set()
    assert {number for number, _ in offered} <= released, "something left without a price"
    assert {number for number, _ in receipts} <= released
    assert set(offered) <= set(receipts), "an upload left without a receipt"
    for what, number, attempt, _ in noted:
        if what == "acked":
            _check_promise((int(number), int(attempt)), receipts, item, last=noted[-1])
    if item is not None:
        _check_outbox(item, receipts, rounds)


def _check_promise(at, receipts, item, last):
    """What the proxy acknowledged is held, or was about to be when the process was killed."""
    if receipts[at].state == "stored":
        assert item is not None
        assert (item.at.round, item.at.attempt) == at
        assert (int(last[1]), int(last[2])) == at or last[0] == "next"


def _check_outbox(item, receipts, rounds):
    at = (item.at.round, item.at.attempt)
    receipt, sealed = receipts[at], rounds[at]
    assert receipt.state == ("held" if item.held else "stored")
    groups = sealed.manifest.groups
    sizes = tuple(groups[g].padded_bytes + SEAL_OVERHEAD_BYTES for g in item.upload.groups)
    tensors = sealed.tensors(SealedAnswer(item.upload.groups, sizes, item.data, item.marks))
    device_ledger = Device(Path(FOLDER)).ledger
    held = device_ledger.recall(JOB_ID.hex(), item.at.round)
    device_ledger.close()
    assert held is not None
    for spec in PLAN.segments(sealed.round):
        assert tensors[spec.name][: spec.byte_count] in held[1], "other tensors than were priced"
    offset = 0
    assert item.marks == receipt.segment_hashes
    for size, mark in zip(sizes, item.marks, strict=True):
        assert segment_mark(sealed.secret.membership, item.data[offset : offset + size]) == mark
        offset += size


FOLDER = ""


def driver(folder, seed):
    """Live, be killed, check; again."""
    import torch  # noqa: F401 - once, not in each life

    global FOLDER
    FOLDER = folder
    path, chance = Path(folder), Random(seed)
    key = DeviceIdentity.load_or_create(path).opening.public().to_bytes()
    keys = [key, *(OpeningKey.generate().public().to_bytes() for _ in range(2))]
    both = [(number, attempt) for number in INDICES for attempt in range(1, ATTEMPTS + 1)]
    rounds = {at: Round(PLAN, at[0], keys, attempt=at[1]) for at in both}
    for number in range(LIVES):
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                live(path, rounds, Random(seed * 1000 + number), there)
            finally:
                os._exit(99)  # a life has no other end
        os.close(there)
        for _ in range(chance.randrange(MOST_EVENTS)):
            os.read(here, 1)
        time.sleep(chance.random() * EVENT_S)
        os.close(here)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        if notes(path):
            check(path, rounds)
    said = [what for what, *_ in notes(path)]
    print(f"{said.count('offered')} offered, {said.count('acked')} acknowledged")


def test_whenever_a_device_is_killed_its_files_agree(tmp_path):
    code = f"import {Path(__file__).stem} as t; t.driver({str(tmp_path)!r}, 7)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 5, done.stdout
