"""Stored jobs as the wire knows them: by 16 bytes, each with its plan, graph and state."""

from __future__ import annotations

import hashlib

from edgeveil.errors import JobFailed
from edgeveil.jobs.plan import Plan
from edgeveil.parts.exchange import Array
from edgeveil.protocol.sealed import unpack_tensors
from edgeveil_cloud.plans import graph_of, plan_of
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_records import JobEntry


def wire_id(job: str) -> bytes:
    """A job's 16 bytes on the wire."""
    return hashlib.sha256(b"edgeveil/v1/job-id\0" + job.encode()).digest()[:16]


class Jobs:
    """The jobs of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[bytes, str] = {}  # wire id -> id

    def name(self, job_id: bytes) -> str:
        """The id of a stored job by its wire id; raises JobFailed."""
        if job_id not in self._names:
            self._names = {wire_id(name): name for name in self._store.job_names()}
        try:
            return self._names[job_id]
        except KeyError:
            raise JobFailed("the job is not in the store") from None

    def entry(self, job_id: bytes) -> JobEntry:
        """The stored job of a wire id; raises JobFailed."""
        return self._store.job(self.name(job_id))

    def plan(self, entry: JobEntry) -> Plan:
        """The plan of a stored job."""
        return plan_of(entry.canonical, self._store.backbone)

    def graph(self, entry: JobEntry) -> bytes:
        """The job's ONNX graph, its weights as inputs."""
        return graph_of(entry.canonical, self._store.backbone)

    def state(self, entry: JobEntry) -> dict[str, Array]:
        """The method's state after the last commit."""
        last = self._store.last_commit(entry.id)
        return unpack_tensors(last.state) if last else self.plan(entry).cloud.initial_state()
