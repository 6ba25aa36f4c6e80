"""A page that holds experiments' tables between marks, made from what their runs left."""

from __future__ import annotations

import re
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil_lab.reproduce.output import KEPT, kept, markdown
from edgeveil_lab.reproduce.picture import picture
from edgeveil_tools.result import write_whole

PAGE = Path("docs/reproduction.md")


def write_section(name: str, out: Path, page: Path) -> Path:
    """Put the table and picture of `name` that `out` keeps into the page; the picture's file.

    What stands between `<!-- reproduce: NAME -->` and `<!-- end -->` is replaced; a page without
    these marks gets them at its end. All else stays. Raises UsageError where `out` keeps no
    table of this experiment, or the page cannot be written.
    """
    content = kept(out)
    if content is None or content.get("experiment") != name:
        raise UsageError(
            f"holds no table of {name}",
            where=str(out / KEPT),
            fix=f"run `edgeveil reproduce {name}` first, with the same --out",
        )
    image = Path("images") / f"reproduction-{name}.png"
    alt = f"{name}: the text's figures and ours"
    section = f"{markdown(content)}\n![{alt}]({image.as_posix()})\n"
    try:
        (page.parent / image).parent.mkdir(parents=True, exist_ok=True)
        text = page.read_text("utf-8") if page.exists() else ""
        write_whole(page, replaced(text, name, section).encode())
        write_whole(page.parent / image, picture(content, "png"))
    except OSError as error:
        raise UsageError(
            f"cannot be written ({error.strerror})",
            where=str(error.filename or page),
            fix="name a page that you may write with --write",
        ) from error
    return page.parent / image


def replaced(page: str, name: str, section: str) -> str:
    """The page with this section in place of the former one, or at the end."""
    begin, end = f"<!-- reproduce: {name} -->\n", "<!-- end -->\n"
    mark = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    whole = begin + section + end
    if mark.search(page):
        return mark.sub(lambda _: whole, page, count=1)
    return (page.rstrip("\n") + "\n\n" if page else "") + whole
