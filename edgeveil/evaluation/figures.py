"""Figures of a model's outputs on labelled records, besides accuracy and loss."""

from __future__ import annotations

import math
import resource
import struct
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from edgeveil.data.anomaly import NORMAL, anomalous
from edgeveil.data.target import LABELS, TargetRange
from edgeveil.errors import OF_OTHERS_CODE, DataError
from edgeveil.own_process import run_apart

MOST_CROSSED = 20  # classes of a reported confusion matrix: events stay small
BINS = 10  # of confidence
_DIGITS = 6
GUESSING = "guessing"  # its key in stored scores
_GUESSED = ("largest_class_rate", "balanced_accuracy", "rmse_of_mean")
_WORSE = ", and the model is worse"
_UNEVEN = 1.2  # ratio of the largest class to an even share, from which classes are uneven
ACCURACY, RMSE, AUC = "accuracy", "RMSE", "AUC"  # leading figures of jobs
_LEADS = {RMSE: "rmse", AUC: "average_precision"}  # the figure that identifies each
NO_ORDER: Mapping[str, Any] = {"auc": None, "average_precision": None}  # without any label
METRIC = "test_metric"  # key of a job, and of its value, or why there is none, in figures
METRIC_S, METRIC_BYTES = 120.0, 4 << 30  # most of one call
SCORE_BINS = (-20.0, 20.0, 80)  # of log2 of a score: from, to, count


def classification_figures(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64]
) -> Mapping[str, Any]:
    """Return JSON figures of `probabilities` (n, classes) for `labels` (n,), as scikit-learn's.

    Records without a class are omitted; {} if none is left.

        largest_class_rate the share of the largest class
        balanced_accuracy  mean recall over classes with records
        macro_f1           mean F1 over classes with records or predictions
        auc                mean area under each class's ROC curve against the rest, or None
        per_class          [{class, precision, recall, f1, records}]
        confusion          by true (row) and predicted class, up to MOST_CROSSED classes
        calibration        {error, bins: [{confidence, accuracy, records}]} (Naeini et al. 2015)
        unusable           records with probabilities that are not finite: wrong in every figure
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
    return {
        **by_class(np.diagonal(crossed), records, foreseen),
        "auc": _area(probabilities, labels, sound),
        "confusion": crossed[:, :classes].tolist() if classes <= MOST_CROSSED else None,
        "calibration": _calibration(probabilities[sound], predicted[sound] == labels[sound]),
        "unusable": int(len(labels) - np.count_nonzero(sound)),
    }


def by_class(
    right: NDArray[Any], records: NDArray[Any], foreseen: NDArray[Any], least: float = 0.0
) -> dict[str, Any]:
    """Return figures per class (n,) and over classes; None if a divisor is at most `least`."""
    recall, precision = _share(right, records), _share(right, foreseen)
    f1 = _share(2 * right, records + foreseen)
    there, taken = records > least, foreseen > least
    either = there | taken

    def one(values: NDArray[np.float64], of: np.intp | int, there: bool) -> float | None:
        return to_places(values[of]) if there else None

    def mean(values: NDArray[np.float64], of: NDArray[np.bool_]) -> float | None:
        return to_places(values[of].mean()) if of.all() or (of.any() and not least) else None

    largest = records.max() / records.sum() if there.any() else 0.0
    exact = np.issubdtype(records.dtype, np.integer)
    return {
        **({"largest_class_rate": to_places(min(1.0, largest))} if there.any() else {}),
        "balanced_accuracy": mean(recall, there),
        "macro_f1": mean(f1, either),
        "per_class": [
            {
                "class": of,
                "precision": one(precision, of, taken[of]),
                "recall": one(recall, of, there[of]),
                "f1": one(f1, of, either[of]),
                "records": int(records[of]) if exact else to_places(records[of]),
            }
            for of in range(len(records))
        ],
    }


def regression_figures(
    values: NDArray[np.floating], labels: NDArray[np.int64], target: TargetRange
) -> Mapping[str, Any]:
    """Return JSON figures of `values` (n,) for numeric `labels` (n,), in the unit of `target`.

    {} without labels, otherwise

        mae, rmse, r2   r2 is None if all labels are equal
        rmse_of_mean    of the labels' own mean as the prediction
        unusable        records with a value that is not finite: error of the range's width
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
        "mae": to_digits(away.mean()),
        "rmse": to_digits(math.sqrt(squared / len(away))),
        "rmse_of_mean": to_digits(math.sqrt(spread / len(away))),
        "r2": to_places(1 - squared / spread) if spread > 0 else None,
        "unusable": int(len(sound) - np.count_nonzero(sound)),
    }


