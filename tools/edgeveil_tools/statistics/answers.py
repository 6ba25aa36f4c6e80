"""Answers of a fleet, each with ±, as values, as text and as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from edgeveil.errors import UsageError, needs_extra
from edgeveil.registry import nearest
from edgeveil.statistics.answer_text import cells, columns_of, lines
from edgeveil.statistics.drift import lines as drift_lines


@dataclass(frozen=True)
class Statistics:
    """Answers of a fleet to all questions of a job; `content` is `statistics` of `result.json`.

    ± holds the noise with 95 % confidence, not what another sample of records would change."""

    content: Mapping[str, Any]
    drift: Mapping[str, Any] = field(default_factory=dict)
    """By column how far these are from the release's own answers, if known."""

    def __getitem__(self, asked: tuple[str, ...]) -> dict[str, Any]:
        """Return the answer by statistic and columns: value, plus_minus, too_noisy and others.

        `found["mean", "age"]`. Raises UsageError for what was not asked."""
        name, *columns = asked
        for answer in self:
            of = answer.get("columns") or [answer.get("column")]
            if answer["statistic"] == name and of == columns:
                return answer
        known = [f"{one['statistic']} of {columns_of(one)}" for one in self]
        where = f"{name} of {' × '.join(columns)}"
        raise UsageError("was not asked", where=where, fix=nearest(where, known))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.content["answers"])

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each number: column, statistic, cell, value, plus_minus, too_noisy.

        `cell` names a bin, a rank, a category or a cell of a table; "" for a single number."""
        return [
            {"column": columns_of(answer), "statistic": answer["statistic"]}
            | {"cell": cell.name, "value": cell.value, "plus_minus": cell.plus_minus}
            | {"too_noisy": bool(answer.get("too_noisy"))}
            for answer in self
            for cell in cells(answer)
        ]

    @classmethod
    def of_events(cls, events: Sequence[Mapping[str, Any]]) -> Self | None:
        """Return the newest answers in a job's events; None without any."""
        for data in (event["data"] for event in reversed(events)):
            if answers := data.get("statistics"):
                return cls(answers, data.get("drift") or {})
        return None

    @needs_extra("frames")
    def frame(self, library: Literal["pandas", "polars"] = "pandas") -> Any:
        """Return `rows` as a DataFrame of pandas or polars."""
        if library == "polars":
            import polars

            return polars.DataFrame(self.rows())
        import pandas

        return pandas.DataFrame(self.rows())

    def __str__(self) -> str:
        return "\n".join([*lines(self.content), *drift_lines(self.drift)])
