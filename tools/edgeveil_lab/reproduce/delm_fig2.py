"""DELM's figure 2: IID MNIST, ε = 1, p = 0.5, and other PCAs in place of its own."""

from __future__ import annotations

from typing import Any

from edgeveil_lab.reproduce.base import Experiment, Point, Trial
from edgeveil_lab.reproduce.delm import Scene


def trials(quick: bool) -> tuple[Trial, ...]:
    """`fm`, then the text's five curves, of which it prints the figure at convergence.

    LDP-FL twice: with its ε for all rounds together, as elsewhere here, and for each of them.
    """
    scene = Scene(quick)
    rows: tuple[tuple[str, str, dict[str, Any], float | None, str], ...] = (
        ("fm", "fm (in place of DELM)", scene.fm(), None, "not in the text"),
        ("fedavg", "FedAvg", scene.system("fedavg"), 0.973, "none"),
        ("delm_basic", "DELM, LDP-FPCA", scene.system("delm_basic"), 0.962, "ε = 1"),
        ("ldp_fl", "LDP-FL", scene.system("ldp_fl"), 0.927, "ε = 1"),
        ("ldp_fl_a_round", "LDP-FL, ε = 100 in all", scene.ldp_fl_a_round(), 0.927, "ε = 1"),
        ("delm_ldp_pca", "DELM, LDP-PCA", _delm(scene, "ldp_pca", share=1 / 3), 0.911, "ε = 1"),
        ("delm_local_pca", "DELM, local PCA", _delm(scene, "local_pca"), 0.871, "ε = 1"),
    )
    return tuple(
        Trial(name, label, scene.job(name, parts), (Point(figure),), claimed)
        for name, label, parts, figure, claimed in rows
    )


def _delm(scene: Scene, pca: str, **own: Any) -> dict[str, Any]:
    features = [{"name": "identity"}, {"name": pca, "keep": 0.5, **own}]
    return scene.system("delm_basic", features=features)


EXPERIMENT = Experiment(
    title="accuracy over the rounds, IID MNIST, ε = 1",
    source="Cao et al. 2023 (DELM), figure 2",
    figure="accuracy",
    trials=trials,
    picture="rounds",
    x_log=True,
    remark="The text prints the figures at convergence, and says that before round 100 LDP-FL is "
    "ahead of DELM. Its noise Δ = d + d²/4 on the sums of 600 records leaves nothing to learn: at "
    "d = 392 and its share of ε it is about 58,000 on each coefficient.",
)