def anomaly_figures(
    scores: NDArray[np.floating], labels: NDArray[np.int64], *, alarms: bool
) -> Mapping[str, Any]:
    """Return JSON figures of `scores` (n,) for `labels` (n,), 0 normal and above it anomalous.

        auc, average_precision  None without records of both kinds
        normal, anomalous       counts of both kinds
        histogram               {from, to, normal, anomalous}: records by log2 of the score
        unusable                records with a score that is not finite: wrong in every figure

    {} without labels. With `alarms` a score above 1 is an alarm: adds `alarm_figures`."""
    known = (labels == NORMAL) | anomalous(labels)
    if not known.any():
        return {}
    scores, bad = scores[known].astype(np.float64), anomalous(labels[known])
    sound = np.isfinite(scores)
    ranked = np.where(sound, scores, np.where(bad, -np.inf, np.inf))
    area = _rank_area(ranked, bad)
    found: dict[str, Any] = {
        "auc": None if area is None else to_places(area),
        "average_precision": _average_precision(ranked, bad),
        "normal": int(np.count_nonzero(~bad)),
        "anomalous": int(np.count_nonzero(bad)),
        "histogram": _by_score(scores[sound], bad[sound]),
        "unusable": int(len(sound) - np.count_nonzero(sound)),
    }
    flagged = ranked > 1
    masks = flagged & bad, ~flagged & bad, flagged & ~bad, ~flagged & ~bad
    return {**found, **alarm_figures(*(float(mask.sum()) for mask in masks))} if alarms else found


def alarm_figures(caught: float, missed: float, false: float, silent: float) -> dict[str, Any]:
    """Return rates from anomalous records caught and missed, normal ones with and without alarm."""
    flagged = caught + false
    return {
        "detection_rate": _part(caught, caught + missed),
        "false_alarm_rate": _part(false, false + silent),
        "precision": _part(caught, flagged),
        "f1": _part(2 * caught, flagged + caught + missed),
    }


def own_metric(function: str, **arrays: NDArray[Any]) -> float | str:
    """Return `module:function` of `labels` and `outputs`, or why it gives no finite number.

    Runs in a separate process. Without arrays the function is only imported."""
    request = function.encode() + b"\n" + save(arrays)
    try:
        reply = run_apart(f"{__name__}:metric_apart", request, METRIC_S, METRIC)
        (value,) = struct.unpack("<d", reply)
    except (DataError, ImportError, OSError, struct.error) as error:
        why = getattr(error, "what", str(error))
        return f"failed: {why.partition(chr(10))[0][:400]}"
    return to_digits(value) if math.isfinite(value) else f"failed: {function} returned {value}"


def metric_apart(request: bytes) -> bytes:
    function, _, packed = request.partition(b"\n")
    module, _, name = function.decode().partition(":")
    arrays, hard = load(packed), resource.getrlimit(resource.RLIMIT_DATA)[1]
    with suppress(ValueError):  # the machine's own limit is lower
        resource.setrlimit(resource.RLIMIT_DATA, (METRIC_BYTES, hard))
    try:
        metric = getattr(import_module(module), name)
        value = metric(arrays["labels"], arrays["outputs"]) if arrays else 0.0
        if np.ndim(value):
            raise TypeError(f"returned an array of shape {np.shape(value)}, not a number")
        return struct.pack("<d", float(value))
    except OF_OTHERS_CODE as error:  # the user's code may raise anything
        raise DataError(f"{function.decode()}: {type(error).__name__}: {error}") from error


def leading(row: Mapping[str, Any]) -> tuple[str, float | None]:
    """Return name and value of a round's leading figure: RMSE, AUC or accuracy."""
    figures = row.get("figures") or {}
    for name, key in _LEADS.items():
        if key in figures:
            return name, figures[name.lower()]
    return ACCURACY, row.get("accuracy")


