"""The static files of the cloud's pages."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

from edgeveil.pages.assets import asset

_OWN, _SHARED = "edgeveil_cloud.pages", "edgeveil.pages"
NAMES: Mapping[str, str] = {  # of `/pages/NAME`, with their packages
    **dict.fromkeys(("cloud.css", "cloud.js", "jobs.js", "fleet.js", "start.js"), _OWN),
    **dict.fromkeys(("base.css", "charts.css", "uPlot.min.css", "base.js", "charts.js"), _SHARED),
    **dict.fromkeys(("job_view.js", "uPlot.iife.min.js"), _SHARED),
}


def page(name: str, **values: str) -> str:
    """Return an HTML file with each `{{value}}` filled in, escaped."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: html.escape(values[place[1]]), text(name))


def text(name: str) -> str:
    return asset(name, _OWN).decode("utf-8")
