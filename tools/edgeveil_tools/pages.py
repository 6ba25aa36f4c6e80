"""A page of the docs redrawn from code."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_MARK = re.compile(r"(<!-- drawn: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def redrawn(page: str, drawing: Callable[[str], str]) -> str:
    """The page with every drawing made anew; `drawing` takes its name."""
    return _MARK.sub(lambda mark: f"{mark[1]}{drawing(mark[2])}{mark[4]}", page)


def placed(page: str, name: str, drawing: str) -> str:
    """The page with this drawing in its place; at the end where it had none."""
    if f"<!-- drawn: {name} -->\n" not in page:
        before = page.rstrip("\n") + "\n\n" if page else ""
        page = f"{before}<!-- drawn: {name} -->\n<!-- end -->\n"
    return _MARK.sub(lambda m: f"{m[1]}{drawing if m[2] == name else m[3]}{m[4]}", page)


def update(
    path: Path, drawing: Callable[[str], str], module: str, arguments: Sequence[str] | None
) -> int:
    """`python -m MODULE`: 0 when the page is (now, with `--write`) up to date, else 1."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=f"Says whether {path.name} is up to date."
    )
    parser.add_argument("--write", action="store_true", help="redraw the page")
    write = parser.parse_args(arguments).write
    page = path.read_text(encoding="utf-8")
    new = redrawn(page, drawing)
    if write:
        path.write_text(new, encoding="utf-8")
    elif new != page:
        sys.stderr.write(f"{path}: drawings are out of date. Run `make docs`\n")
        return 1
    return 0
