"""docs/protocol.md says what the code does: its drawings are the code's own."""

import re
from pathlib import Path

import pytest

from edgeveil.protocol import cloud_job, device_round, proxy_rounds
from edgeveil.protocol.messages import Body, Header, Message
from tests.drawn import redrawn
from tests.drawn.protocol import PAGE, drawing


@pytest.fixture
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date(page):
    assert redrawn(page, drawing) == page, "run `make docs`"


def test_every_message_and_field_is_described(page):
    page += drawing("headers") + drawing("bodies")  # on the built site
    for kind in (*Message.__args__, *Header.__args__, *Body.__args__):
        assert f"**{kind.__name__}** (`{kind.__struct_config__.tag}`)" in page
        for name in kind.__struct_fields__:
            assert f"\n{name}: " in page


ROOT = Path(__file__).parents[4]
PAGE_THREATS = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
PLACES = (ROOT, ROOT / "edgeveil" / "protocol", ROOT / "tests" / "vectors")
FILES = sorted(
    set(re.findall(r"`((?:\w+/)*\w+\.(?:py|json)|(?:edgeveil|tests)/[\w/]+)`", PAGE_THREATS))
)
TESTS = sorted(set(re.findall(r"`(test_\w+)`", PAGE_THREATS)))
FUNCTIONS = sorted(set(re.findall(r"`(\w+)::(\w+)`", PAGE_THREATS)))
UNDER_ROOT = PAGE_THREATS.partition("## Attacks on the root's metadata")[2].partition("\n## ")[0]
TUF_ATTACKS = (  # section 1.5.2 of its specification
    "arbitrary installation",
    "endless data",
    "fast-forward",
    "freeze",
    "key compromise",
    "mix and match",
    "rollback",
    "slow retrieval",
    "wrong recipient",
    "wrong software",
)


def test_the_page_points_at_code_and_tests():
    assert len(FILES) > 20 and len(TESTS) > 8


@pytest.mark.parametrize("name", FILES)
def test_a_named_file_exists(name):
    assert any((place / name).exists() for place in PLACES)


@pytest.mark.parametrize("name", TESTS)
def test_a_named_test_exists(name):
    assert list(ROOT.glob(f"tests/**/{name}.py"))


@pytest.mark.parametrize(("module", "function"), FUNCTIONS)
def test_a_named_function_exists(module, function):
    texts = [path.read_text(encoding="utf-8") for path in ROOT.glob(f"tests/**/{module}.py")]
    assert any(re.search(rf"^(async )?def {function}\(", text, re.MULTILINE) for text in texts)


def test_every_attack_of_tuf_s_list_has_a_line():
    assert [one for one in TUF_ATTACKS if one not in UNDER_ROOT] == []


@pytest.mark.parametrize("line", re.findall(r"^\| (?!attack|---).*", UNDER_ROOT, re.MULTILINE))
def test_an_attack_on_metadata_names_the_function_that_plays_it(line):
    shown = line.rstrip("| ").rpartition("|")[2].split(",")
    assert all(re.fullmatch(r" ?`\w+::\w+`", one) for one in shown)


TABLES = {
    "device": device_round.DEVICE_STATES,
    "cloud": cloud_job.CLOUD_STATES,
    "collection": proxy_rounds.COLLECTION_STATES,
}


@pytest.mark.parametrize("name", TABLES)
def test_every_state_can_be_reached_and_left(name):
    table = TABLES[name]
    reached, new = set(), {table.start}
    while new:
        reached |= new
        new = {to for (state, _), to in table.table.items() if state in reached} - reached
    assert reached == set(type(table.start))
    assert {state for state, _ in table.table} == reached
