"""Noised inferences still tell how training goes: scores with and without the noise.

The text shows two curves and no number: the silhouette score of the devices' softmax results over
the rounds, with ε = 230260 and without noise, rises as the loss falls. Here the figure is the
rank correlation (Spearman) of score and test loss over the rounds; ε = 20 is the default of
configs/jobs/quickstart.yaml. The text's ε is for sensitivity 1, so its guarantee is 2ε.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeveil_lab.reproduce.experiment import Experiment, Point, Result, Trial, scores

DEVICES = 50


def trials(quick: bool) -> tuple[Trial, ...]:
    """Without noise, with the text's, with the default's."""
    laplace = {"laplace_eval": {"laplace_eval_eps": 230260.0}}
    return (
        Trial(
            "not_encrypt",
            "NOT_ENCRYPT",
            _job("not_encrypt", {"encrypt": {"privacy_eval_type": "NOT_ENCRYPT"}}, quick),
            (Point(measure=agreement),),
            "none",
        ),
        Trial(
            "laplace",
            "LAPLACE, ε = 230260",
            _job("laplace", {"encrypt": laplace}, quick),
            (Point(measure=agreement),),
            "ε = 230260 a round",
        ),
        Trial(
            "laplace_20",
            "LAPLACE, ε = 20, sensitivity 2",
            _job(
                "laplace_20",
                {
                    "encrypt": {
                        "laplace_eval": {"laplace_eval_eps": 20.0},
                        "laplace_eval_sensitivity": 2,
                    }
                },
                quick,
            ),
            (Point(measure=agreement),),
            "not in the text",
        ),
    )


def agreement(result: Result) -> float | None:
    """Spearman's correlation of score and loss; None with fewer than three scores."""
    found = scores(result)
    if len(found) < 3:
        return None
    from scipy.stats import spearmanr

    _, score, loss = np.transpose(found)
    value = float(spearmanr(score, loss).statistic)
    return value if np.isfinite(value) else None


def _job(name: str, parts: dict[str, Any], quick: bool) -> dict[str, Any]:
    devices = 20 if quick else DEVICES
    return {
        "job": name,
        "preset": "laplace_inference",
        "data": {
            "source": "digits",
            "classes": 10,
            "input_shape": [64],
            "nominal_records": 64 if quick else 28,
            # A device without a record for inference uploads equal shares, as if it knew nothing.
            "evaluation_share": 0.3,
        },
        "features": [{"name": "identity", "input_scale": 16, "shift": -0.3}],
        "train": {"rounds": 5 if quick else 15},
        "privacy": {"accept_unproven": True},
        **parts,
        "selection": {"min_devices": devices},
        "local_run": {
            "devices": devices,
            "partition": {"kind": "n_class", "classes_per_device": 1},
            "policy": {
                "max_inference_epsilon": 1.0e8,
                "accept_unprotected": True,
                "accept_unproven": True,
            },
        },
    }


EXPERIMENT = Experiment(
    title="the score of noised inferences against the loss, over the rounds",
    source="Laplace-protected inference, its last figure",
    figure="rank correlation of score and loss",
    trials=trials,
    picture="scores",
    guarantee="inference",
    remark="The text prints no number: it says that the score rises as the loss falls, with the "
    "noise as without. It trains LeNet without noise on pictures that are not published with it; "
    "here `fm` learns digits at ε = 8 on 50 devices of one digit each, nine with up to three "
    "records of a second.",
)
