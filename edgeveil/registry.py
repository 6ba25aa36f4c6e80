"""Names of parts, which are the names in the YAML."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any


def known_names(family: str) -> list[str]:
    """Return the names of a family of parts that a file may use, including plug-ins."""
    names: list[str] = _table(family).known()
    return names


def part_named(family: str, name: str) -> Any | None:
    """Return the part with this name; None if unknown or a plug-in that fails to load."""
    return _table(family).get(name)


def _table(family: str) -> Any:
    return import_module(f"edgeveil.parts.{family}").TABLE


def nearest(name: str, known: list[str]) -> str:
    """Return `did you mean 'x'?` for the closest known name, or the list of all names."""
    given, names = name.casefold(), {one.casefold(): one for one in known}
    begun = [one for one in names if given and one.startswith(given)]  # preferred
    close = get_close_matches(given, begun or names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{names[close[0]]}'?"
    return f"known: {', '.join(sorted({*known}))}"
