"""An experiment's table as files: Markdown, JSON and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeveil.errors import UsageError
from edgeveil_lab.reproduce.picture import picture
from edgeveil_tools.result import write_json, write_whole

KEPT = "reproduction.json"
FILES = ("reproduction.md", KEPT, "reproduction.png", "reproduction.svg")
COLUMNS = (
    "row",
    "text",
    "ours",
    "privacy as claimed",
    "privacy as proven",
    "rounds",
    "seconds",
)


def write(content: Mapping[str, Any], out: Path) -> None:
    """Write all files. Raises UsageError where they cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / KEPT, content)
        write_whole(out / "reproduction.md", markdown(content).encode())
        for kind in ("png", "svg"):
            write_whole(out / f"reproduction.{kind}", picture(content, kind))
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=str(error.filename or out),
            fix="name a folder that you may write to with --out",
        ) from error


def kept(out: Path) -> dict[str, Any] | None:
    """What a former run left in this folder; None where there is nothing of this form."""
    try:
        found = json.loads((out / KEPT).read_bytes())
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and all("command" in row for row in found.get("rows", ()))
    return found if known else None


def kept_rows(out: Path, name: str, quick: bool) -> dict[str, list[dict[str, Any]]]:
    """By trial, the rows that a former run of this experiment measured."""
    found = kept(out)
    if found is None or (found.get("experiment"), found.get("quick")) != (name, quick):
        return {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        if row.get("command"):
            rows.setdefault(row["trial"], []).append(row)
    return rows


def markdown(content: Mapping[str, Any]) -> str:
    """The table under its title, with what must be known of it and the commands that made it."""
    lines = [f"## {content['experiment']}: {content['title']}", "", f"{content['source']}."]
    lines += [content["remark"], ""]
    if content["quick"]:
        lines += ["Quick: digits, few rounds. It shows that all runs; not to be compared.", ""]
    lines += ["```sh", *_commands(content["rows"]), "```", ""]
    lines += [f"Figure: {content['figure']}. Of several seeds the median, and the range.", ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    lines += ["| " + " | ".join(_cells(row)) + " |" for row in content["rows"]]
    if content.get("chosen"):
        lines += ["", f"{content['chosen'][:1].upper()}{content['chosen'][1:]}."]
    lines += [f"\nFailed: {failure}" for failure in content["failures"]]
    return "\n".join(lines) + "\n"


def _commands(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each command once, with the rows that it made where others are not its own."""
    trials: dict[str, dict[str, None]] = {}
    for row in rows:
        trials.setdefault(row["command"] or "", {})[row["trial"]] = None
    every = len(trials) == 1
    made = [(command, names) for command, names in trials.items() if command]
    return [command if every else f"{command} --only {' '.join(names)}" for command, names in made]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    values, seconds = row["values"], row["seconds"]
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return (
        row["label"],
        _number(row["claimed"]),
        _number(row["ours"]) + spread,
        row["claimed_privacy"],
        row["proven_privacy"] or "not run",
        _rounds(row["rounds"], row["full_rounds"]),
        "–" if seconds is None else f"{seconds:.0f}",
    )


def _rounds(played: int | None, full: int | None) -> str:
    if played is None:
        return "–"
    return str(played) if played == full else f"**{played}** of {full}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
