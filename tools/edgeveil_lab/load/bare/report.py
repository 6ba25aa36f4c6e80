"""`load.html` of bare load: the table, and the curves of all its brokers on the same axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from edgeveil_lab.load.bare.display import LATENCIES, figures, notes, order_text
from edgeveil_lab.load.display import PERCENTILES, ratio_text
from edgeveil_lab.load.report import curves_plot, percentiles_plot
from edgeveil_lab.pages import write_page

_CURVES = (
    ("connected", "clients connected"),
    ("sent_per_s", "messages sent a second"),
    ("acknowledged_per_s", "acknowledged a second"),
    ("received_per_s", "received a second"),
)


def write_bare_report(result: Mapping[str, Any], path: Path) -> None:
    """Write the page."""
    brokers = result["brokers"]
    latencies = [
        (f"{name}, {percentile}", [one[key][percentile] for one in brokers])
        for key, name in LATENCIES
        for percentile in PERCENTILES
        if all(one[key][percentile] for one in brokers)
    ]
    names = [one["broker"] for one in brokers]
    pictures = {
        "rates": curves_plot([(one["broker"], one["series"]) for one in brokers], _CURVES),
        "latency": percentiles_plot(names, latencies),
    }
    content = {
        "result": result,
        "options": result["options"],
        "figures": list(figures(result)),
        "compared": len(brokers) > 1,
        "order": order_text(result),
        "notes": list(notes(result)),
        "pictures": {name: Markup(svg) for name, svg in pictures.items()},  # noqa: S704 - our own
    }
    write_page(path, "bare_load.html", content, {"ratio": ratio_text})
