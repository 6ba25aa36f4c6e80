"""DELM's figure 3: accuracy by ε, by the kept share p of dimensions, and by the split of ε.

Figure 3(d), p = 0.8, names no data set. Its 0.886 at ε = 1 is below figure 3(a)'s 0.981 on MNIST
with the same p, though it is said to be the best split; its 0.827 at ε = 0.1 and 1:2 is the figure
of 3(c) on CIFAR-10, not 0.913 of 3(b). So it fits CIFAR-10. Rows print it for both data sets.
"""

from __future__ import annotations

from edgeveil_lab.reproduce.base import Experiment, Point, Trial
from edgeveil_lab.reproduce.delm import Scene

SPLIT = "3(d), ε₁:ε₂ = 1:2"
DRAWN: dict[
    str, tuple[str, float, float, dict[float, tuple[float | None, ...]]]
] = {  # figure, data set, ε: LDP-FL, then DELM by p: its figure, and that of 3(d)
    "3(a)": ("mnist", 1.0, 0.927, {0.8: (0.981, None), 0.5: (0.962,)}),
    "3(b)": ("mnist", 0.1, 0.826, {0.8: (0.913, 0.827), 0.5: (0.922,)}),
    "3(c)": ("cifar10", 0.1, 0.786, {0.8: (0.827, 0.827), 0.5: (0.836,)}),
}
SPLITS = {(1.0, 10): 0.886, (1.0, 1): None, (0.1, 10): None, (0.1, 1): None}  # (ε, ε₂ : ε₁)


def trials(quick: bool) -> tuple[Trial, ...]:
    """3(a) to 3(c) with `fm` beside them, then the other splits of 3(d) on both data sets."""
    rows = []
    for figure, (source, epsilon, ldp_fl, by_share) in DRAWN.items():
        scene = Scene(quick, source)
        if quick and source != "mnist":
            continue  # it would be the digits once more
        if source == "mnist":
            rows.append(_fm(scene, epsilon, figure, by_share[0.8][0]))
        name, label = f"ldp_fl_{_tag(source, epsilon)}", f"{figure} LDP-FL, ε = {epsilon:g}"
        job = scene.job(name, scene.system("ldp_fl", epsilon))
        rows.append(Trial(name, label, job, (Point(ldp_fl),), f"ε = {epsilon:g}"))
        rows += [
            _delm(scene, epsilon, keep, 2, figure, claimed) for keep, claimed in by_share.items()
        ]
    for source in ("mnist",) if quick else ("mnist", "cifar10"):
        for (epsilon, ratio), claimed in SPLITS.items():
            figure = f"3(d) {source}"
            rows.append(_delm(Scene(quick, source), epsilon, 0.8, ratio, figure, (claimed,)))
    return tuple(rows)


def _fm(scene: Scene, epsilon: float, figure: str, claimed: float | None) -> Trial:
    name = f"fm_{_tag(scene.source, epsilon)}"
    label = f"{figure} fm (in place of DELM), ε = {epsilon:g}"
    job = scene.job(name, scene.fm(epsilon))
    return Trial(name, label, job, (Point(claimed),), f"ε = {epsilon:g}, as DELM")


def _delm(
    scene: Scene,
    epsilon: float,
    keep: float,
    ratio: int,
    figure: str,
    claimed: tuple[float | None, ...],
) -> Trial:
    name = f"delm_{_tag(scene.source, epsilon)}_p{10 * keep:.0f}_1to{ratio}"
    label = f"{figure} DELM, ε = {epsilon:g}, p = {keep:g}, ε₁:ε₂ = 1:{ratio}"
    pca = {"name": "ldp_fpca", "keep": keep, "share": 1 / (1 + ratio), "noise": "wishart"}
    parts = scene.system("delm_basic", epsilon, features=[{"name": "identity"}, pca])
    points = [Point(one, label="as drawn in 3(d)" if n else "") for n, one in enumerate(claimed)]
    return Trial(name, label, scene.job(name, parts), tuple(points), f"ε = {epsilon:g}")


def _tag(source: str, epsilon: float) -> str:
    return f"{source}_eps{f'{epsilon:g}'.replace('.', '')}"


EXPERIMENT = Experiment(
    title="accuracy by ε, by the share p of kept dimensions, by the split ε₁:ε₂",
    source="Cao et al. 2023 (DELM), figure 3",
    figure="accuracy",
    trials=trials,
    remark="Figure 3(d) names no data set and contradicts 3(a): with p = 0.8 and ε = 1 the best of "
    "all splits has 0.886, where 3(a) has 0.981 at 1:2 on MNIST. At ε = 0.1 and 1:2 its 0.827 is "
    "that of 3(c), CIFAR-10, where 3(b) has 0.913 on MNIST. So 3(d) fits CIFAR-10; both are "
    "printed. Of the other splits the text prints no figure.",
)
