"""What a model's answers on labelled records come to, beside accuracy and loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.target import LABELS, TargetRange

MOST_CROSSED = 20  # classes of a confusion matrix that is still told: an event stays small
BINS = 10  # of confidence
_DIGITS = 6


def classification_figures(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64]
) -> Mapping[str, Any]:
    """Figures of `probabilities` (n, classes) for `labels` (n,); for JSON. Records whose label is
    none of the classes are left out; {} where none is left.

        balanced_accuracy  the mean recall of the classes that have records
        macro_f1           the mean F1 of the classes that have records or were predicted
        auc                the mean area under each class's ROC curve against the rest, of the
                           classes for which there are records of both; None where there are none
        per_class          [{class, precision, recall, f1, records}]; None where a figure would
                           divide by nothing
        confusion          records by true (row) and predicted (column) class, of at most
                           MOST_CROSSED classes, else None
        calibration        {error, bins: [{confidence, accuracy, records}]}: by the likeliest
                           class's probability, in BINS of equal width; `error` is the expected
                           calibration error (Naeini et al. 2015)
        unusable           records whose probabilities are not finite: wrong in every figure

    Each is as scikit-learn has it, zero where it divides by nothing.
    """
    classes = probabilities.shape[1]
    known = (labels >= 0) & (labels < classes)
    if not known.any():
        return {}
    probabilities, labels = probabilities[known], labels[known]
    sound = np.isfinite(probabilities).all(axis=1)
    predicted = np.where(sound, np.argmax(probabilities, axis=1), classes)
    crossed = np.bincount(labels * (classes + 1) + predicted, minlength=classes * (classes + 1))
    crossed = crossed.reshape(classes, classes + 1)
    records, foreseen = crossed.sum(axis=1), crossed[:, :classes].sum(axis=0)
    right = np.diagonal(crossed).astype(np.float64)
    recall, precision = _share(right, records), _share(right, foreseen)
    f1 = _share(2 * right, records + foreseen)
    there = records > 0
    return {
        "balanced_accuracy": _plain(recall[there].mean()),
        "macro_f1": _plain(f1[there | (foreseen > 0)].mean()),
        "auc": _area(probabilities, labels, sound),
        "per_class": [
            {
                "class": of,
                "precision": _plain(precision[of]) if foreseen[of] else None,
                "recall": _plain(recall[of]) if there[of] else None,
                "f1": _plain(f1[of]) if there[of] or foreseen[of] else None,
                "records": int(records[of]),
            }
            for of in range(classes)
        ],
        "confusion": crossed[:, :classes].tolist() if classes <= MOST_CROSSED else None,
        "calibration": _calibration(probabilities[sound], predicted[sound] == labels[sound]),
        "unusable": int(len(labels) - np.count_nonzero(sound)),
    }


def regression_figures(
    values: NDArray[np.floating], labels: NDArray[np.int64], target: TargetRange
) -> Mapping[str, Any]:
    """Figures of `values` (n,) for `labels` (n,) that stand for numbers of `target`; for JSON, in
    the target's own unit. Records without a label are left out; {} where none is left.

        mae       mean absolute error
        rmse      root of the mean squared error
        r2        the share of the labels' variance that is explained (scikit-learn's r2_score);
                  None where all are alike
        unusable  records whose value is not finite: counted as the range's width away
    """
    known = (labels >= 0) & (labels < LABELS)
    if not known.any():
        return {}
    wanted, values = target.values(labels[known]), values[known].astype(np.float64)
    sound = np.isfinite(values)
    away = np.where(sound, np.abs(np.where(sound, values, 0.0) - wanted), 2 * target.half)
    spread = float(np.square(wanted - wanted.mean()).sum())
    squared = float(np.square(away).sum())
    return {
        "mae": _figure(away.mean()),
        "rmse": _figure(math.sqrt(squared / len(away))),
        "r2": _plain(1 - squared / spread) if spread > 0 else None,
        "unusable": int(len(sound) - np.count_nonzero(sound)),
    }


def spread_of(labels: NDArray[np.int64], target: TargetRange) -> float | None:
    """RMSE of saying the mean of labels (n,) for each of them, in the target's unit: what a model
    must come below. None where no record has a label."""
    known = (labels >= 0) & (labels < LABELS)
    return _figure(target.values(labels[known]).std()) if known.any() else None


def leading(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """What leads a round's figures, by name: RMSE of a number, else accuracy."""
    figures = row.get("figures") or {}
    return ("RMSE", figures["rmse"]) if "rmse" in figures else ("accuracy", row.get("accuracy"))


def leading_stored(
    accuracy: float | None, loss: float | None, half: float | None
) -> tuple[str, float | None]:
    """The same of accuracy and loss alone, as `ModelScore` has them. `half` of a number's range:
    RMSE follows from the loss; None: labels are classes."""
    if half is None:
        return "accuracy", accuracy
    known = loss is not None and math.isfinite(loss)
    return "RMSE", half * math.sqrt(loss or 0.0) if known else None


def leading_text(name: str, value: float | None) -> str:
    """The value of `leading`: an accuracy to three places, an RMSE to as many digits."""
    if value is None:
        return "unknown"
    return f"{value:.4g}" if name == "RMSE" else f"{value:.3f}"


def _figure(value: float) -> float:
    """Of any size, to as many digits."""
    return float(f"{value:.{_DIGITS}g}")


def _area(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64], sound: NDArray[np.bool_]
) -> float | None:
    """By the rank sum (Mann and Whitney 1947), ties counted half; an unusable record is ranked
    below all others of its class, and above all others elsewhere."""
    of = labels[:, None] == np.arange(probabilities.shape[1])
    ranked = np.where(sound[:, None], probabilities.astype(np.float64), np.where(of, -1.0, 2.0))
    inside = of.sum(axis=0)
    outside = len(labels) - inside
    both = (inside > 0) & (outside > 0)
    if not both.any():
        return None
    ranks = np.stack([_ranks(column) for column in ranked[:, both].T], axis=1)
    sums = (ranks * of[:, both]).sum(axis=0)
    inside, outside = inside[both], outside[both]
    return _plain(((sums - inside * (inside + 1) / 2) / (inside * outside)).mean())


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """From 1, equal ones with the mean of theirs; as scipy.stats.rankdata, which takes a second to
    load."""
    ordered = np.sort(values)
    before, up_to = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return np.asarray((before + up_to + 1) / 2, np.float64)


def _calibration(probabilities: NDArray[np.floating], right: NDArray[np.bool_]) -> dict[str, Any]:
    confidence = probabilities.max(axis=1, initial=0.0).astype(np.float64)
    at = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    records = np.bincount(at, minlength=BINS)
    said = _share(np.bincount(at, weights=confidence, minlength=BINS), records)
    held = _share(np.bincount(at, weights=right.astype(np.float64), minlength=BINS), records)
    error = float((records * np.abs(said - held)).sum() / max(1, len(right)))
    return {
        "error": _plain(error),
        "bins": [
            {
                "confidence": _plain(said[bin_]),
                "accuracy": _plain(held[bin_]),
                "records": int(records[bin_]),
            }
            for bin_ in np.flatnonzero(records)
        ],
    }


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    found = np.zeros(len(part))
    np.divide(part, whole, out=found, where=whole > 0)
    return found


def _plain(value: float) -> float:
    return round(float(value), _DIGITS)
