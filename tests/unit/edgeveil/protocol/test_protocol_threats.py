"""Every file and test that docs/threat-model.md points at is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
PLACES = (ROOT, ROOT / "edgeveil" / "protocol", ROOT / "tests" / "vectors")
FILES = sorted(set(re.findall(r"`((?:\w+/)*\w+\.(?:py|json)|(?:edgeveil|tests)/[\w/]+)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))


def test_the_page_points_at_code_and_tests():
    assert len(FILES) > 20 and len(TESTS) > 8


@pytest.mark.parametrize("name", FILES)
def test_a_named_file_exists(name):
    assert any((place / name).exists() for place in PLACES)


@pytest.mark.parametrize("name", TESTS)
def test_a_named_test_exists(name):
    assert list(ROOT.glob(f"tests/**/{name}.py"))