def leading_of(name: str, row: Mapping[str, Any]) -> float | None:
    led, value = leading(row)
    return value if led == name else None


def leading_stored(
    name: str, accuracy: float | None, loss: float | None, half: float | None = None
) -> float | None:
    """Return the value of `leading` from the accuracy and loss of a `ModelScore`."""
    if name == ACCURACY:
        return accuracy
    if loss is None or not math.isfinite(loss):
        return None
    if name == AUC:
        return 1.0 - loss
    return None if half is None else half * math.sqrt(loss)


def baselines(figures: Mapping[str, Any] | None) -> dict[str, float]:
    """Return baselines: {largest_class_rate, and if uneven balanced_accuracy} or {rmse_of_mean}."""
    figures = (figures or {}).get(GUESSING) or figures or {}
    found = {key: float(figures[key]) for key in _GUESSED if figures.get(key) is not None}
    classes = sum(one["records"] > 0 for one in figures.get("per_class", ()))
    if classes and found.get("largest_class_rate", 1.0) * classes < _UNEVEN:
        found.pop("balanced_accuracy", None)
    return found


def baseline_text(name: str, value: float, figures: Mapping[str, Any] | None) -> str:
    """Return `majority class 0.866`, from `baselines`, or ""."""
    found = baselines(figures)
    if name == RMSE and "rmse_of_mean" in found:
        mean = found["rmse_of_mean"]
        return f"mean as guess {mean:.4g}" + (_WORSE if to_digits(value) > mean else "")
    if name != ACCURACY or "largest_class_rate" not in found:
        return ""
    rate, balanced = found["largest_class_rate"], found.get("balanced_accuracy")
    text = f"majority class {rate:.3f}" + (_WORSE if to_places(value) < rate else "")
    return text + ("" if balanced is None else f"; balanced {balanced:.3f}")


def leading_text(name: str, value: float | None, figures: Mapping[str, Any] | None = None) -> str:
    """Return the value of `leading`, three places or four digits, with its baseline in brackets."""
    if value is None:
        return "unknown"
    baseline = baseline_text(name, value, figures)
    shown = f"{value:.4g}" if name == RMSE else f"{value:.3f}"
    shown = f"{shown} ({baseline})" if baseline else shown
    own = (figures or {}).get(METRIC)
    return shown if own is None else f"{shown}, test metric {own}"


def _part(some: float, whole: float) -> float | None:
    return to_places(some / whole) if whole > 0 else None


def _rank_area(ranked: NDArray[np.float64], bad: NDArray[np.bool_]) -> float | None:
    """Return the area under the ROC curve by the rank sum (Mann and Whitney 1947)."""
    inside = int(np.count_nonzero(bad))
    outside = len(bad) - inside
    if not inside or not outside:
        return None
    ordered = np.sort(ranked)
    before, up_to = (np.searchsorted(ordered, ranked[bad], side) for side in ("left", "right"))
    total = float(((before + up_to + 1) / 2).sum())
    return (total - inside * (inside + 1) / 2) / (inside * outside)


def _average_precision(ranked: NDArray[np.float64], bad: NDArray[np.bool_]) -> float | None:
    if not bad.any() or bad.all():
        return None
    order = np.argsort(-ranked, kind="stable")
    last = np.append(np.diff(ranked[order]) != 0, True)  # of each distinct score
    caught = np.cumsum(bad[order])[last].astype(np.float64)
    flagged = np.flatnonzero(last) + 1.0
    gained = np.diff(caught, prepend=0.0) / caught[-1]
    return to_places(float((gained * caught / flagged).sum()))


