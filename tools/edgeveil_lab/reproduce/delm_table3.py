"""DELM's table 3: each device holds one class, or two (Cao et al. 2023), ε = 1, k = 50."""

from __future__ import annotations

from typing import Any

from edgeveil_lab.reproduce.base import Experiment, Point, Trial
from edgeveil_lab.reproduce.delm import OURS, Scene

CLAIMED = {  # MNIST with 1 class and 2 classes, CIFAR-10 with 1 class and 2 classes
    "fedavg": ((0.792, 0.874), (0.723, 0.855)),
    "ldp_fl": ((0.756, 0.847), (0.719, 0.840)),
    "fedprox": ((0.826, 0.896), (0.743, 0.852)),
    "delm_basic": ((0.829, 0.871), (0.722, 0.832)),
    "delm_enhanced": ((0.912, 0.927), (0.842, 0.889)),
}
CIFAR_ROUNDS = {"ldp_fl": 150, "fedprox": 300}  # others as on MNIST


def trials(quick: bool) -> tuple[Trial, ...]:
    """`fm` first, then the text's rows."""
    rows = []
    for classes in (1, 2):
        scene = _scene(quick, "mnist", classes)
        enhanced = CLAIMED["delm_enhanced"][0][classes - 1]
        for kind, parts in (("fm", scene.fm()), ("gabor_fm", scene.gabor_fm())):
            name = f"{kind}_{classes}_class"
            label = f"{OURS[kind]} (in place of DELM), {classes} class"
            job = scene.job(name, parts)
            rows.append(Trial(name, label, job, (Point(enhanced),), "ε = 1, as DELM"))
    sources = ("mnist",) if quick else ("mnist", "cifar10")
    for source, column in zip(sources, (0, 1), strict=False):
        for preset, figures in CLAIMED.items():
            for classes, figure in zip((1, 2), figures[column], strict=True):
                rows.append(_row(_scene(quick, source, classes), preset, classes, figure))
            if (source, preset) == ("mnist", "ldp_fl"):
                rows += [_a_round(quick, 1 + n, each) for n, each in enumerate(figures[column])]
    return tuple(rows)


def _scene(quick: bool, source: str, classes: int) -> Scene:
    return Scene(quick, source, {"kind": "n_class", "classes_per_device": classes})


def _row(scene: Scene, preset: str, classes: int, figure: float) -> Trial:
    own: dict[str, Any] = {}
    if preset == "delm_enhanced":
        own["aggregation"] = scene.chosen(50)
    if scene.source == "cifar10" and preset in CIFAR_ROUNDS:
        own["train"] = {"rounds": CIFAR_ROUNDS[preset]}
    on = "" if scene.source == "mnist" else f"_{scene.source}"
    name = f"{preset}_{classes}_class{on}"
    label = f"{preset}, {classes} class" + on.replace("_", ", ")
    claimed = "none" if preset.startswith("fed") else "ε = 1"
    return Trial(
        name, label, scene.job(name, scene.system(preset, **own)), (Point(figure),), claimed
    )


def _a_round(quick: bool, classes: int, figure: float) -> Trial:
    scene, name = _scene(quick, "mnist", classes), f"ldp_fl_a_round_{classes}_class"
    job = scene.job(name, scene.ldp_fl_a_round())
    return Trial(name, f"ldp_fl, ε = 100 in all, {classes} class", job, (Point(figure),), "ε = 1")


EXPERIMENT = Experiment(
    title="non-IID: each device holds records of one class, or of two",
    source="Cao et al. 2023 (DELM), table 3",
    figure="accuracy",
    trials=trials,
    remark="Sums over records do not care who holds them, so the dealing costs `fm` nothing. "
    "The DELM rows run as the text describes them, with its noise Δ = d + d²/4.",
)
