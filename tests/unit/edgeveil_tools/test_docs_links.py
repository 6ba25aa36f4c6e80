"""Every link and picture of the README and the pages below docs/ leads somewhere."""

import re

import pytest

from tests.kits.guides import ROOT

LINK = re.compile(r'\]\(([^)\s]+)\)|src="([^"]+)"')
PAGES = [
    "README.md",
    "CHANGELOG.md",
    *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
]


def prose(page):
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """As GitHub makes them of the headings."""
    words = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line).strip().lower() for line in words)
    return {re.sub(r"[^\w\- ]", "", line).replace(" ", "-") for line in shown}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_links_lead_somewhere(name):
    page = ROOT / name
    for link, picture in LINK.findall(prose(page)):
        path, _, anchor = (link or picture).partition("#")
        if re.match(r"[a-z]+:", path):
            continue  # somebody else's page
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name}: {link or picture}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{name}: {link}"
