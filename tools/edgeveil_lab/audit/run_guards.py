"""Guards of whole runs: a job that fails late spends nothing, and no output tells exact figures."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import yaml

from edgeveil.crypto.keys import OpeningKey
from edgeveil.errors import EdgeVeilError
from edgeveil.jobs import Job, load_job
from edgeveil.jobs.rehearsal import MadeUpDevice, made_up_records, rehearsed_softmax
from edgeveil.jobs.round_context import RoundContext
from edgeveil.pages.frozen import thawed
from edgeveil.pages.parts import rounded
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.policy import Limits as Budget
from edgeveil.protocol.cloud_job import SealRelease
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.rehearsal import RefusedJobError
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import ExchangeRecord, JobEntry
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_cloud.validate_batch import ValidatedBatch
from edgeveil_lab.audit.guards import AttackOutcome, Guard
from edgeveil_tools.local.job import Overrides, local_job, site_of
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import train
from edgeveil_tools.local.run import run_local
from edgeveil_tools.report.page import holdings, holdings_picture

if TYPE_CHECKING:
    import torch


# --- jobs that fail late: submitted to a real cloud, answered by a device ---
# A job is either refused before it is queued, or its one device answers round after round at its
# ledger's price until a later stage fails: a graph that no device runs, a final model above the
# cloud's limit. A sound job is submitted too: a gate that takes nothing would hold nothing.

_PART_BYTES = 4096
_LARGE, _SMALL = 1 << 28, 3000  # bytes of a broadcast: the second is less than the final model has
_BUDGET = Budget(100.0, 100.0, 1e-3, 1000.0, False, False)
_YAML = """
job: late
data: {{source: made_up, classes: 3, input_shape: [8], nominal_records: 20}}
model: {{{model}}}
train: {{method: dp_sgd, rounds: 2, local_steps: 1, sampling_rate: 1}}
privacy: {{epsilon: 2, delta: 1.0e-5}}
unsupervised: {{every_rounds: 2}}
encrypt: {{laplace_eval: {{laplace_eval_eps: 1}}}}
round: {{min_batch: 1}}
selection: {{min_devices: 1}}
"""
_DENSE = "name: mlp, hidden: [64]"
_SHRINKING = 'name: python, function: "edgeveil_lab.audit.run_guards:shrinking"'
_LATE = ((_SHRINKING, _LARGE), (_DENSE, _SMALL))  # a model, and the cloud's limit


def shrinking() -> torch.nn.Module:
    """A model whose graph compares values, which no device does."""
    from torch import nn

    return nn.Sequential(nn.Linear(8, 3), nn.Softshrink())


def late_failures(flawed: bool, quick: bool) -> AttackOutcome:
    """Submit jobs that fail late; with the flaw no job is played on made-up records before."""
    del quick  # it takes seconds either way
    spent, why = 0.0, ""
    with patch("edgeveil_cloud.control.rehearse_job") if flawed else nullcontext():
        for model, limit in _LATE[1:] if flawed else _LATE:  # one that spends is enough
            epsilon, reason = _submitted(model, limit)
            if epsilon:
                spent, why = spent + epsilon, reason
    if spent:
        return AttackOutcome(True, f"ε = {spent:.2f} spent, then: {why}")
    if not (taken := _submitted(_DENSE, _LARGE))[0]:
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
            host = CloudHost(store, None, BroadcastLimits(_PART_BYTES, blob_bytes))
            store.set_enrolled({OpeningKey.generate().public().to_bytes()})
            desk = Control(store, host, None, None, python_models=True)  # type: ignore[arg-type]
            job_id = desk.submit(text)
            try:
                _played(store, host, store.job(job_id), ledger)
            except EdgeVeilError as error:
                return ledger.spent().epsilon, str(error)
            return ledger.spent().epsilon, ""
        except RefusedJobError as error:
            return 0.0, str(error)
        finally:
            ledger.close()
            store.close()


def _played(store: Store, host: CloudHost, entry: JobEntry, ledger: Ledger) -> None:
    """The job as a cloud and its only device do it, each answer priced before it leaves."""
    plan, graph = host.jobs.plan(entry), host.jobs.graph(entry)
    records, state = made_up_records(plan, 20), plan.cloud.initial_state()
    store.set_status(entry.id, "running")
    ledger.open_job(plan.request(entry.id), _BUDGET)
    for exchange in plan.exchanges:
        context = RoundContext.of(plan, exchange.index)
        events = context.price(trains=True)
        if exchange.infer:
            rehearsed_softmax(plan, graph, plan.cloud.model(state), records.x)
        package = plan.cloud.package(state, exchange)
        segments = MadeUpDevice(plan, records, "cpu").answer(exchange, package)
        ledger.commit(entry.id, exchange.index, events, pack_tensors(segments))
        opened = ValidatedBatch(arrays={name: [array] for name, array in segments.items()})
        state, uploads = aggregate(context, state, opened)
        record: dict[str, Any] = {"phase": exchange.phase, "number": exchange.number}
        store.commit_exchange(
            entry.id,
            ExchangeRecord(index=exchange.index, attempt=1, uploads=uploads, **record),
            pack_tensors(state),
        )
    host.perform(SealRelease(wire_id(entry.id)))


# --- what a run on a user's own file leaves in its folder ---
# The attacker has the output folder, and is told the figures it looks for: the accuracy that
# learning without noise has after each round, and how many records of each class every device was
# dealt.

RECORDS, CLASSES, DEVICES = 14_330, 3, 5
_TELLING = 1000  # a smaller whole number may stand there for another reason
_NUMBER = re.compile(r"(?<![\w.])\d{4,}(?![\w.])")


def _disclosed(flawed: bool, quick: bool) -> AttackOutcome:
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = _own_file_job(folder, rounds=2 if quick else 8)
        out = folder / "out"
        run_local(
            path, out, Overrides(), reference=True if flawed else None, brief=True,
            stream=io.StringIO(),
        )  # fmt: skip
        found = sorted(set(exact_figures(out, *local_job(path, Overrides()))))
    return AttackOutcome(bool(found), "; ".join(found) or "none found")


def exact_figures(out: Path, job: Job, run: LocalRun) -> Iterator[str]:
    """What the files below `out` tell of the records that the run dealt, in words.

    Takes a job whose devices keep no evaluation records: what they train on is what was dealt.
    """
    held = holdings(job, run)
    with TemporaryDirectory() as folder:
        site = site_of(job, run, Path(folder))
        for number in range(1, run.devices + 1):
            site.edge_state(number).mkdir(parents=True)
        curve = train(job, run, site)
    counts = {str(n) for n in (*held.counts.ravel(), *held.counts.sum(axis=1)) if n >= _TELLING}
    picture = holdings_picture(held)["values"]
    drawn = [rounded(value) for value in curve]
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        text = path.read_bytes().decode("utf-8", "replace")
        values = list(_values(path, text))
        if any(_lists(picture, value) for value in values):
            yield f"who holds what in {path.name}"
        if any(_lists(curve, value) or _lists(drawn, value) for value in values):
            yield f"the curve without noise in {path.name}"
        if path.suffix in (".json", ".jsonl", ".log") and counts & set(_NUMBER.findall(text)):
            yield f"counts of records in {path.name}"


def _values(path: Path, text: str) -> Iterator[Any]:
    if path.suffix == ".json":
        yield json.loads(text)
    elif path.suffix == ".jsonl":
        yield from map(json.loads, text.splitlines())
    elif path.suffix == ".html":
        yield thawed(text)


def _lists(wanted: Sequence[Any], value: Any) -> bool:
    """Whether this list stands somewhere inside."""
    if isinstance(value, dict):
        return any(_lists(wanted, inner) for inner in value.values())
    if not isinstance(value, list):
        return False
    return value == wanted or any(_lists(wanted, inner) for inner in value)


def _own_file_job(folder: Path, rounds: int) -> Path:
    """A job on a CSV file of its own, which no other process could have read before."""
    rng = np.random.default_rng(12)
    y = rng.choice(CLASSES, RECORDS, p=(0.6, 0.25, 0.15))
    x = rng.normal(size=(RECORDS, 2)) + np.stack([y - 1.0, np.abs(y - 1.0)], axis=1)
    rows = np.column_stack([x, y])
    np.savetxt(folder / "own.csv", rows, "%.4f,%.4f,%d", header="a,b,label", comments="")
    plain = {
        "job": "disclosure",
        "data": {
            "source": "mine",
            "classes": CLASSES,
            "input_shape": [2],
            "nominal_records": 2000,
            "evaluation_share": 0,
        },
        "features": [{"name": "identity", "input_scale": 4}],
        "train": {"method": "fm", "rounds": rounds},
        "privacy": {"epsilon": 1, "delta": 1e-6},
        "round": {"min_batch": DEVICES},
        "local_run": {
            "devices": DEVICES,
            "simulate": True,
            "data": {"source": "csv", "path": "own.csv"},
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


REHEARSAL = Guard(
    "rehearsal",
    "a job that fails late spends nothing",
    "jobs are not played on made-up records",
    late_failures,
)


DISCLOSURE = Guard(
    "output of a run",
    "a run on an own file tells no exact figure of the records dealt to devices",
    "the noise-free reference and who holds what, as of a published set",
    _disclosed,
)
