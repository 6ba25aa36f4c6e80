"""Files of the pages, and the HTTP headers for browsers.

Text is inserted as `textContent`, never as markup, and the policy restricts what a browser may
load, run and send: so a hostile job name has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

CONTENT_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


SHARED = ("base.css", "base.js", "small.css", "small.js")  # by the pages of proxy and device


@cache
def asset(name: str, package: str = "edgeveil.pages") -> bytes:
    """Return the content of one file of a package's `static/`. Raises FileNotFoundError."""
    if "/" in name or name.startswith("."):
        raise FileNotFoundError(name)
    return (resources.files(package) / "static" / name).read_bytes()


def content_type(name: str) -> str:
    return CONTENT_TYPES[name.rpartition(".")[2]]
