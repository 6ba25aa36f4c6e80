"""A page in one file that needs no server; its policy runs only its own scripts, by digest."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgeveil.pages.assets import asset

STYLES = ("base.css", "uPlot.min.css", "charts.css")
SCRIPTS = ("uPlot.iife.min.js", "base.js", "charts.js", "job_view.js", "report.js")
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


def frozen(view: Mapping[str, Any], brief: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page of a view of `edgeveil.pages.parts`, with rows `brief` if scripts are off."""
    style = "\n".join(asset(name).decode() for name in STYLES)
    scripts = [asset(name).decode() for name in SCRIPTS]
    hashes = " ".join(map(_digest, scripts))
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src {_digest(style)}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    rows = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(value)}</td></tr>'
        for name, value in brief
    )
    table = f"<table>{rows}</table>" if rows else ""
    title = html.escape(str(view["title"]))
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>",
            f'<main><div id="view"></div><noscript><h1>{title}</h1>{table}',
            "<p>Figures are drawn by scripts, which are off here.</p></noscript></main>",
            f'<script type="application/json" id="data">{_inert(view)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def thawed(page: str) -> dict[str, Any] | None:
    """Return the view in a frozen page; None for another page."""
    found = _DATA.search(page)
    try:
        view = json.loads(found[1]) if found else None
    except ValueError:
        return None
    return view if isinstance(view, dict) else None


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _inert(view: Mapping[str, Any]) -> str:
    """Return JSON that cannot end its HTML element, nor start another."""
    plain = json.dumps(view, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        plain = plain.replace(sign, f"\\u{ord(sign):04x}")
    return plain
