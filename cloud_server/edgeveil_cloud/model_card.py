"""Metadata of a released model, in its ONNX file's `metadata_props`; and the file of its
weights.

The same plan gives the same entries, so that a model is the same to the bit wherever it was
computed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from edgeveil.data.anomaly import ALARM_RATE
from edgeveil.data.schema import without_location
from edgeveil.evaluation.figures import ACCURACY
from edgeveil.jobs import Plan
from edgeveil.parts.exchange import Tensors
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_cloud.round_report import summary_of

STATE_DICT = {"format": "pt"}  # as safetensors files of PyTorch say it


def model_card(plan: Plan, federated: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Entries of the model of a completed job; what is no plain text is JSON.

    `edgeveil.privacy` has both guarantees with δ, unit and status; `edgeveil.federated` the
    single numbers of the last exchange on the devices' own records.
    """
    job = plan.job
    told: dict[str, Any] = {
        "input_shape": list(job.data.input_shape),
        "privacy": summary_of(plan, len(plan.exchanges), None)["privacy"],
    }
    if federated:
        told["federated"] = {
            key: value
            for key, value in federated.items()
            if isinstance(value, int | float) or key == "leading"
        }
        if "threshold" in federated:
            told[ALARM_RATE.removeprefix("edgeveil.")] = federated["alarm_rate"]
    if job.measure == ACCURACY:
        told["labels"] = [str(label) for label in range(job.data.classes)]
    found = {
        "edgeveil.version": metadata.version("edgeveil"),
        "edgeveil.job": job.job,
        "edgeveil.job_sha256": job.digest().hex(),
        **{f"edgeveil.{key}": json.dumps(value, allow_nan=False) for key, value in told.items()},
        **plan.model_metadata,  # names in place of numbers
    }
    return {key: without_location(text) for key, text in found.items()}


def weights_file(plan: Plan, weights: Tensors) -> bytes:
    """The graph's weights as safetensors: of a `model` a state_dict of PyTorch, dense weights
    (out, in); of a head as the graph takes them."""
    network = plan.setting.network
    if network is None:
        return pack_tensors(weights)
    return pack_tensors(network.saved(weights), STATE_DICT)
