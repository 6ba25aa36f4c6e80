"""What DELM's experiments share: 100 devices, its data sets, its systems, and `fm` beside them.

The text's systems are presets. It trains a perceptron on digits and AlexNet on pictures; its own
scheme runs as `fm_paper`, a perceptron, on both. `fm` learns on public features with the parameters
of configs/jobs/mnist_fm_local.yaml, mnist_fm_local_eps01.yaml and mnist_fm_nofeatures.yaml, which
were chosen by validation within the training images on an IID dealing; nothing is tuned here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
class Scene:
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
