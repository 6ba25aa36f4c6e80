"""`report.html`: one run on one page that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from edgeveil.evaluation.noise_correction import NOT_IDENTIFIABLE
from edgeveil.jobs.shuffle_amplification import ShuffleCredit
from edgeveil.privacy.guarantee import guarantee_text, record_text, shared_text, up, worth
from edgeveil_tools.pages import write_page
from edgeveil_tools.report import plots as plots
from edgeveil_tools.report.plots import Holdings, holdings_plot
from edgeveil_tools.result import MEASURED_ON, UNPROTECTED, progress_text

_NO_CORRECTION = {"squared": None, "corrected": None, "corrected_reason": ""}


def write_report(
    result: Mapping[str, Any],
    events: Sequence[Mapping[str, Any]],
    path: Path,
    held: Holdings | None = None,
) -> None:
    """Write the page from the content of `result.json` and `events.jsonl`, and what was dealt."""
    filters: dict[str, Callable[..., str]] = {
        "figure": _figure,
        "up": _up,
        "size": plots.byte_text,
        "corrected": _corrected,
    }
    published = result["final"]["measured_on"] == MEASURED_ON[True]
    content = {**_content(result, events), "held": held, "published": published}
    if held is not None:
        content["pictures"]["held"] = Markup(holdings_plot(held))  # noqa: S704 - our own
    write_page(path, "report.html", content, filters)


_RELEASED = ("release_promoted", "release_withdrawn")


def _content(result: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = _proven(result)
    committed = [e["data"] for e in events if e["type"] == "exchange_committed"]
    timeline = [
        {**row, "timeline": data.get("timeline", {})}
        for row, data in zip(rows, committed, strict=False)
    ]
    evaluations = [
        {**data["clusters"], "round": data["number"]} for data in committed if data.get("clusters")
    ]
    averages = [
        {**data["mean_softmax"], "round": data["number"]}
        for data in committed
        if data.get("mean_softmax")
    ]
    units = {key: part["unit"] for key, part in result["privacy"].items()}
    pictures = {
        "accuracy": plots.accuracy_plot(result["rounds"], result["reference"]["rounds"]),
        "epsilon": plots.epsilon_plot(rows, units),
        "clusters": plots.cluster_plot(evaluations),
        "bytes": "" if result["simulated"] else plots.bytes_plot(_hops(result)),
        "timeline": plots.timeline_plot(timeline),
    }
    return {
        "result": result,
        "unprotected": UNPROTECTED,
        "course": progress_text(result),
        "release": [event["data"]["reason"] for event in events if event["type"] in _RELEASED],
        "rows": rows,
        "collusion": any(plots.COLLUSION in row["epsilon"] for row in rows),
        "planned": [f"per {units[key]} ({key})" for key in plots.spent(rows)],
        "pictures": {name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - our own
        "training": _guarantee(result["privacy"], "training"),
        "inference": _guarantee(result["privacy"], "inference"),
        "shuffle": [str(ShuffleCredit(**credit)) for credit in result.get("shuffle", ())],
        "evaluations": len(evaluations),
        "averages": averages,
        "scored": [{**_NO_CORRECTION, **scores} for scores in evaluations],
        "short": any(scores["used"] < scores["wanted"] for scores in evaluations),
        "panels": min(plots.PANELS, len(evaluations)),
        "numbered": all(len(e["vectors"]) <= plots.NUMBERED for e in evaluations),
        "silhouette": any(e["eval_type"] == "SILHOUETTE_SCORE" for e in evaluations),
    }


def _proven(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All exchanges, without the ε that no proof stands behind."""
    proven = {key for key, part in result["privacy"].items() if part["status"] == "proven"}
    if "training" in proven and "collusion_epsilon" in result["privacy"]["training"]:
        proven.add(plots.COLLUSION)
    return [
        {**row, "epsilon": {key: row["epsilon"].get(key) for key in proven}}
        for row in (*result["phases"], *result["rounds"])
    ]


def _hops(result: Mapping[str, Any]) -> dict[str, int]:
    """By hop as the proxy counted; else the cloud's own two, of the committed exchanges."""
    if any(result["bytes"].values()):
        return dict(result["bytes"])
    rows = [*result["phases"], *result["rounds"]]
    return {
        "cloud_to_proxy": sum(row["bytes"].get("cloud_out", 0) for row in rows),
        "proxy_to_cloud": sum(row["bytes"].get("cloud_in", 0) for row in rows),
    }


def _guarantee(privacy: Mapping[str, Any], which: str) -> dict[str, Any]:
    part = privacy[which]
    proven = part["status"] == "proven" and part["epsilon"] is not None
    return {
        "proven": proven,
        "figure": f"ε = {up(part['epsilon'])}" if proven else "no proven guarantee",
        "text": guarantee_text(privacy, which),
        "record": record_text(part),
        "shared": shared_text(part) if proven else "",
        "alone": _alone(part),
        "worth": worth(part["epsilon"]) if proven else "",
        "epsilon": part["epsilon"],
        "delta": part["delta"],
        "unit": part["unit"],
        "status": part["status"],
        "per_round": part.get("epsilon_per_round"),
    }


def _alone(part: Mapping[str, Any]) -> str:
    """ε if all others collude, where noise is shared."""
    found = part.get("collusion_epsilon")
    return "not bounded" if found is None else up(found)


def _corrected(scores: Mapping[str, Any]) -> str:
    """`131 ± 12`, or the short word for why there is none."""
    value, error = scores.get("corrected"), scores.get("corrected_error")
    if value is None or error is None:
        reason = str(scores.get("corrected_reason") or "")
        return NOT_IDENTIFIABLE if reason.startswith(NOT_IDENTIFIABLE) else "–"
    digits = max(0, 1 - math.floor(math.log10(error))) if error > 0 else 3
    return f"{value:.{min(digits, 4)}f} ± {error:.{min(digits, 4)}f}"


def _up(value: float | None) -> str:
    return "–" if value is None else up(value)


def _figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
