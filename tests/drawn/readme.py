"""The README's table of the names of EdgeVeil's own parts and presets, by their status."""

from __future__ import annotations

from pathlib import Path

from edgeveil_tools.methods import entries

PAGE = Path(__file__).parents[2] / "README.md"
_SHOWN = (
    "preset",
    "train.method",
    "update",
    "aggregation",
    "model",
    "features",
    "local_run.data.source",
    "local_run.partition",
)
_STATUS = {"proven": "proven", "claimed": "claimed", "none": "without noise", None: ""}


def drawing(_name: str) -> str:
    """A row for each family."""
    lines = ["| in a job file | names |", "| --- | --- |"]
    for family in _SHOWN:
        mine = [one for one in entries() if one.family == family and one.plugin is None]
        groups = []
        for status, said in _STATUS.items():
            names = ", ".join(f"`{one.name}`" for one in mine if one.privacy == status)
            if names:
                groups.append(f"{names}: {said}" if said else names)
        lines.append(f"| `{family}` | {'; '.join(groups)} |")
    return "\n".join(lines) + "\n"
