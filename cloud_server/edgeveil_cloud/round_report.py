"""Events, reports and optional recordings of rounds and of a job's end.

A recording adds nothing to the cloud's knowledge (no name, order of arrival, or time), but holds
uploads in the clear. Off unless the site file names its folder:

    job.json                          the job, canonical
    03-train-0001.broadcast.safetensors   tensors sent to the selected devices
    03-train-0001.uploads.safetensors     their segments in the batch's order: `head.weight/0000`
    03-train-0001.model.safetensors       the global model afterwards (training rounds)
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeveil.data.anomaly import ALARM_RATE
from edgeveil.data.schema import without_location
from edgeveil.errors import JobFailed
from edgeveil.evaluation.clustering import ClusterScores
from edgeveil.evaluation.figures import ACCURACY
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.methods import METHODS
from edgeveil.parts.round import Array, PlannedRound, Tensors
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.protocol.tensors import pack_tensors, tensor_views
from edgeveil_cloud.early_stopping import shown
from edgeveil_cloud.store_tables import RoundRecord

if TYPE_CHECKING:
    from edgeveil_cloud.store import Store

SHOWN_ROWS = 4096
JOB = "job.json"


def round_timeline(
    marks: Mapping[str, float], absorb_started: float, now_s: float
) -> dict[str, float]:
    seal, sealed = marks.get("seal", absorb_started), marks.get("sealed", absorb_started)
    held = marks.get("held", sealed)
    batch = marks.get("batch", absorb_started)
    return {
        "seal_s": round(sealed - seal, 6),
        "broadcast_s": round(max(0.0, held - sealed), 6),
        "wait_s": round(max(0.0, batch - held), 6),
        "absorb_s": round(now_s - batch, 6),
    }


def round_event(record: RoundRecord, plan: Plan, timeline: Mapping[str, float]) -> dict[str, Any]:
    """Return the event of a committed round, with planned ε up to it."""
    quote = plan.quote(record.index)
    bounds = (
        ("collusion", quote.training.plain, "collusion_epsilon"),
        ("inference_record", quote.inference.plain, "record_epsilon"),
    )
    names = ("phase", "number", "attempt", "uploads", "accuracy", "loss", "seconds")
    return {
        "exchange": record.index,
        **{name: getattr(record, name) for name in names},
        "bytes": dict(record.bytes),
        "timeline": dict(timeline),
        "epsilon": {
            "training": _finite(quote.training),
            "inference": _finite(quote.inference),
            **{name: part[key] for name, part, key in bounds if key in part},
        },
    }


def shown_facts(plan: Plan, state: Mapping[str, Array]) -> Mapping[str, Any]:
    """Return what a method that learns nothing shows of its sums."""
    nothing = METHODS[plan.job.train.method].learns_on == "nothing"
    return plan.cloud.shown(state) if nothing else {}


def shown_clusters(scores: ClusterScores | None, vectors: list[Array]) -> dict[str, Any] | None:
    if scores is None:
        return None
    rows = [row for v in vectors for row in np.atleast_2d(v.astype(np.float64))[:SHOWN_ROWS]]
    rounded = [[round(x, 6) for x in row.tolist()] for row in rows[:SHOWN_ROWS]]
    plain = scores.to_dict()
    return {**plain, "labels": plain["labels"][:SHOWN_ROWS], "vectors": rounded}


def job_summary(store: Store, plan: Plan, job: str, all_declined: bool = False) -> dict[str, Any]:
    """Return both guarantees and the last accuracy at a job's end.

    Prices the round after the last commit too if it was sealed, unless all devices declined it."""
    last = store.last_commit(job)
    asked = last.index if last else 0
    asked += not all_declined and store.round_key(job, asked + 1, 1) is not None
    state = tensor_views(last.state) if last else {}
    return summary_of(plan, asked, last.record.accuracy if last else None, state)


def summary_of(
    plan: Plan, asked: int, accuracy: float | None, state: Mapping[str, Array] | None = None
) -> dict[str, Any]:
    """Return both guarantees after `asked` rounds, the last accuracy, and any early stopping."""
    quote = plan.spent(asked)
    unit = quote.inference.unit if quote.inference.epsilon else plan.softmax_event().unit
    once = plan.epsilon_per_inference
    inference = {**quote.inference.plain, "unit": unit, "epsilon_per_round": once}
    return {
        "privacy": {"training": quote.training.plain, "inference": inference},
        "final": {"accuracy": accuracy},
        **shown(plan, state or {}),
    }


def _finite(guarantee: Guarantee) -> float | None:
    return guarantee.epsilon if math.isfinite(guarantee.epsilon) else None


# A released model: the metadata in its ONNX file, and the file of its weights.
STATE_DICT = {"format": "pt"}  # as in PyTorch's safetensors files


def model_card(
    plan: Plan, federated: Mapping[str, Any] | None = None, asked: int | None = None
) -> dict[str, str]:
    """Return the metadata of a job's model: both guarantees, labels and figures, as JSON.

    `asked`: rounds that were played, None for all."""
    job = plan.job
    values: dict[str, Any] = {
        "input_shape": list(job.data.input_shape),
        "privacy": summary_of(plan, asked or len(plan.all_rounds), None)["privacy"],
    }
    if federated:
        values["federated"] = {
            key: value
            for key, value in federated.items()
            if isinstance(value, int | float) or key == "leading"
        }
        if "threshold" in federated:
            values[ALARM_RATE.removeprefix("edgeveil.")] = federated["alarm_rate"]
    if job.measure == ACCURACY:
        values["labels"] = [str(label) for label in range(job.data.classes)]
    found = {
        "edgeveil.version": metadata.version("edgeveil"),
        "edgeveil.job": job.job,
        "edgeveil.job_sha256": job.digest().hex(),
        **{f"edgeveil.{key}": json.dumps(value, allow_nan=False) for key, value in values.items()},
        **plan.model_metadata,  # names of classes and columns
    }
    return {key: without_location(text) for key, text in found.items()}


def weights_file(plan: Plan, weights: Tensors) -> bytes:
    """Return the weights as safetensors; of a `model` as a PyTorch state_dict, dense (out, in)."""
    network = plan.context.network
    if network is None:
        return pack_tensors(weights)
    return pack_tensors(network.saved(weights), STATE_DICT)


class Recorder:
    """Records the newest job into `folder`, replacing older recordings."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(
        self,
        context: RoundContext,
        broadcast: Tensors,
        uploads: Mapping[str, Sequence[Array]],
        model: Tensors,
    ) -> None:
        """Write one committed round; raises JobFailed if the folder cannot be written."""
        round = context.round
        rows = {
            f"{name}/{index:04d}": array
            for name, arrays in uploads.items()
            for index, array in enumerate(arrays)
        }
        parts = {"broadcast": broadcast, "uploads": rows}
        if round.number:
            parts["model"] = model
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            canonical, job = context.job.canonical(), self.folder / JOB
            if round.index > 1 and job.exists() and job.read_bytes() != canonical:
                return
            if round.index == 1:
                for old in self.folder.glob("*.safetensors"):
                    old.unlink()
            job.write_bytes(canonical)
            for kind, tensors in parts.items():
                (self.folder / file_name(round, kind)).write_bytes(pack_tensors(tensors))
        except OSError as error:
            what = f"the recording cannot be written ({error.strerror})"
            fix = "free some space, or remove cloud.record_dir"
            raise JobFailed(what, where=str(error.filename or self.folder), fix=fix) from error


def file_name(round: PlannedRound, kind: str) -> str:
    return f"{round.index:02d}-{round.phase}-{round.number:04d}.{kind}.safetensors"
