"""docs/protocol.md says what the code does: its drawings are the code's own."""

import re
from pathlib import Path

from edgeveil.protocol.messages import Body, Header, Message
from tests.drawn import redrawn
from tests.drawn.protocol import PAGE, drawing


def test_the_page_is_up_to_date_and_describes_every_message_and_field():
    page = PAGE.read_text(encoding="utf-8")
    assert redrawn(page, drawing) == page, "run `make docs`"
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


def test_what_the_page_names_exists():
    assert len(FILES) > 20 and len(TESTS) > 8
    assert [one for one in FILES if not any((place / one).exists() for place in PLACES)] == []
    assert [one for one in TESTS if not list(ROOT.glob(f"tests/**/{one}.py"))] == []
    for module, function in FUNCTIONS:
        texts = [path.read_text(encoding="utf-8") for path in ROOT.glob(f"tests/**/{module}.py")]
        defined = re.compile(rf"^(async )?def {function}\(", re.MULTILINE)
        assert any(defined.search(text) for text in texts), (module, function)
