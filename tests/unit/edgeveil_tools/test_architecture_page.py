"""The architecture page says what the code is."""

import re

from tests.drawn.architecture import PAGE, ROOT

TEXT = PAGE.read_text(encoding="utf-8")
_WAY = TEXT[TEXT.index("## One record's way") :]
NAMED = re.findall(r"`([a-z_/]+\.py)`(?:[\s\n]*\(((?:`\w+`(?:, )?)+)\))?", _WAY)


def test_every_file_on_the_records_way_holds_what_is_named():
    assert len(NAMED) >= 15
    for path, names in NAMED:
        source = (ROOT / path).read_text(encoding="utf-8")
        for name in re.findall(r"\w+", names):
            assert re.search(rf"(def|class) {name}\b", source), (path, name)


def test_the_files_of_the_glossary_are_there():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    files = re.findall(r"`([a-z_/]+\.py)`", page)
    assert len(files) > 20
    assert [name for name in files if not (ROOT / name).is_file()] == []