def score_bins(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    low, high, bins = SCORE_BINS
    at = (np.log2(np.maximum(scores, np.finfo(np.float64).tiny)) - low) / (high - low) * bins
    return np.clip(at, 0, bins - 1).astype(np.int64)


def _by_score(scores: NDArray[np.float64], bad: NDArray[np.bool_]) -> dict[str, Any]:
    low, high, bins = SCORE_BINS
    at, width = score_bins(scores), (high - low) / bins
    counts = {
        name: np.bincount(at[of], minlength=bins)
        for name, of in (("normal", ~bad), ("anomalous", bad))
    }
    there = np.flatnonzero(counts["normal"] + counts["anomalous"])
    first, last = (int(there[0]), int(there[-1]) + 1) if len(there) else (0, 0)
    ends = {"from": low + first * width, "to": low + last * width}
    return {**ends, **{name: of[first:last].tolist() for name, of in counts.items()}}


BY_DEVICES = " on the devices' own records"


def federated_text(found: Mapping[str, Any]) -> str:
    """Return the leading figure: `accuracy 0.930 ± 0.012 on the devices' own records`."""
    key = found.get("leading")
    if key is None:
        return f"nothing but noise{BY_DEVICES}"
    name = {"rmse": RMSE, "auc": AUC}.get(key, key.replace("_", " "))
    value, off = (leading_text(name, found[one]) for one in (key, f"{key}_deviation"))
    baseline = baseline_text(name, found[key], found)
    return f"{name} {value} ± {off}{f' ({baseline})' if baseline else ''}{BY_DEVICES}"


CLUSTER_SCORES = {  # by the names in `edgeveil.evaluation.cluster_sums`
    "silhouette": "silhouette",
    "calinski_harabasz": "Calinski-Harabasz",
    "davies_bouldin": "Davies-Bouldin",
}


def evaluation_text(data: Mapping[str, Any]) -> str:
    """Return a round's evaluation over devices' records as text, or ""."""
    if (federated := data.get("federated")) is not None:
        return federated_text(federated)
    found = data.get("clusters") or {}
    return cluster_text(found) if found.get("upload") == "sums" else ""


def cluster_text(found: Mapping[str, Any]) -> str:
    """Return `silhouette 0.74 ± 0.03, …`, or `silhouette score 0.066 of 20 uploads with …`."""
    if "used" in found:
        kind, score = str(found["eval_type"]).replace("_", " ").lower(), found["score"]
        shown = f"no {kind}" if score is None else f"{kind} {score:.3f}"
        noised = " with their noise" if found.get("noise_variance") else ""
        return f"{shown} of {found['used']} uploads{noised}"
    scores = (f"{name} {score_text(found, key)}" for key, name in CLUSTER_SCORES.items())
    return f"{', '.join(scores)},{BY_DEVICES}"


def score_text(found: Mapping[str, Any], key: str) -> str:
    """Return `131 ± 12`, with digits as the error permits."""
    value, error = found.get(key), found.get(f"{key}_deviation") or 0.0
    if value is None:
        return "hidden by the noise"
    digits = min(4, max(0, 1 - math.floor(math.log10(error))) if error > 0 else 3)
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def to_places(value: float) -> float:
    return round(float(value), _DIGITS)


def to_digits(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _area(
    probabilities: NDArray[np.floating], labels: NDArray[np.int64], sound: NDArray[np.bool_]
) -> float | None:
    of = labels[:, None] == np.arange(probabilities.shape[1])
    ranked = np.where(sound[:, None], probabilities.astype(np.float64), np.where(of, -1.0, 2.0))
    found = [_rank_area(*pair) for pair in zip(ranked.T, of.T, strict=True)]
    known = [area for area in found if area is not None]
    return to_places(float(np.mean(known))) if known else None


def _calibration(probabilities: NDArray[np.floating], right: NDArray[np.bool_]) -> dict[str, Any]:
    confidence = probabilities.max(axis=1, initial=0.0).astype(np.float64)
    at = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    records = np.bincount(at, minlength=BINS)
    stated = _share(np.bincount(at, weights=confidence, minlength=BINS), records)
    actual = _share(np.bincount(at, weights=right.astype(np.float64), minlength=BINS), records)
    error = float((records * np.abs(stated - actual)).sum() / max(1, len(right)))
    return {
        "error": to_places(error),
        "bins": [
            {
                "confidence": to_places(stated[bin_]),
                "accuracy": to_places(actual[bin_]),
                "records": int(records[bin_]),
            }
            for bin_ in np.flatnonzero(records)
        ],
    }


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    found = np.zeros(len(part))
    np.divide(part, whole, out=found, where=whole > 0)
    return np.clip(found, 0.0, 1.0)
