"""The lab's pages: templates that are filled and written whole, and pictures by matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from edgeveil_tools.result import write_whole

_TEMPLATES = Path(__file__).parent / "templates"

# Stand-ins that become the page's own colours, so that one picture suits light and dark.
_INK, _FAINT = "#010203", "#040506"
# Okabe and Ito's colours, told apart with every common colour vision.
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7",
)  # fmt: skip
_PAGE = {
    _INK: "var(--ink)",
    _FAINT: "var(--line)",
    BLUE.lower(): "var(--blue)",
    ORANGE.lower(): "var(--orange)",
    RED.lower(): "var(--red)",
}
CLUSTERS = (BLUE, ORANGE, GREEN, RED, SKY, PURPLE, "#B8A500", "#8A8A8A", "#5B4FA2", "#8C5A2B")
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "svg.fonttype": "path",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": _FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 4.5,
}


@contextmanager
def svg_figure(width: float, height: float, name: str) -> Iterator[tuple[Figure, list[str]]]:
    """A figure to draw on (inches); afterwards the list holds its SVG."""
    done: list[str] = []
    # The salt keeps the ids of several pictures in one page apart, and the same at every run.
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, done
        raw = io.StringIO()
        figure.savefig(raw, format="svg", transparent=True, metadata={"Date": None})
    svg = raw.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    for stand_in, colour in _PAGE.items():
        svg = svg.replace(stand_in, colour)
    # Ids of axes and paths repeat from figure to figure.
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    done.append(svg)


@contextmanager
def file_figure(width: float, height: float, kind: str) -> Iterator[tuple[Figure, list[bytes]]]:
    """A figure for a page of its own (inches); afterwards the list holds a png or svg file."""
    done: list[bytes] = []
    with mpl.rc_context({"font.size": 9, "svg.fonttype": "path", "svg.hashsalt": "edgeveil"}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, done
        raw = io.BytesIO()
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(raw, format=kind, dpi=160, metadata=metadata)
    done.append(raw.getvalue())


def write_page(
    path: Path,
    template: str,
    content: Mapping[str, Any],
    filters: Mapping[str, Callable[..., object]],
) -> None:
    """Fill `template` with `content`; text is escaped, a name that is missing raises."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    page = environment.get_template(template).render(**content)
    write_whole(path, page.encode("utf-8"))


_DRAWN = re.compile(r"(<!-- drawn: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def placed(page: str, name: str, drawing: str) -> str:
    """Return the page with this drawing in its place; at the end where it had none."""
    if f"<!-- drawn: {name} -->\n" not in page:
        before = page.rstrip("\n") + "\n\n" if page else ""
        page = f"{before}<!-- drawn: {name} -->\n<!-- end -->\n"
    return _DRAWN.sub(lambda m: f"{m[1]}{drawing if m[2] == name else m[3]}{m[4]}", page)
