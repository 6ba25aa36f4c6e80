"""The attack on budgets by jobs that fail late: submitted to a real cloud, answered by a device.

A job is either refused before it is queued, or its one device answers round after round at its
ledger's price until a later stage fails: a graph that no device runs, a final model above the
cloud's limit. A sound job is submitted too: a gate that takes nothing would hold nothing.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from edgeveil.crypto.keys import OpeningKey
from edgeveil.errors import EdgeVeilError
from edgeveil.jobs import load_job
from edgeveil.jobs.rehearsal import made_up_records, rehearsed_answer, rehearsed_softmax
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.policy import Limits as Budget
from edgeveil.protocol.cloud_tasks import SealRelease
from edgeveil.protocol.sealed import pack_tensors
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import CloudHost, wire_id
from edgeveil_cloud.opening import Opened
from edgeveil_cloud.rehearsal import RefusedJobError
from edgeveil_cloud.rounds import aggregate
from edgeveil_cloud.sealing import Limits
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_records import ExchangeRecord, JobEntry
from edgeveil_lab.audit.guards import AttackOutcome

if TYPE_CHECKING:
    import torch

_PART_BYTES = 4096
_LARGE, _SMALL = 1 << 28, 3000  # bytes of a broadcast: the second is less than the final model has
_BUDGET = Budget(100.0, 100.0, 1e-3, 1000.0, False, False)
_YAML = """
job: late
data: {{source: made_up, classes: 3, input_shape: [8], nominal_records: 20}}
model: {{name: python, function: "edgeveil_lab.audit.rehearsal:{model}"}}
train: {{method: dp_sgd, rounds: 2, local_steps: 1}}
privacy: {{epsilon: 2, delta: 1.0e-5}}
unsupervised: {{every_rounds: 2}}
encrypt: {{laplace_eval: {{laplace_eval_eps: 1}}}}
round: {{min_batch: 1}}
selection: {{min_devices: 1}}
"""
_LATE = (("shrinking", _LARGE), ("dense", _SMALL))  # a model's name, and the cloud's limit


def dense() -> torch.nn.Module:
    """A model that can be done."""
    from torch import nn

    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 3))


def shrinking() -> torch.nn.Module:
    """A model whose graph compares values, which no device does."""
    from torch import nn

    return nn.Sequential(nn.Linear(8, 3), nn.Softshrink())


def late_failures(flawed: bool, quick: bool) -> AttackOutcome:
    """Submit jobs that fail late; with the flaw no job is played on made-up records before."""
    del quick  # it takes seconds either way
    spent, why = 0.0, ""
    with patch("edgeveil_cloud.control.rehearse_job") if flawed else nullcontext():
        taken = _submitted("dense", _LARGE)
        for model, limit in _LATE:
            epsilon, reason = _submitted(model, limit)
            if epsilon:
                spent, why = spent + epsilon, reason
    if spent:
        return AttackOutcome(True, f"ε = {spent:.2f} spent, then: {why}")
    if not taken[0]:
        return AttackOutcome(True, f"a sound job is refused: {taken[1]}")
    return AttackOutcome(
        False, f"{len(_LATE)} of {len(_LATE)} jobs refused before anything was priced"
    )


def _submitted(model: str, blob_bytes: int) -> tuple[float, str]:
    """(ε that a device spent on the job, why the job failed or was refused)."""
    with TemporaryDirectory(prefix="edgeveil-audit-") as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(_YAML.format(model=model))
        text = load_job(path).model_dump_json()
        store = Store(f"sqlite:///{folder}/cloud.sqlite")
        ledger = Ledger(Path(folder) / "ledger.sqlite", "made_up")
        try:
            host = CloudHost(store, None, Limits(_PART_BYTES, blob_bytes))
            store.set_enrolled({OpeningKey.generate().public().to_bytes()})
            desk = Control(store, host, None, None, 1, python_models=True)  # type: ignore[arg-type]
            job_id = desk.submit(text)
            try:
                _play(store, host, store.job(job_id), ledger)
            except EdgeVeilError as error:
                return ledger.spent().epsilon, str(error)
            return ledger.spent().epsilon, ""
        except RefusedJobError as error:
            return 0.0, str(error)
        finally:
            ledger.close()
            store.close()


def _play(store: Store, host: CloudHost, entry: JobEntry, ledger: Ledger) -> None:
    """The job as a cloud and its only device do it, each answer priced before it leaves."""
    plan, graph = host.jobs.plan(entry), host.jobs.graph(entry)
    records, state = made_up_records(plan, 20), plan.cloud.initial_state()
    store.set_status(entry.id, "running")
    ledger.open_job(plan.request(entry.id), _BUDGET)
    for exchange in plan.exchanges:
        events = plan.device.price(exchange)
        if exchange.infer:
            rehearsed_softmax(plan, graph, plan.cloud.model(state), records.x)
            events += (plan.softmax_event(),)
        package = plan.cloud.package(state, exchange)
        segments, _ = rehearsed_answer(plan, exchange, package, {}, records, "cpu")
        ledger.commit(entry.id, exchange.index, events, pack_tensors(segments))
        opened = Opened(arrays={name: [array] for name, array in segments.items()})
        state, uploads = aggregate(plan, exchange, state, opened)
        record: dict[str, Any] = {"phase": exchange.phase, "number": exchange.number}
        store.commit_exchange(
            entry.id,
            ExchangeRecord(index=exchange.index, attempt=1, uploads=uploads, **record),
            pack_tensors(state),
        )
    host.perform(SealRelease(wire_id(entry.id)))
