"""Anonymous federated learning (Zhao et al. 2021): accuracy against λ_u, λ_d, ε and δ.

Text 004 tells of the curves in words and prints no number: with a tenth of the parameters shared,
accuracy hardly falls; noise costs some. λ_u and λ_d are looked at without noise, ε and δ with the
preset's λ_u = 0.1 and λ_d = 0.5. Where the text does not bound an update, the clip does.
"""

from __future__ import annotations

from typing import Any

from edgeveil_lab.reproduce.experiment import Experiment, Point, Trial

SHARED = ((1.0, 1.0), (0.1, 1.0), (0.01, 1.0), (1.0, 0.5), (1.0, 0.1), (0.1, 0.5))  # λ_u, λ_d
NOISED = ((16.0, 1.0e-5), (8.0, 1.0e-3), (8.0, 1.0e-5), (1.0, 1.0e-5))  # ε, δ


def trials(quick: bool) -> tuple[Trial, ...]:
    """Shares of the parameters without noise, then noise at the preset's shares."""
    found = []
    for up, down in SHARED:
        name = f"up{up:g}_down{down:g}".replace(".", "_")
        stages = [{"name": "download_random", "share": down}, {"name": "upload_top_k", "share": up}]
        parts = {"update": [stage for stage in stages if stage["share"] != 1.0]}
        label = f"λ_u = {up:g}, λ_d = {down:g}, no noise"
        found.append(Trial(name, label, _job(name, parts, 8.0, 1e-5, quick), (Point(),), "none"))
    for epsilon, delta in NOISED:
        name = f"eps{epsilon:g}_delta{delta:.0e}".replace("e-0", "e-")
        label = f"λ_u = 0.1, λ_d = 0.5, ε = {epsilon:g}, δ = {delta:g}"
        job = _job(name, {}, epsilon, delta, quick)
        found.append(Trial(name, label, job, (Point(),), f"ε = {epsilon:g}, δ = {delta:g}"))
    return tuple(found)


def _job(
    name: str, parts: dict[str, Any], epsilon: float, delta: float, quick: bool
) -> dict[str, Any]:
    devices = 20 if quick else 100
    data = {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 64}
    if not quick:
        data |= {"source": "mnist", "input_shape": [28, 28], "nominal_records": 600}
    return {
        "job": name,
        "preset": "anonymous_fl",
        "data": {**data, "evaluation_share": 0},
        "model": {"input_scale": 16 if quick else 255},
        **({"train": {"rounds": 3}} if quick else {}),
        **parts,
        "privacy": {"epsilon": epsilon, "delta": delta, "accept_unproven": True},
        "selection": {"min_devices": devices},
        "round": {"deadline_s": 600, "quorum": 1.0},
        "local_run": {
            "devices": devices,
            "policy": {
                "max_epsilon_per_job": epsilon,
                "lifetime_epsilon": epsilon,
                "lifetime_delta": delta * 10,
                "accept_unproven": True,
                "accept_unprotected": True,
                "allowed_methods": ["sgd"],
            },
        },
    }


EXPERIMENT = Experiment(
    title="anonymous federated learning: shares of the parameters that are sent, and noise",
    source="Zhao et al. 2021",
    figure="accuracy",
    trials=trials,
    remark="The text prints no number: it says that a tenth of the parameters does almost as well "
    "as all of them. 100 devices of 600 records, IID, a perceptron (128), 50 rounds. With noise "
    "the guarantee is for whole devices; what is chosen after the noise is mostly noise.",
)
