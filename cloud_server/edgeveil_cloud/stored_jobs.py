"""Stored jobs by wire id, with cached plans and graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from edgeveil.errors import EdgeVeilError, JobFailed
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.artifacts import kept_digests
from edgeveil.jobs.plan import Plan
from edgeveil.parts.round import Array
from edgeveil.protocol.tensors import tensor_views
from edgeveil_cloud.store_tables import JobEntry, LastCommit, StoreAway

if TYPE_CHECKING:
    from edgeveil_cloud.store import Store


def wire_id(job: str) -> bytes:
    return hashlib.sha256(b"edgeveil/v1/job-id\0" + job.encode()).digest()[:16]


class StoredJobs:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[bytes, str] = {}  # wire id -> id
        self._plan_of = lru_cache(maxsize=8)(self._made)
        self._graph_of = lru_cache(maxsize=8)(lambda canonical: self._plan_of(canonical).graph())

    def name(self, job_id: bytes) -> str:
        """Return the id of a stored job; raises JobFailed if it is unknown."""
        if job_id not in self._names:
            self._names = {wire_id(name): name for name in self._store.newest_job_names()}
        try:
            return self._names[job_id]
        except KeyError:
            raise JobFailed("the job is not in the store") from None

    def entry(self, job_id: bytes) -> JobEntry:
        return self._store.job(self.name(job_id))

    def plan(self, entry: JobEntry) -> Plan:
        return self._plan_of(entry.canonical)

    def plan_or_why(self, entry: JobEntry) -> tuple[Plan | None, str]:
        """Return the plan, or why this version cannot read the job. Raises StoreAway."""
        try:
            return self.plan(entry), ""
        except StoreAway:
            raise  # an error of the store, not of the job
        except EdgeVeilError as error:
            return None, f"the stored job cannot be read: {error}"

    def _made(self, canonical: bytes) -> Plan:
        plan = compile_canonical(canonical)
        digests = kept_digests(plan.job)
        found = {digest: self._store.backbone(digest) for digest in digests}
        kept = {digest: graph for digest, graph in found.items() if graph is not None}
        return plan.with_artifacts(kept)

    def graph(self, entry: JobEntry) -> bytes:
        """Return the job's ONNX graph with weights as inputs; DataError without its backbones."""
        return self._graph_of(entry.canonical)

    def state(self, entry: JobEntry) -> dict[str, Array]:
        return state_after(self._store.last_commit(entry.id), self.plan(entry))


class LazyState(Mapping[str, Array]):
    """A job's state, read on first access: not in memory during aggregation."""

    def __init__(self, jobs: StoredJobs, entry: JobEntry) -> None:
        self._jobs, self._entry = jobs, entry

    @cached_property
    def _state(self) -> dict[str, Array]:
        return self._jobs.state(self._entry)

    def __getitem__(self, name: str) -> Array:
        return self._state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def state_after(last: LastCommit | None, plan: Plan) -> dict[str, Array]:
    """Return the state after a commit (None: the initial one); raises DataError without weights."""
    if last is not None:
        return tensor_views(last.state)
    plan.check_artifacts()
    return plan.cloud.initial_state()
