"""DELM's table 4: low-quality data on EMNIST Balanced (47 classes) and CIFAR-100."""

from __future__ import annotations

from typing import Any

from edgeveil_lab.reproduce.base import Experiment, Point, Trial
from edgeveil_lab.reproduce.delm import Scene, low_quality

LEVELS = {"high": 0.5, "low": 0.3}
CLAIMED = {  # EMNIST with many bad records and with few, CIFAR-100 with many and with few
    "fedavg": ((0.670, 0.716), (0.411, 0.458)),
    "ldp_fl": ((0.603, 0.657), (0.378, 0.419)),
    "secprobe": ((0.714, 0.756), (0.453, 0.497)),
    "delm_basic": ((0.658, 0.702), (0.402, 0.424)),
    "delm_enhanced": ((0.765, 0.782), (0.505, 0.527)),
}


def trials(quick: bool) -> tuple[Trial, ...]:
    """`fm` on EMNIST first, then the text's rows."""
    rows = []
    for level, figure in zip(LEVELS, CLAIMED["delm_enhanced"][0], strict=True):
        scene = _scene(quick, "emnist", level)
        name, label = f"fm_{level}", f"fm (in place of DELM), {level}"
        job = scene.job(name, scene.fm())
        rows.append(Trial(name, label, job, (Point(figure),), "ε = 1, as DELM"))
    sources = ("emnist",) if quick else ("emnist", "cifar100")
    for source, column in zip(sources, (0, 1), strict=False):
        for preset, figures in CLAIMED.items():
            for level, figure in zip(LEVELS, figures[column], strict=True):
                rows.append(_row(_scene(quick, source, level), preset, level, figure))
    return tuple(rows)


def _scene(quick: bool, source: str, level: str) -> Scene:
    return Scene(quick, source, low_quality(LEVELS[level]))


def _row(scene: Scene, preset: str, level: str, figure: float) -> Trial:
    own: dict[str, Any] = {}
    if preset in ("delm_enhanced", "secprobe"):
        own["aggregation"] = scene.chosen(50)
    if scene.source == "cifar100" and preset == "ldp_fl":
        own["train"] = {"rounds": 150}
    on = "" if scene.source == "emnist" else f"_{scene.source}"
    name = f"{preset}_{level}{on}"
    label = f"{preset}, {level}" + on.replace("_", ", ")
    claimed = "none" if preset == "fedavg" else "ε = 1"
    return Trial(
        name, label, scene.job(name, scene.system(preset, **own)), (Point(figure),), claimed
    )


EXPERIMENT = Experiment(
    title="low-quality data: half of the users hold bad records (high), or 30 % (low)",
    source="Cao et al. 2023 (DELM), table 4",
    figure="accuracy",
    trials=trials,
    remark="EMNIST is its split Balanced, 47 classes. `high`: lq_user = lq_data = 0.5; `low`: 0.3.",
)
