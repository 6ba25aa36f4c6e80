"""Pages whose drawings are made from the code: `python -m tests.drawn [--write]`, `make docs`.

Each module has a PAGE and `drawing(name)`, what stands between `<!-- drawn: NAME -->` and
`<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_MARK = re.compile(r"(<!-- drawn: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def redrawn(page: str, drawing: Callable[[str], str]) -> str:
    """Return the page with every drawing made anew."""
    return _MARK.sub(lambda mark: f"{mark[1]}{drawing(mark[2])}{mark[4]}", page)
