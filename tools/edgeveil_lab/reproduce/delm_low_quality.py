"""Low-quality MNIST: `min_divergence` against `fedavg`, without noise, with `fm_paper`, and `fm`.

The text compares them on EMNIST and CIFAR-100 (table 4), and on MNIST with its own noise only
(figure 4, whose figures stand here in the rows of 0.5). Without noise the rule itself can be seen.
"""

from __future__ import annotations

from typing import Any

from edgeveil_lab.reproduce.base import Experiment, Point, Trial
from edgeveil_lab.reproduce.delm import OURS, Scene, low_quality

SHARES = (0.3, 0.5)
ROUNDS = 10
RULES = {
    "fedavg": "fedavg",
    "top_k": "min_divergence, the least 50",
    "drawn": "min_divergence, 50 drawn",
}
OF_TEXT = {"delm_top_k": 0.954, "delm_enhanced": 0.921}  # figure 4, at 0.5


def trials(quick: bool) -> tuple[Trial, ...]:
    """For each share of bad records: without noise, with the text's, with the proven method."""
    return tuple(
        row for share in SHARES for row in _rows(Scene(quick, "mnist", low_quality(share)))
    )


def _rows(scene: Scene) -> list[Trial]:
    share = scene.partition["lq_user"]
    tag = f"{100 * share:.0f}"
    rows = []
    for rule, words in RULES.items():
        name = f"sgd_{rule}_{tag}"
        job = scene.job(name, _noiseless(scene, rule))
        rows.append(Trial(name, f"lq {share}: no noise, {words}", job, (Point(),), "none"))
    presets = ("delm_basic", "delm_top_k", "delm_enhanced")
    for preset, words in zip(presets, RULES.values(), strict=True):
        own: dict[str, Any] = {"train": {"rounds": ROUNDS}}
        if preset != "delm_basic":
            own["aggregation"] = scene.chosen(50)
        name, point = f"{preset}_{tag}", Point(OF_TEXT.get(preset) if share == 0.5 else None)
        job = scene.job(name, scene.system(preset, **own))
        rows.append(Trial(name, f"lq {share}: fm_paper, {words}", job, (point,), "ε = 1"))
    for kind, parts in (("fm", scene.fm()), ("gabor_fm", scene.gabor_fm())):
        name, label = f"{kind}_{tag}", f"lq {share}: {OURS[kind]}, fedavg"
        rows.append(Trial(name, label, scene.job(name, parts), (Point(),), "not in the text"))
    return rows


def _noiseless(scene: Scene, rule: str) -> dict[str, Any]:
    own: dict[str, Any] = {"train": {"rounds": ROUNDS}}
    if rule != "fedavg":
        sampling = {"top_k": "top_k", "drawn": "exponential"}[rule]
        own["aggregation"] = scene.chosen(
            50, name="min_divergence", sampling=sampling, epsilon_3=2.0
        )
    return scene.system("fedavg", **own)


EXPERIMENT = Experiment(
    title="low-quality MNIST: min_divergence against fedavg",
    source="Cao et al. 2023 (DELM), section 6.2.2",
    figure="accuracy",
    trials=trials,
    remark="lq 0.3: 30 of 100 devices, of whose records 30 % have another class and noise; lq 0.5 "
    f"likewise. {ROUNDS} rounds, `fm` 25. Each run's report.html draws who holds what. "
    "`min_divergence` is undefined on the sums that `fm` sends. The two figures are of figure 4.",
)
