"""PSO-DP's figures 8 and 9: federated MNIST, records dealt IID (8) and non-IID (9), a small CNN."""

from __future__ import annotations

from typing import Any

from edgeveil_lab.reproduce.base import Experiment, Point, Trial
from edgeveil_lab.reproduce.pso import SWARM, TEXT, Scene

DEALINGS: dict[str, tuple[str, dict[str, Any], dict[int, float]]] = {
    "iid": ("IID", {"kind": "iid"}, {10: 0.9829, 2: 0.962}),
    "non_iid": (
        "two classes a device",
        {"kind": "n_class", "classes_per_device": 2},
        {10: 0.9649, 2: 0.8928},
    ),
}


def trials(quick: bool) -> tuple[Trial, ...]:
    """The text's scheme, the same noise on plain SGD, and no noise."""
    scene = Scene(quick, {"name": "cnn"})
    found = []
    for dealing, (dealt, partition, claimed) in DEALINGS.items():
        run = {"devices": 20 if quick else 100, "partition": partition}
        for epsilon, figure in claimed.items():
            for short, label, parts, text in (
                ("pso", "pso_dp_fl", _swarm(quick), figure),
                ("direct", "SGD, then noise", _direct(quick), None),
            ):
                name = f"{short}_{dealing}_eps{epsilon}"
                job = scene.shared(name, parts, float(epsilon), run)
                label = f"{label}, {dealt}, ε = {epsilon}"
                found.append(Trial(name, label, job, (Point(text),), f"ε = {epsilon}"))
        name = f"none_{dealing}"
        job = scene.shared(name, {"train": _sgd(quick)}, 10.0, run)
        job["local_run"]["policy"]["accept_unprotected"] = True
        found.append(Trial(name, f"SGD without noise, {dealt}", job, (Point(),), "none"))
    return tuple(found)


def _sgd(quick: bool) -> dict[str, Any]:
    return {"method": "sgd", "rounds": 2 if quick else 50, "local_epochs": 2}


def _direct(quick: bool) -> dict[str, Any]:
    return {"train": _sgd(quick), "update": [{"name": "gradient_gaussian", "clip_norm": 1.0}]}


def _swarm(quick: bool) -> dict[str, Any]:
    return {"train": {**_sgd(quick), "method": "pso_dp_fl", "clip_norm": 1.0, **SWARM}}


EXPERIMENT = Experiment(
    title="federated MNIST, dealt IID and two classes a device, a CNN (32-64)",
    source=f"{TEXT}, figures 8 and 9",
    figure="accuracy",
    trials=trials,
    remark="The text names neither clients nor rounds: 100 devices of 600 records, 50 rounds of "
    "two local passes. It prints figures for its own scheme alone. Here the noise protects a "
    "whole device, over all rounds; it is made for the rounds that are played.",
)
