"""What PSO-DP's experiments share: what the text says of its runs, and what stands for the rest.

The text names N = 3, w = 0.1, ε = 2 … 10 and, where it looks at the number of passes, 100. It names
no batch, step size, clip, c₁, c₂, δ, number of clients or rounds. Those are the defaults of the
methods and presets here, δ = 1e-5 and samples of 1% as in Abadi et al. 2016; nothing is tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgeveil_lab.reproduce import digit_pictures

TEXT = "Zhang, Wu and Dong (PSO-DP)"
SWARM = {"particles": 3, "inertia": 0.1}
PASSES, STEPS_A_PASS = 100, 100
DATA: dict[str, dict[str, Any]] = {  # records of one device that holds them all
    "mnist": {"input_shape": [28, 28], "nominal_records": 60_000},
    "cifar10": {"input_shape": [3, 32, 32], "nominal_records": 50_000},
    digit_pictures.SOURCE: {"input_shape": [8, 8], "nominal_records": 1_437},
}


@dataclass(frozen=True)
class Scene:
    """A model, and records that one device holds or more share."""

    quick: bool
    model: Mapping[str, Any]
    source: str = "mnist"

    def noised(self, method: str, **own: Any) -> dict[str, Any]:
        """A `train` block of noised steps, 50 a round: half a pass, for 200 rounds.

        Of a swarm: each particle's, in two moves. Between rounds it is the best that goes on.
        """
        halves = 2 if method == "pso_dp_sgd" else 1
        steps = 4 if self.quick else STEPS_A_PASS // 2
        swarm = {**SWARM, "moves": halves} if method == "pso_dp_sgd" else {}
        return {
            "method": method,
            "rounds": 2 if self.quick else 2 * PASSES,
            "local_steps": steps // halves,
            "sampling_rate": 0.05 if self.quick else 0.01,
            **swarm,
            **own,
        }

    def alone(self, name: str, train: Mapping[str, Any], epsilon: float) -> dict[str, Any]:
        """The job of one device that holds all records, as the text trains outside of its
        federated figures."""
        return self.shared(
            name,
            {"train": dict(train), "round": {"min_batch": 1}},
            epsilon,
            {"devices": 1},
        )

    def shared(
        self, name: str, parts: Mapping[str, Any], epsilon: float, run: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The job of `run["devices"]` devices. `parts` are keys of the job beside its data."""
        source = digit_pictures.SOURCE if self.quick else self.source
        data, devices = DATA[source], run["devices"]
        return {
            "job": name,
            "data": {
                "source": source,
                "classes": 10,
                **data,
                "nominal_records": data["nominal_records"] // devices,
                "evaluation_share": 0,
            },
            "model": {**self.model, "input_scale": 16 if self.quick else 255},
            **parts,
            "privacy": {"epsilon": epsilon, "delta": 1.0e-5, "accept_unproven": True},
            "selection": {"min_devices": devices},
            "round": {"deadline_s": 3600, "quorum": 1.0, **parts.get("round", {})},
            "local_run": {
                **run,
                "test_share": 0.2 if self.quick else None,
                "policy": {
                    "accept_unproven": True,
                    "min_devices": min(devices, 5),
                    "allowed_methods": [parts["train"]["method"]],
                },
            },
        }
