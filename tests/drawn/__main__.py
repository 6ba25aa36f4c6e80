"""`python -m tests.drawn`: exit code 1 where a page is out of date; with `--write` redraw them."""

from __future__ import annotations

import sys

from tests.drawn import architecture, protocol, redrawn

stale = []
for module in (architecture, protocol):
    page = module.PAGE.read_text(encoding="utf-8")
    new = redrawn(page, module.drawing)
    if new != page:
        stale.append(str(module.PAGE))
        if "--write" in sys.argv:
            module.PAGE.write_text(new, encoding="utf-8")
if stale and "--write" not in sys.argv:
    sys.exit(f"{', '.join(stale)}: drawings are out of date. Run `make docs`")
