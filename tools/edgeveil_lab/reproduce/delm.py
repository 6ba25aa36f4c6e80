"""DELM (Cao et al. 2023): figures 2 to 4, tables 3 and 4, and low-quality MNIST.

The text's systems are presets. It trains a perceptron on digits and AlexNet on pictures; its own
scheme runs as `fm_paper`, a perceptron, on both. `fm` learns on public features with the parameters
of configs/jobs/mnist_fm_local.yaml, mnist_fm_local_eps01.yaml and mnist_fm_nofeatures.yaml, which
were chosen by validation within the training images on an IID dealing; nothing is tuned here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edgeveil_lab.reproduce.experiment import Experiment, Point, Trial

DEVICES, QUICK_DEVICES = 100, 20
DATA: dict[str, dict[str, Any]] = {
    "digits": {"input_shape": [64], "classes": 10, "nominal_records": 64},
    "mnist": {"input_shape": [28, 28], "classes": 10, "nominal_records": 600},
    "emnist": {"input_shape": [28, 28], "classes": 47, "nominal_records": 1128},
    "cifar10": {"input_shape": [3, 32, 32], "classes": 10, "nominal_records": 500},
    "cifar100": {"input_shape": [3, 32, 32], "classes": 100, "nominal_records": 500},
}
ALEXNET = {"name": "alexnet", "input_scale": 255}
_TRAINED = {
    "method": "fm",
    "intercept": False,  # classes alike
    "rounds": 25,
    "radius": 0.5,
    "ridge": 0.2,
    "curvature": 0.25,
}
_UNCENTRED = {"centre": False, "shares": {"quadratic": 0.1}}
_BACKBONE = {"name": "onnx", "file": "digits"}
FM: dict[float, dict[str, Any]] = {  # by ε
    1.0: {
        "features": [{**_BACKBONE, "weight": 0.5}, {"name": "gabor", "weight": 0.5}],
        "train": {**_TRAINED, **_UNCENTRED, "clip": 1.0, "average_from": 0.5},
    },
    0.1: {
        "features": [_BACKBONE],
        "train": {**_TRAINED, **_UNCENTRED, "clip": 0.4, "average_from": 0.7},
    },
}
GABOR_FM: dict[str, Any] = {  # ε = 1, nothing pretrained
    "features": [{"name": "gabor"}],
    "train": {
        **_TRAINED,
        "clip": 0.7,
        "average_from": 0.7,
        "shares": {"centre": 0.02, "quadratic": 0.2},
    },
}
QUICK_FM: dict[str, Any] = {
    "features": [{"name": "identity", "input_scale": 16, "shift": -0.3}],
    "train": {"method": "fm", "rounds": 5},
    "privacy": {"epsilon": 8.0, "delta": 1.0e-5},
}
OURS = {"fm": "fm", "gabor_fm": "fm, nothing pretrained"}
LDP_FL_EPSILON = 100.0  # 1 for each of the preset's rounds
METHODS = ("fm", "fm_paper", "sgd", "fedprox")


@dataclass(frozen=True)
class DelmWorkload:
    """Whose data, and how it is dealt. A quick scene deals digits to 20 devices, for 10 rounds."""

    quick: bool
    source: str = "mnist"
    partition: Mapping[str, Any] = field(default_factory=lambda: {"kind": "iid"})

    def fm(self, epsilon: float = 1.0) -> dict[str, Any]:
        """The proven method, on the public encoder of digits."""
        return self._proven(FM[epsilon], epsilon)

    def gabor_fm(self) -> dict[str, Any]:
        """The same at ε = 1 on features of which nothing was trained."""
        return self._proven(GABOR_FM, 1.0)

    def _proven(self, parts: dict[str, Any], epsilon: float) -> dict[str, Any]:
        if self.quick:
            return QUICK_FM
        return {**parts, "privacy": {"epsilon": epsilon, "delta": 1.0e-5}}

    def system(self, preset: str, epsilon: float = 1.0, **own: Any) -> dict[str, Any]:
        """One of the text's systems; `own` keys of the job stand in place of the preset's."""
        parts: dict[str, Any] = {
            "preset": preset,
            "privacy": {"epsilon": epsilon, "accept_unproven": True},
        }
        if not preset.startswith("delm"):
            parts["model"] = {"input_scale": 16 if self.quick else 255}
            if self.source.startswith("cifar") and not self.quick:
                parts |= {"model": ALEXNET, "train": {"learning_rate": 0.02}}
        for key, value in own.items():
            both = isinstance(value, dict) and isinstance(parts.get(key), dict)
            parts[key] = {**parts[key], **value} if both else value
        if self.quick:
            parts["train"] = {**parts.get("train", {}), "rounds": 10}
        return parts

    def ldp_fl_a_round(self) -> dict[str, Any]:
        """LDP-FL with ε = 1 in each of the text's rounds, as if a round forgot the one before."""
        return self.system("ldp_fl", epsilon=LDP_FL_EPSILON)

    def chosen(self, k: int, **own: Any) -> dict[str, Any]:
        """An `aggregation` block of k of 100 devices, in proportion where there are fewer."""
        return {"k": k * QUICK_DEVICES // DEVICES if self.quick else k, **own}

    def trial(
        self,
        name: str,
        label: str,
        parts: Mapping[str, Any],
        claimed_privacy: str,
        *points: Point,
    ) -> Trial:
        """A row of the table: `parts` of a job on these data, and the figures of the text."""
        return Trial(name, label, self.job(name, parts), points or (Point(),), claimed_privacy)

    def job(self, name: str, parts: Mapping[str, Any]) -> dict[str, Any]:
        """The job with this scene's data and devices."""
        source, devices = self.source, DEVICES
        if self.quick:
            source, devices = "digits", QUICK_DEVICES
        epsilon = parts["privacy"]["epsilon"]
        wide = {"max_epsilon_per_job": epsilon, "lifetime_epsilon": epsilon}
        return {
            "job": name,
            "data": {"source": source, **DATA[source], "evaluation_share": 0},
            **parts,
            "selection": {"min_devices": devices},
            "round": {"deadline_s": 600, "quorum": 1.0},
            "local_run": {
                "devices": devices,
                "partition": dict(self.partition),
                "policy": {
                    "accept_unproven": True,
                    "accept_unprotected": True,
                    "allowed_methods": list(METHODS),
                    **(wide if epsilon > 10 else {}),
                },
            },
        }


def low_quality(share: float) -> dict[str, Any]:
    """The text's dealing where this share of the users hold this share of bad records."""
    return {"kind": "iid", "lq_user": share, "lq_data": share}


# --- figure 2: IID MNIST, ε = 1, p = 0.5, and other PCAs in place of its own ---


def fig2_trials(quick: bool) -> tuple[Trial, ...]:
    """`fm`, then the text's five curves, of which it prints the figure at convergence.

    LDP-FL twice: with its ε for all rounds together, as elsewhere here, and for each of them.
    """
    scene = DelmWorkload(quick)
    rows: tuple[tuple[str, str, dict[str, Any], float | None, str], ...] = (
        ("fm", "fm (in place of DELM)", scene.fm(), None, "not in the text"),
        ("fedavg", "FedAvg", scene.system("fedavg"), 0.973, "none"),
        ("delm_basic", "DELM, LDP-FPCA", scene.system("delm_basic"), 0.962, "ε = 1"),
        ("ldp_fl", "LDP-FL", scene.system("ldp_fl"), 0.927, "ε = 1"),
        ("ldp_fl_a_round", "LDP-FL, ε = 100 in all", scene.ldp_fl_a_round(), 0.927, "ε = 1"),
        (
            "delm_ldp_pca",
            "DELM, LDP-PCA",
            _other_pca(scene, "ldp_pca", share=1 / 3),
            0.911,
            "ε = 1",
        ),
        ("delm_local_pca", "DELM, local PCA", _other_pca(scene, "local_pca"), 0.871, "ε = 1"),
    )
    return tuple(
        scene.trial(name, label, parts, claimed, Point(figure))
        for name, label, parts, figure, claimed in rows
    )


def _other_pca(scene: DelmWorkload, pca: str, **own: Any) -> dict[str, Any]:
    features = [{"name": "identity"}, {"name": pca, "keep": 0.5, **own}]
    return scene.system("delm_basic", features=features)


FIG2 = Experiment(
    title="accuracy over the rounds, IID MNIST, ε = 1",
    source="Cao et al. 2023 (DELM), figure 2",
    figure="accuracy",
    trials=fig2_trials,
    picture="rounds",
    x_log=True,
    remark="The text prints the figures at convergence, and says that before round 100 LDP-FL is "
    "ahead of DELM. Its noise Δ = d + d²/4 on the sums of 600 records leaves nothing to learn: at "
    "d = 392 and its share of ε it is about 58,000 on each coefficient.",
)


# --- figure 3: accuracy by ε, by the kept share p of dimensions, by the split of ε ---
# Figure 3(d), p = 0.8, names no data set. Its 0.886 at ε = 1 is below figure 3(a)'s 0.981 on MNIST
# with the same p, though it is said to be the best split; its 0.827 at ε = 0.1 and 1:2 is the
# figure of 3(c) on CIFAR-10, not 0.913 of 3(b). So it fits CIFAR-10. Rows print it for both data
# sets.

FIG3_DRAWN: dict[
    str, tuple[str, float, float, dict[float, tuple[float | None, ...]]]
] = {  # figure, data set, ε: LDP-FL, then DELM by p: its figure, and that of 3(d)
    "3(a)": ("mnist", 1.0, 0.927, {0.8: (0.981, None), 0.5: (0.962,)}),
    "3(b)": ("mnist", 0.1, 0.826, {0.8: (0.913, 0.827), 0.5: (0.922,)}),
    "3(c)": ("cifar10", 0.1, 0.786, {0.8: (0.827, 0.827), 0.5: (0.836,)}),
}
FIG3_SPLITS = {(1.0, 10): 0.886, (1.0, 1): None, (0.1, 10): None, (0.1, 1): None}  # (ε, ε₂ : ε₁)


def fig3_trials(quick: bool) -> tuple[Trial, ...]:
    """3(a) to 3(c) with `fm` beside them, then the other splits of 3(d) on both data sets."""
    rows = []
    for figure, (source, epsilon, ldp_fl, by_share) in FIG3_DRAWN.items():
        scene = DelmWorkload(quick, source)
        if quick and source != "mnist":
            continue  # it would be the digits once more
        if source == "mnist":
            rows.append(_fig3_fm(scene, epsilon, figure, by_share[0.8][0]))
        name, label = f"ldp_fl_{_fig3_tag(source, epsilon)}", f"{figure} LDP-FL, ε = {epsilon:g}"
        parts = scene.system("ldp_fl", epsilon)
        rows.append(scene.trial(name, label, parts, f"ε = {epsilon:g}", Point(ldp_fl)))
        rows += [
            _fig3_delm(scene, epsilon, keep, 2, figure, claimed)
            for keep, claimed in by_share.items()
        ]
    for source in ("mnist",) if quick else ("mnist", "cifar10"):
        for (epsilon, ratio), claimed in FIG3_SPLITS.items():
            figure = f"3(d) {source}"
            rows.append(
                _fig3_delm(DelmWorkload(quick, source), epsilon, 0.8, ratio, figure, (claimed,))
            )
    return tuple(rows)


def _fig3_fm(scene: DelmWorkload, epsilon: float, figure: str, claimed: float | None) -> Trial:
    name = f"fm_{_fig3_tag(scene.source, epsilon)}"
    label = f"{figure} fm (in place of DELM), ε = {epsilon:g}"
    return scene.trial(name, label, scene.fm(epsilon), f"ε = {epsilon:g}, as DELM", Point(claimed))


def _fig3_delm(
    scene: DelmWorkload,
    epsilon: float,
    keep: float,
    ratio: int,
    figure: str,
    claimed: tuple[float | None, ...],
) -> Trial:
    name = f"delm_{_fig3_tag(scene.source, epsilon)}_p{10 * keep:.0f}_1to{ratio}"
    label = f"{figure} DELM, ε = {epsilon:g}, p = {keep:g}, ε₁:ε₂ = 1:{ratio}"
    pca = {"name": "ldp_fpca", "keep": keep, "share": 1 / (1 + ratio), "noise": "wishart"}
    parts = scene.system("delm_basic", epsilon, features=[{"name": "identity"}, pca])
    points = [Point(one, label="as drawn in 3(d)" if n else "") for n, one in enumerate(claimed)]
    return scene.trial(name, label, parts, f"ε = {epsilon:g}", *points)


def _fig3_tag(source: str, epsilon: float) -> str:
    return f"{source}_eps{f'{epsilon:g}'.replace('.', '')}"


FIG3 = Experiment(
    title="accuracy by ε, by the share p of kept dimensions, by the split ε₁:ε₂",
    source="Cao et al. 2023 (DELM), figure 3",
    figure="accuracy",
    trials=fig3_trials,
    remark="Figure 3(d) names no data set and contradicts 3(a): with p = 0.8 and ε = 1 the best of "
    "all splits has 0.886, where 3(a) has 0.981 at 1:2 on MNIST. At ε = 0.1 and 1:2 its 0.827 is "
    "that of 3(c), CIFAR-10, where 3(b) has 0.913 on MNIST. So 3(d) fits CIFAR-10; both are "
    "printed. Of the other splits the text prints no figure.",
)


# --- figure 4: trusted users, the k least divergent uploads or a draw ---
# The text prints 0.954 (k = 50) and 0.922 (k = 20) without the draw, and by how much less others
# have: the draw 3.3 % and 2.9 %, LDP-FL 22.9 %, which elsewhere in it are differences. 50 users
# hold good data, so `lq_user` is 0.5; `lq_data` is taken to be 0.5, its other setting.

FIG4_CLAIMED = {
    ("delm_top_k", 50): 0.954,
    ("delm_top_k", 20): 0.922,
    ("delm_enhanced", 50): 0.921,
    ("delm_enhanced", 20): 0.893,
}


def fig4_trials(quick: bool) -> tuple[Trial, ...]:
    """Both schemes with both k, and LDP-FL; `fm` on these data stands in delm-low-quality."""
    scene = DelmWorkload(quick, partition=low_quality(0.5))
    rows = []
    for (preset, k), figure in FIG4_CLAIMED.items():
        parts, label = scene.system(preset, aggregation=scene.chosen(k)), f"{preset}, k = {k}"
        rows.append(scene.trial(f"{preset}_{k}", label, parts, "ε = 1", Point(figure)))
    parts = scene.system("ldp_fl")
    return (*rows, scene.trial("ldp_fl", "LDP-FL", parts, "ε = 1", Point(0.725)))


FIG4 = Experiment(
    title="trusted users with low-quality MNIST: the least divergent uploads, or a draw",
    source="Cao et al. 2023 (DELM), figure 4",
    figure="accuracy",
    trials=fig4_trials,
    picture="rounds",
    x_log=True,
    remark="The text prints the figures of `delm_top_k`; those of `delm_enhanced` (3.3 and 2.9 "
    "points less) and of LDP-FL (22.9 less) follow from its words. Half of the users hold bad "
    "records, half of theirs.",
)


# --- low-quality MNIST: `min_divergence` against `fedavg` ---
# The text compares them on EMNIST and CIFAR-100 (table 4), and on MNIST with its own noise only
# (figure 4, whose figures stand here in the rows of 0.5). Without noise the rule itself can be
# seen.

QUALITY_SHARES = (0.3, 0.5)
QUALITY_ROUNDS = 10
QUALITY_RULES = {
    "fedavg": "fedavg",
    "top_k": "min_divergence, the least 50",
    "drawn": "min_divergence, 50 drawn",
}
QUALITY_OF_TEXT = {"delm_top_k": 0.954, "delm_enhanced": 0.921}  # figure 4, at 0.5


def quality_trials(quick: bool) -> tuple[Trial, ...]:
    """For each share of bad records: without noise, with the text's, with the proven method."""
    return tuple(
        row
        for share in QUALITY_SHARES
        for row in _quality_rows(DelmWorkload(quick, "mnist", low_quality(share)))
    )


def _quality_rows(scene: DelmWorkload) -> list[Trial]:
    share = scene.partition["lq_user"]
    tag = f"{100 * share:.0f}"
    rows = []
    for rule, words in QUALITY_RULES.items():
        label = f"lq {share}: no noise, {words}"
        rows.append(scene.trial(f"sgd_{rule}_{tag}", label, _noiseless(scene, rule), "none"))
    presets = ("delm_basic", "delm_top_k", "delm_enhanced")
    for preset, words in zip(presets, QUALITY_RULES.values(), strict=True):
        own: dict[str, Any] = {"train": {"rounds": QUALITY_ROUNDS}}
        if preset != "delm_basic":
            own["aggregation"] = scene.chosen(50)
        point = Point(QUALITY_OF_TEXT.get(preset) if share == 0.5 else None)
        label, parts = f"lq {share}: fm_paper, {words}", scene.system(preset, **own)
        rows.append(scene.trial(f"{preset}_{tag}", label, parts, "ε = 1", point))
    for kind, parts in (("fm", scene.fm()), ("gabor_fm", scene.gabor_fm())):
        label = f"lq {share}: {OURS[kind]}, fedavg"
        rows.append(scene.trial(f"{kind}_{tag}", label, parts, "not in the text"))
    return rows


def _noiseless(scene: DelmWorkload, rule: str) -> dict[str, Any]:
    own: dict[str, Any] = {"train": {"rounds": QUALITY_ROUNDS}}
    if rule != "fedavg":
        sampling = {"top_k": "top_k", "drawn": "exponential"}[rule]
        own["aggregation"] = scene.chosen(
            50, name="min_divergence", sampling=sampling, epsilon_3=2.0
        )
    return scene.system("fedavg", **own)


LOW_QUALITY = Experiment(
    title="low-quality MNIST: min_divergence against fedavg",
    source="Cao et al. 2023 (DELM), section 6.2.2",
    figure="accuracy",
    trials=quality_trials,
    remark="lq 0.3: 30 of 100 devices, of whose records 30 % have another class and noise; lq 0.5 "
    f"likewise. {QUALITY_ROUNDS} rounds, `fm` 25. Each run's report.html draws who holds what. "
    "`min_divergence` is undefined on the sums that `fm` sends. The two figures are of figure 4.",
)


# --- table 3: each device holds one class, or two, ε = 1, k = 50 ---

TABLE3_CLAIMED = {  # MNIST with 1 class and 2 classes, CIFAR-10 with 1 class and 2 classes
    "fedavg": ((0.792, 0.874), (0.723, 0.855)),
    "ldp_fl": ((0.756, 0.847), (0.719, 0.840)),
    "fedprox": ((0.826, 0.896), (0.743, 0.852)),
    "delm_basic": ((0.829, 0.871), (0.722, 0.832)),
    "delm_enhanced": ((0.912, 0.927), (0.842, 0.889)),
}
CIFAR_ROUNDS = {"ldp_fl": 150, "fedprox": 300}  # others as on MNIST


def table3_trials(quick: bool) -> tuple[Trial, ...]:
    """`fm` first, then the text's rows."""
    rows = []
    for classes in (1, 2):
        scene = _class_workload(quick, "mnist", classes)
        enhanced = TABLE3_CLAIMED["delm_enhanced"][0][classes - 1]
        for kind, parts in (("fm", scene.fm()), ("gabor_fm", scene.gabor_fm())):
            name = f"{kind}_{classes}_class"
            label = f"{OURS[kind]} (in place of DELM), {classes} class"
            rows.append(scene.trial(name, label, parts, "ε = 1, as DELM", Point(enhanced)))
    sources = ("mnist",) if quick else ("mnist", "cifar10")
    for source, column in zip(sources, (0, 1), strict=False):
        for preset, figures in TABLE3_CLAIMED.items():
            for classes, figure in zip((1, 2), figures[column], strict=True):
                rows.append(
                    _class_row(_class_workload(quick, source, classes), preset, classes, figure)
                )
            if (source, preset) == ("mnist", "ldp_fl"):
                rows += [_a_round(quick, 1 + n, each) for n, each in enumerate(figures[column])]
    return tuple(rows)


def _class_workload(quick: bool, source: str, classes: int) -> DelmWorkload:
    return DelmWorkload(quick, source, {"kind": "n_class", "classes_per_device": classes})


def _class_row(scene: DelmWorkload, preset: str, classes: int, figure: float) -> Trial:
    own: dict[str, Any] = {}
    if preset == "delm_enhanced":
        own["aggregation"] = scene.chosen(50)
    if scene.source == "cifar10" and preset in CIFAR_ROUNDS:
        own["train"] = {"rounds": CIFAR_ROUNDS[preset]}
    on = "" if scene.source == "mnist" else f"_{scene.source}"
    name = f"{preset}_{classes}_class{on}"
    label = f"{preset}, {classes} class" + on.replace("_", ", ")
    claimed = "none" if preset.startswith("fed") else "ε = 1"
    return scene.trial(name, label, scene.system(preset, **own), claimed, Point(figure))


def _a_round(quick: bool, classes: int, figure: float) -> Trial:
    scene, name = _class_workload(quick, "mnist", classes), f"ldp_fl_a_round_{classes}_class"
    label = f"ldp_fl, ε = 100 in all, {classes} class"
    return scene.trial(name, label, scene.ldp_fl_a_round(), "ε = 1", Point(figure))


TABLE3 = Experiment(
    title="non-IID: each device holds records of one class, or of two",
    source="Cao et al. 2023 (DELM), table 3",
    figure="accuracy",
    trials=table3_trials,
    remark="Sums over records do not care who holds them, so the dealing costs `fm` nothing. "
    "The DELM rows run as the text describes them, with its noise Δ = d + d²/4.",
)


# --- table 4: low-quality data on EMNIST Balanced (47 classes) and CIFAR-100 ---

LEVELS = {"high": 0.5, "low": 0.3}
TABLE4_CLAIMED = {  # EMNIST with many bad records and with few, CIFAR-100 with many and with few
    "fedavg": ((0.670, 0.716), (0.411, 0.458)),
    "ldp_fl": ((0.603, 0.657), (0.378, 0.419)),
    "secprobe": ((0.714, 0.756), (0.453, 0.497)),
    "delm_basic": ((0.658, 0.702), (0.402, 0.424)),
    "delm_enhanced": ((0.765, 0.782), (0.505, 0.527)),
}


def table4_trials(quick: bool) -> tuple[Trial, ...]:
    """`fm` on EMNIST first, then the text's rows."""
    rows = []
    for level, figure in zip(LEVELS, TABLE4_CLAIMED["delm_enhanced"][0], strict=True):
        scene = _level_workload(quick, "emnist", level)
        name, label = f"fm_{level}", f"fm (in place of DELM), {level}"
        rows.append(scene.trial(name, label, scene.fm(), "ε = 1, as DELM", Point(figure)))
    sources = ("emnist",) if quick else ("emnist", "cifar100")
    for source, column in zip(sources, (0, 1), strict=False):
        for preset, figures in TABLE4_CLAIMED.items():
            for level, figure in zip(LEVELS, figures[column], strict=True):
                rows.append(
                    _level_row(_level_workload(quick, source, level), preset, level, figure)
                )
    return tuple(rows)


def _level_workload(quick: bool, source: str, level: str) -> DelmWorkload:
    return DelmWorkload(quick, source, low_quality(LEVELS[level]))


def _level_row(scene: DelmWorkload, preset: str, level: str, figure: float) -> Trial:
    own: dict[str, Any] = {}
    if preset in ("delm_enhanced", "secprobe"):
        own["aggregation"] = scene.chosen(50)
    if scene.source == "cifar100" and preset == "ldp_fl":
        own["train"] = {"rounds": 150}
    on = "" if scene.source == "emnist" else f"_{scene.source}"
    name = f"{preset}_{level}{on}"
    label = f"{preset}, {level}" + on.replace("_", ", ")
    claimed = "none" if preset == "fedavg" else "ε = 1"
    return scene.trial(name, label, scene.system(preset, **own), claimed, Point(figure))


TABLE4 = Experiment(
    title="low-quality data: half of the users hold bad records (high), or 30 % (low)",
    source="Cao et al. 2023 (DELM), table 4",
    figure="accuracy",
    trials=table4_trials,
    remark="EMNIST is its split Balanced, 47 classes. `high`: lq_user = lq_data = 0.5; `low`: 0.3.",
)
