"""`python -m edgeveil_lab.bench.cloud`: the cloud's machine, host and store in one round.

The uploads are sealed in a process of their own, so that time and peak memory are the cloud's.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import multiprocessing
import resource
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from edgeveil.crypto.keys import OpeningKey, SigningKey
from edgeveil.jobs import parse_job
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import RosterKept
from edgeveil.protocol.cloud_job import CloudSettings
from edgeveil.protocol.messages import (
    Ack,
    Batch,
    Blob,
    Manifest,
    Need,
    Offer,
    Signer,
    decode_header,
)
from edgeveil.protocol.sealed import seal_segment
from edgeveil.protocol.transfer import part, part_bytes
from edgeveil.sites.cloud import CloudSite, ComputeAt
from edgeveil.storage import FileData
from edgeveil.transport.process import make_signing_key
from edgeveil.transport.runtime import perform
from edgeveil_cloud.role import build
from edgeveil_cloud.round_secret import RoundSecret

PACKET_BYTES = 65536
LOG = logging.getLogger("edgeveil.bench")
JOB = """
job: bench
data: {{source: bench, classes: 2, input_shape: [1], nominal_records: 1}}
features: [{{name: identity}}]
train: {{method: noise_only, rounds: 1, values: {values}}}
privacy: {{epsilon: 1.0}}
round: {{min_batch: 1}}
"""


class CloudBench:
    """Runs the effects of a cloud's machine as a process would, with the proxy played here."""

    def __init__(self, folder: Path, uploads: int, values: int, compute: ComputeAt) -> None:
        self.folder, self.uploads = folder, uploads
        key = SigningKey.generate()
        key.public().save(folder / "proxy.pub")
        self.proxy = Signer("proxy", key)
        self.refused: Counter[str] = Counter()
        self.seconds: dict[str, float] = {}
        self.passed_s: dict[str, float] = {}
        self._events: deque[fx.Event] = deque()
        self._offered: Blob | None = None
        self.batch_file = folder / "batch"
        site = CloudSite.model_validate(
            {
                "broker": {"url": "mqtt://127.0.0.1:1"},  # nobody asks for it
                "state_dir": folder,
                "proxy_key_file": folder / "proxy.pub",
                "limits": {"packet_bytes": PACKET_BYTES, "spool_bytes": 1 << 40},
                "compute": compute,
            }
        )
        make_signing_key(folder, "cloud")
        self.cloud = build(site, link=lambda _role: self)
        self.store, self.host, self.machine = self.cloud.store, self.cloud.host, self.cloud.machine
        job = parse_job(JOB.format(values=values))
        self.job = self.store.submit_job(job.job, job.canonical(), job.digest()).id

    def post(self, event: fx.Event) -> None:
        """What the cloud's own job queue asks for."""
        self._events.append(event)

    def run(self) -> None:
        """One job of one round, to its end."""
        keys = b"".join(OpeningKey.generate().public().to_bytes() for _ in range(self.uploads))
        with self._timed("roster"):
            self.host.store(RosterKept(1, keys))
        self.cloud.control.start(self.store.job(self.job))
        while self._events:
            for effect in self.machine.handle(self._events.popleft(), 0.0):
                self._execute(effect)
        if self.store.job(self.job).status != "completed":
            raise SystemExit(f"the job is {self.store.job(self.job)}")

    def _execute(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Persist(item=item):
                with self._timed(type(item).__name__):
                    self.host.store(item)
            case fx.Work(task=task):
                with self._timed(type(task).__name__):
                    result = perform(self.host, task, LOG)
                self._events.append(fx.WorkDone(task, result))
            case fx.Send(message=Offer(header=header)):
                found = decode_header(header)
                if isinstance(found, Manifest):
                    self._receive(self.proxy.note(Ack(found.blob.digest, "held")))
                    if found.kind == "round":
                        self._hand_over(found)
            case fx.Send(message=Need(indices=indices)) if self._offered is not None:
                self._hand_parts(self._offered, indices)
            case fx.Report() as report:
                self.host.report(report)

    def model_digest(self) -> str:
        """Of the state that the round came to: the same for any number of workers."""
        last = self.store.last_commit(self.job)
        return hashlib.sha256(last.state if last else b"").hexdigest()[:16]

    def _receive(self, message: object) -> None:
        self._events.append(fx.MessageReceived(fx.ProxyAddress(), message))  # type: ignore[arg-type]

    def _hand_over(self, manifest: Manifest) -> None:
        raw = self.store.round_key(self.job, 1, 1)
        tag = RoundSecret.from_bytes(raw or b"").membership
        work = (self.batch_file, manifest, tag, self.uploads)
        context = multiprocessing.get_context("fork")
        with context.Pool(1) as pool:
            digest, size_bytes = pool.apply(_seal_uploads, work)
        self._offered = Blob(digest, size_bytes, part_bytes(PACKET_BYTES))
        batch = Batch(manifest.at, self.uploads, 0, (self.uploads,), self._offered)
        self._receive(self.proxy.offer(batch))
        if size_bytes <= CloudSettings.push_bytes:  # else it is asked for
            self._hand_parts(self._offered, range(self._offered.parts))

    def _hand_parts(self, blob: Blob, indices: Iterable[int]) -> None:
        data = FileData(self.batch_file)
        for index in indices:
            self._receive(part(blob, data, index))

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        start, begun_s = time.process_time(), time.perf_counter()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.process_time() - start
        self.passed_s[what] = self.passed_s.get(what, 0.0) + time.perf_counter() - begun_s


def _seal_uploads(
    path: Path, manifest: Manifest, membership: bytes, uploads: int
) -> tuple[bytes, int]:
    group, digest = manifest.groups[0], hashlib.sha256()
    rng = np.random.default_rng(1)
    with path.open("wb") as file:
        for _ in range(uploads):
            tensor = rng.normal(size=group.padded_bytes // 4).astype(np.float32).tobytes()
            sealed = seal_segment(manifest, group, membership, tensor)
            digest.update(sealed)
            file.write(sealed)
    return digest.digest(), path.stat().st_size


def peak_bytes() -> int:
    """The largest resident size that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Print the processor's seconds of each step, uploads per second, and the peak memory."""
    parser = argparse.ArgumentParser(prog="python -m edgeveil_lab.bench.cloud", description=__doc__)
    parser.add_argument("--uploads", type=int, default=5000, help="devices in the round")
    parser.add_argument("--values", type=int, default=16384, help="float32 values of an upload")
    parser.add_argument("--workers", type=int, default=0, help="that open the batch; 0: none")
    parser.add_argument("--ray", metavar="HOST:PORT", help="they are on this Ray; local: a new one")
    args = parser.parse_args()
    address = None if args.ray == "local" else args.ray
    compute = ComputeAt(
        engine="ray" if args.ray else "local", workers=args.workers, address=address
    )
    start_bytes = peak_bytes()
    with tempfile.TemporaryDirectory() as folder:
        bench = CloudBench(Path(folder), args.uploads, args.values, compute)
        bench.run()
        model = bench.model_digest()
        bench.cloud.close()
    for what, seconds in bench.seconds.items():
        print(f"{what:14} {seconds:8.3f} s, {bench.passed_s[what]:8.3f} s passed")
    taken_s = bench.seconds["BatchPart"] + bench.seconds["Absorb"]
    print(f"one core       {args.uploads / taken_s:8.0f} uploads/s, written, opened and summed")
    print(f"memory         {start_bytes >> 20} MiB at start, {peak_bytes() >> 20} MiB peak")
    print(f"model          {model}")


if __name__ == "__main__":
    main()
