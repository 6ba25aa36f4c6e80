"""The files of the cloud's pages, its own and those that all share, by names with a digest."""

from __future__ import annotations

import hashlib
import html
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

from edgeveil.pages.assets import asset, content_type

_OWN = ("cloud.css", "cloud.js", "jobs.js", "submit.js", "fleet.js", "start.js")
_SHARED = (
    *("base.css", "charts.css", "uPlot.min.css"),
    *("base.js", "charts.js", "job_view.js", "uPlot.iife.min.js"),
)
NAMES = frozenset({*_OWN, *_SHARED})
_DIGEST = re.compile(r"(?P<digest>[0-9a-f]{16})-(?P<name>[\w.]+)")
_PLACE = re.compile(r"\{\{(\w+):([\w.]+)\}\}|\{\{(\w+)\}\}")


@dataclass(frozen=True)
class PageFile:
    """One file; `for_long`: its name says its content, so a browser may keep it."""

    content: bytes
    content_type: str
    for_long: bool


def asset_of(name: str) -> PageFile | None:
    """The file that a page loads as `/pages/NAME`; None where there is none."""
    named = _DIGEST.fullmatch(name)
    plain = named["name"] if named else name
    if plain not in NAMES:
        return None
    if named and named["digest"] != _digest(plain):
        return None  # of another version
    return PageFile(_content(plain), content_type(plain), for_long=named is not None)


def page(name: str, **values: str) -> str:
    """An HTML file with its places filled: `{{file:NAME}}` by an address, `{{value}}` by text."""

    def filled(place: re.Match[str]) -> str:
        if place[1]:
            return f"/pages/{_digest(place[2])}-{place[2]}"
        return html.escape(values[place[3]])

    return _PLACE.sub(filled, text(name))


@cache
def text(name: str) -> str:
    return _own(name).decode("utf-8")


@cache
def _content(name: str) -> bytes:
    return asset(name) if name in _SHARED else _own(name)


@cache
def _digest(name: str) -> str:
    return hashlib.sha256(_content(name)).hexdigest()[:16]


def _own(name: str) -> bytes:
    return (resources.files("edgeveil_cloud.pages") / "static" / name).read_bytes()
