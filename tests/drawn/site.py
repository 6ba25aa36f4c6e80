"""Build the documentation site: `python -m tests.drawn.site [--serve]`.

Collects the pages of docs/, the README as the first page, the generated reference and the executed
notebook in out/docs, then builds out/site with Zensical in strict mode.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.drawn import protocol, reference

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "out" / "docs"
_BUILT = re.compile(r"^<!-- built: (\w+) -->$", re.MULTILINE)
_LINK = re.compile(r'(\]\(|src=")([^)\s"#:]+)((?:#[^)\s"]*)?)([)"])')


def collect() -> None:
    """Write the site's sources to out/docs."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for page in PAGES.rglob("*.md"):
        source = ROOT / "docs" / page.relative_to(PAGES)
        page.write_text(_relinked(source, page), "utf-8")
    for name, made in {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}.items():
        (PAGES / made).write_text(_relinked(ROOT / name, PAGES / made), "utf-8")
    page = PAGES / "protocol.md"
    page.write_text(_BUILT.sub(lambda mark: protocol.drawing(mark[1]), page.read_text("utf-8")))
    for name, text in reference.pages().items():
        path = PAGES / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    notebook = ROOT / "docs" / "examples" / "quickstart.ipynb"
    (PAGES / "walkthroughs" / "notebook.md").write_text(_notebook(notebook), "utf-8")


def _relinked(source: Path, page: Path) -> str:
    """Return a page's text with its relative links changed to files below out/docs.

    A linked file from outside docs/ is copied to out/docs/files.
    """

    def moved(link: re.Match[str]) -> str:
        target = (source.parent / link[2]).resolve()
        if not target.exists():
            return link[0]  # the strict build names it
        if target == ROOT / "README.md":
            target = PAGES / "index.md"
        elif target.suffix == ".ipynb":
            target = PAGES / "walkthroughs" / "notebook.md"
        elif target.is_relative_to(ROOT / "docs"):
            target = PAGES / target.relative_to(ROOT / "docs")
        else:
            kept = PAGES / "files" / target.relative_to(ROOT)
            kept = kept.with_suffix(".txt") if kept.suffix == ".md" else kept
            kept.parent.mkdir(parents=True, exist_ok=True)
            if target.is_file():
                shutil.copyfile(target, kept)
            target = kept
        return f"{link[1]}{os.path.relpath(target, page.parent)}{link[3]}{link[4]}"

    text = re.sub(r"^```(\w+) [^`\n]*$", r"```\1", source.read_text("utf-8"), flags=re.MULTILINE)
    return _LINK.sub(moved, text)  # the words after a fence's language are for tests


def _notebook(path: Path) -> str:
    """Return a notebook's cells and text outputs as Markdown."""
    blocks = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        blocks.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            shown = output.get("text") or output.get("data", {}).get("text/plain", ())
            if shown:
                blocks.append(f"```text\n{''.join(shown).rstrip()}\n```")
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    collect()
    zensical = [sys.executable, "-m", "zensical"]
    verb = ["serve"] if "--serve" in sys.argv else ["build", "--clean", "--strict"]
    sys.exit(subprocess.run([*zensical, *verb], cwd=ROOT).returncode)
