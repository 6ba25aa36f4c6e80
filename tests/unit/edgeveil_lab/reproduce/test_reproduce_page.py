"""`edgeveil reproduce NAME --write PAGE`: one section of a page, and nothing else, is made anew."""

import pytest

from edgeveil_lab.reproduce.output import markdown, write
from edgeveil_tools import cli
from edgeveil_tools.pages import placed

ROW = {
    "trial": "one",
    "label": "one row",
    "series": "s",
    "x": 1.0,
    "claimed": 0.5,
    "claimed_privacy": "ε = 1",
    "values": [0.25, 0.75],
    "ours": 0.5,
    "proven_privacy": "no proven guarantee",
    "rounds": 2,
    "full_rounds": 2,
    "seconds": 3.0,
    "curve": [[1, 0.2], [2, 0.5]],
    "scores": [[1, 0.1, 2.0], [2, 0.4, 1.5]],
    "command": "edgeveil reproduce toy --seeds 2",
}
CONTENT = {
    "experiment": "toy",
    "title": "a toy",
    "source": "nobody 2000",
    "figure": "accuracy",
    "remark": "No remark.",
    "picture": "rows",
    "x_label": "",
    "x_log": False,
    "quick": False,
    "rows": [ROW],
    "failures": [],
    "versions": {},
}
PAGE = "# Ours\n\nby hand\n\n<!-- drawn: toy -->\nold\n<!-- end -->\n\nbelow, by hand\n"


def test_a_section_takes_the_place_of_the_former_one():
    assert placed(PAGE, "toy", "new\n") == PAGE.replace("old", "new")
    assert placed(PAGE, "other", "new\n").startswith(PAGE)
    assert placed("", "toy", "\\1\n") == "<!-- drawn: toy -->\n\\1\n<!-- end -->\n"


@pytest.mark.parametrize("kind", ["rows", "lines", "rounds", "scores"])
def test_the_kept_table_and_its_picture_land_in_the_page(kind, tmp_path, capsys):
    out, page = tmp_path / "out", tmp_path / "docs" / "page.md"
    content = {**CONTENT, "picture": kind}
    write(content, out)
    page.parent.mkdir()
    page.write_text(PAGE)
    assert cli.main(["reproduce", "toy", "--out", str(out), "--write", str(page)]) == 0
    said = page.read_text()
    image = "images/reproduction-toy.png"
    assert f"{markdown(content)}\n![toy: the text's figures and ours]({image})\n" in said
    assert "old" not in said
    assert "below, by hand" in said
    assert (page.parent / image).read_bytes() == (out / "reproduction.png").read_bytes()
    assert str(tmp_path) not in said
    assert image in capsys.readouterr().out


def test_the_text_s_figure_is_in_the_picture(tmp_path):
    for kind in ("rows", "lines", "rounds"):
        with_text, without = tmp_path / f"{kind}1", tmp_path / f"{kind}2"
        write({**CONTENT, "picture": kind}, with_text)
        write({**CONTENT, "picture": kind, "rows": [{**ROW, "claimed": None}]}, without)
        svg = [(folder / "reproduction.svg").read_bytes() for folder in (with_text, without)]
        assert svg[0] != svg[1]


def test_score_and_loss_are_in_the_picture(tmp_path):
    drawn = []
    for found in ([[1, 0.1, 2.0], [2, 0.4, 1.5]], [[1, 0.1, 2.0], [2, 0.4, 1.0]], []):
        write({**CONTENT, "picture": "scores", "rows": [{**ROW, "scores": found}]}, tmp_path)
        drawn.append((tmp_path / "reproduction.svg").read_bytes())
    assert len(set(drawn)) == 3


def test_the_table_has_the_median_the_range_and_the_command():
    said = markdown(CONTENT)
    assert "```sh\nedgeveil reproduce toy --seeds 2\n```" in said
    assert (
        "| one row | 0.500 | 0.500 (0.250 to 0.750) | ε = 1 | no proven guarantee | 2 | 3 |" in said
    )


@pytest.mark.parametrize(
    "there", ["", "{", "[1]", '{"experiment": "other", "rows": []}', '{"rows": [{"trial": "x"}]}']
)
def test_where_nothing_is_kept_nothing_is_written(there, tmp_path, capsys):
    page = tmp_path / "page.md"
    if there:
        (tmp_path / "reproduction.json").write_text(there)
    assert cli.main(["reproduce", "toy", "--out", str(tmp_path), "--write", str(page)]) == 2
    assert "holds no table of toy" in capsys.readouterr().err
    assert not page.exists()
