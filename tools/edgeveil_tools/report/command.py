"""`edgeveil report`: the page of a run drawn again from its files, or of several compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeveil.errors import UsageError
from edgeveil.pages.frozen import frozen, thawed
from edgeveil.pages.parts import Json
from edgeveil_tools.report.compare import MOST_RUNS, compared, comparison_view
from edgeveil_tools.report.holdings import HELD
from edgeveil_tools.report.page import write_report
from edgeveil_tools.result import Result, write_whole, writing

COMPARISON = Path("comparison.html")


def report(folders: Sequence[Path], out: Path | None, *, as_json: bool = False) -> int:
    """Write the page; prints where it is, or with `as_json` the figures of the runs, a JSON object
    a line. Raises UsageError where a folder holds no result."""
    if len(folders) > MOST_RUNS:
        raise UsageError(
            f"{len(folders)} runs are too many for one page", fix=f"name {MOST_RUNS} at most"
        )
    runs = compared(folders)
    if len(runs) == 1:
        path = out or runs[0].result.report
        with writing(path, "name a file that you may write to with --out"):
            _again(runs[0].result, path)
    else:
        path = out or COMPARISON
        view = comparison_view(runs)
        brief = [(run.name, run.led_text) for run in runs]
        with writing(path, "name a file that you may write to with --out"):
            write_whole(path, frozen(view, brief).encode())
    if as_json:
        for run in runs:
            print(json.dumps({**run.row, "report": str(path)}, allow_nan=False))
    else:
        print(path)
    return 0


def _again(result: Result, path: Path) -> None:
    """The page from the files of its run. Who holds what only the run itself could count: it is
    taken from the page that it drew."""
    try:
        events = result.events
    except (OSError, ValueError) as error:
        raise UsageError(
            "its events cannot be read", where=str(result.folder / "events.jsonl")
        ) from error
    write_report(result.content, events, path, _held(result.report))


def _held(page: Path) -> Json | None:
    view: Mapping[str, Any] = {}
    if page.is_file():
        view = thawed(page.read_text("utf-8", "replace")) or {}
    found = [one for one in view.get("sections", ()) if one.get("id") == HELD]
    return dict(found[0]) if found else None
