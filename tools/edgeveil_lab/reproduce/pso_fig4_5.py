"""PSO-DP's figures 4 and 5: MNIST at ε = 2 … 10, with a perceptron and with a small CNN."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from edgeveil_lab.reproduce.base import Experiment, Point, Trial
from edgeveil_lab.reproduce.pso import PASSES, TEXT, Scene

EPSILONS = (10, 8, 6, 4, 2)
OURS = "pso_dp_sgd"
# Where the text prints "about 10 %", the figure of guessing.
MLP_CLAIMED = {
    "dp_sgd": (0.8443, 0.8294, 0.8071, 0.7706, 0.7125),
    OURS: (0.9067, 0.9033, 0.9028, 0.9078, 0.9066),
    "output_perturbation": (0.1,) * 5,
}
CNN_CLAIMED = {
    "dp_sgd": (0.8458, 0.8268, 0.7987, 0.7528, 0.6752),
    OURS: (0.8781, 0.8757, 0.8819, 0.8824, 0.8826),
    "output_perturbation": (0.6663, 0.7025, 0.6430, 0.6821, 0.6963),
}
Claimed = Mapping[str, tuple[float, ...]]


def trials(model: str, claimed: Claimed, quick: bool) -> tuple[Trial, ...]:
    """Each method at each ε, the largest first; the quick ones at two."""
    scene = Scene(quick, {"name": model})
    passes = {"rounds": 2, "local_epochs": 2} if quick else {"rounds": 50, "local_epochs": 2}
    rows: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("dp_sgd", "dp_sgd", "DP-SGD", scene.noised("dp_sgd")),
        ("unpriced", OURS, "PSO-DP, as the text", scene.noised(OURS, selection="unpriced")),
        ("priced", OURS, "PSO-DP, choice priced", scene.noised(OURS, selection="priced")),
        (
            "params",
            "output_perturbation",
            "DP-params",
            {"method": "output_perturbation", **passes},
        ),
    )
    return tuple(
        Trial(
            name=f"{short}_eps{epsilon}",
            label=f"{label}, ε = {epsilon}",
            job=scene.alone(f"{short}_eps{epsilon}", train, float(epsilon)),
            points=(Point(claimed[method][index], series=label, x=epsilon),),
            claimed_privacy=f"ε = {epsilon}",
        )
        for index, epsilon in enumerate(EPSILONS)
        if not quick or epsilon in (10, 2)
        for short, method, label, train in rows
    )


def _experiment(figure: int, model: str, what: str, claimed: Claimed) -> Experiment:
    return Experiment(
        title=f"MNIST with {what}, one holder of all records",
        source=f"{TEXT}, figure {figure}",
        figure="accuracy",
        trials=partial(trials, model, claimed),
        picture="lines",
        x_label="ε",
        remark=f"One device holds all 60,000 records. {PASSES} passes, in rounds of half a pass; "
        "the noise is made for the rounds that are played, so with fewer of them it is less. The "
        "text's choice of the best particle by exact losses is not paid for (`unpriced`); `priced` "
        "pays for all particles' steps and for noised losses.",
    )


FIG4 = _experiment(4, "mlp_300_100", "a perceptron (300-100)", MLP_CLAIMED)
FIG5 = _experiment(5, "cnn", "a CNN (32-64)", CNN_CLAIMED)
