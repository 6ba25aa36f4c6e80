"""One life of a cloud: its real store, host, machine and queue, with a proxy played beside them.

The proxy answers every round with the same uploads, so that the course of a job does not depend
on how often its cloud was killed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeveil.crypto.keys import SigningKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import (
    Ack,
    Batch,
    Manifest,
    Note,
    Offer,
    Signer,
    decode_body,
    decode_header,
)
from edgeveil.protocol.sealed import seal_segment
from edgeveil.protocol.transfer import describe, part
from edgeveil.sites.cloud import CloudSite
from edgeveil.transport.process import make_signing_key
from edgeveil.transport.runtime import perform
from edgeveil_cloud.open_segments import RoundSecret
from edgeveil_cloud.role import build
from edgeveil_cloud.stored_jobs import wire_id

LOG = logging.getLogger("edgeveil.test")
PART_BYTES, UPLOADS = 512, 3
PROXY = SigningKey(bytes(range(32)))
ACKED = "acknowledged"  # the proxy's own file: digests of batches that it was told to forget


def keys(folder: Path) -> None:
    """The key files that stand before the cloud's first life."""
    folder.mkdir(exist_ok=True)
    SigningKey(bytes(range(1, 33))).save(folder / "cloud.key")
    PROXY.public().save(folder / "proxy.pub")


class CloudLife:
    """From the start of the process on; it is what runs the cloud's machine."""

    refused: Mapping[str, int] = {}

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proxy = Signer("proxy", PROXY)
        self.events: deque[fx.Event] = deque()
        self.offered: tuple[Batch, bytes] | None = None
        site = CloudSite.model_validate(
            {
                "broker": {"url": "mqtt://127.0.0.1:1"},
                "state_dir": folder,
                "proxy_key_file": folder / "proxy.pub",
            }
        )
        make_signing_key(folder, "cloud")
        self.cloud = build(site, link=lambda _role: self)
        self.store, self.host, self.machine = self.cloud.store, self.cloud.host, self.cloud.machine
        self.control = self.cloud.control

    def post(self, event: fx.Event) -> None:
        self.events.append(event)

    def run(self, job: str) -> None:
        """Until the job has ended."""
        self.control.tell_ends()
        while not (entry := self.store.job(job)).ended:
            assert entry.status != "paused", entry.reason
            self.control.look()
            assert self.events, "the cloud came to a stand"
            while self.events:
                for effect in self.machine.handle(self.events.popleft(), 0.0):
                    self.execute(effect)

    def execute(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Persist(item=item):
                self.host.store(item)
            case fx.Work(task=task):
                self.post(fx.WorkDone(task, perform(self.host, task, LOG)))
            case fx.Report() as report:
                self.host.report(report)
            case fx.Refuse(reason=reason):
                raise AssertionError(reason)
            case fx.Send(message=Offer(header=signed)):
                header = decode_header(signed)
                if isinstance(header, Manifest):
                    self.receive(self.proxy.note(Ack(header.blob.digest, "held")))
                    if header.kind == "round":
                        self.hand_over(header)
            case fx.Send(message=Note(body=signed)):
                body = decode_body(signed)
                if isinstance(body, Ack) and body.status == "held":
                    with (self.folder / ACKED).open("ab", buffering=0) as file:
                        file.write(body.blob)

    def receive(self, message: Any) -> None:
        self.post(fx.MessageReceived(fx.ProxyAddress(), message))

    def hand_over(self, manifest: Manifest) -> None:
        """The uploads of a round: 1, 2, 3 in every value."""
        (entry,) = [e for e in self.store.jobs() if wire_id(e.id) == manifest.at.job_id]
        raw = self.store.round_key(entry.id, manifest.at.exchange, manifest.at.attempt)
        assert raw is not None, "a round is broadcast before its key is kept"
        tag, plan = RoundSecret.from_bytes(raw).membership, self.host.jobs.plan(entry)
        specs = plan.segments(plan.exchange(manifest.at.exchange))
        data = b"".join(
            seal_segment(manifest, group, tag, np.full(s.shape, n + 1, s.dtype).tobytes())
            for s, group in zip(specs, manifest.groups, strict=True)
            for n in range(UPLOADS)
        )
        counts = (UPLOADS,) * len(specs)
        batch = Batch(manifest.at, UPLOADS, 0, counts, describe(data, PART_BYTES))
        self.offered = batch, data
        self.receive(self.proxy.offer(batch))
        for index in range(batch.blob.parts):  # so few bytes are handed over unasked
            self.receive(part(batch.blob, data, index))


def live(folder: Path, job: str, calls: int | None) -> int:
    """One life; killed at its `calls`-th call or return of a function. How many there were."""
    asyncio.set_event_loop(asyncio.new_event_loop())
    count = 0

    def watch(_frame: object, _event: str, _what: object) -> None:
        nonlocal count
        count += 1
        if count == calls:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
    try:
        life = CloudLife(folder)
        life.run(job)
        life.store.close()
    finally:
        sys.setprofile(None)
    return count
