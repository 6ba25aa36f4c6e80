"""docs/protocol.md says what the code does: its drawings are the code's own."""

from __future__ import annotations

import re

import pytest

from edgeveil.errors import UsageError
from edgeveil.protocol import cloud_job, device_round, proxy_rounds
from edgeveil.protocol.messages import Body, Header, Message
from edgeveil.transport.link import Topics
from tests.drawn import redrawn
from tests.drawn.protocol import BOUNDS, PAGE, drawing

TOPICS = Topics()


@pytest.fixture
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_the_page_is_up_to_date(page):
    assert redrawn(page, drawing) == page, "run `make docs`"


def test_every_drawing_is_on_the_page(page):
    drawn = set(re.findall(r"<!-- drawn: (\w+) -->", page))
    assert drawn == {
        *("device", "collection", "cloud", "bounds"),
        *("messages", "shared", "headers", "bodies"),
    }
    for table in (
        device_round.DEVICE_STATES,
        proxy_rounds.COLLECTION_STATES,
        cloud_job.CLOUD_STATES,
    ):
        for (state, how), to in table.table.items():
            assert f"{state.value} --> {to.value}: {how}" in page


def test_a_stale_drawing_is_seen(page):
    assert redrawn(page.replace("idle --> fetching", "idle --> working"), drawing) == page


def test_every_message_and_field_is_described(page):
    for kind in (*Message.__args__, *Header.__args__, *Body.__args__):
        assert f"**{kind.__name__}** — tag `{kind.__struct_config__.tag}`" in page
        for name in kind.__struct_fields__:
            assert f"| `{name}` |" in page


@pytest.mark.parametrize("party", BOUNDS)
def test_every_bound_is_listed(party):
    for name in BOUNDS[party].__dataclass_fields__:
        assert f"| {party} | `{name}` |" in drawing("bounds")


def test_the_topics_are_the_code_s(page):
    placeholder = "{device_id}"
    for topic in (
        TOPICS.all_down,
        TOPICS.cloud_out,
        TOPICS.cloud_in,
        TOPICS.device_up(placeholder),
        TOPICS.device_down(placeholder),
    ):
        assert f"`{topic}`" in page


def test_an_unknown_drawing_is_named():
    with pytest.raises(UsageError, match="'moon'"):
        drawing("moon")
