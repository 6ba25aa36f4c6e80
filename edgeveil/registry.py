"""Tables of names; the name in a table is the name in the YAML."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Generic, TypeVar

from edgeveil.errors import UsageError

T = TypeVar("T")


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


class Table(Generic[T]):
    """A fixed mapping from names to implementations of one family."""

    def __init__(self, family: str, entries: dict[str, T]) -> None:
        self.family, self._entries = family, dict(entries)

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            what = f"unknown {self.family} '{name}'"
            raise UsageError(what, fix=nearest(name, self.names())) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        return list(self._entries)
