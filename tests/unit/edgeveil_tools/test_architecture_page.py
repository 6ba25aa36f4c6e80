"""The architecture page says what the code is."""

import re

from tests.drawn import redrawn
from tests.drawn.architecture import PACKAGES, PAGE, ROOT, arrows, drawing

TEXT = PAGE.read_text(encoding="utf-8")
_WAY = TEXT[TEXT.index("## One record's way") :]
NAMED = re.findall(r"`([a-z_/]+\.py)`(?:[\s\n]*\(((?:`\w+`(?:, )?)+)\))?", _WAY)


def test_the_page_is_up_to_date_and_an_old_one_is_noticed():
    old = TEXT.replace("| `edgeveil.crypto` |", "| `edgeveil.cryptic` |")
    assert redrawn(TEXT, drawing) == redrawn(old, drawing) == TEXT != old


def test_every_file_on_the_records_way_holds_what_is_named():
    assert len(NAMED) >= 15
    for path, names in NAMED:
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"(def|class) {name}\b", source), (path, name)


def test_the_glossary_is_in_order_and_its_files_are_there():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| \*\*(.+?)\*\*", page, re.MULTILINE)
    assert len(words) > 20
    assert words == sorted(words)
    files = re.findall(r"`([a-z_/]+\.py)`", page)
    assert len(files) >= len(words)
    assert [name for name in files if not (ROOT / name).is_file()] == []


def test_deployables_stand_apart():
    roles = {"edgeveil_edge", "edgeveil_cloud", "edgeveil_proxy"}
    for room, others in arrows().items():
        if room in roles:
            assert not others & (roles - {room})
        if room.startswith("edgeveil."):
            assert not others & (set(PACKAGES) - {"edgeveil"})
