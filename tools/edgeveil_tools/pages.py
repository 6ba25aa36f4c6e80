"""Pages that need nothing else: a template of `templates/`, filled and written whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from edgeveil_tools.result import write_whole

_TEMPLATES = Path(__file__).parent / "templates"


def write_page(
    path: Path,
    template: str,
    content: Mapping[str, Any],
    filters: Mapping[str, Callable[..., str]],
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
