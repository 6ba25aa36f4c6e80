"""Every file and test that docs/threat-model.md points at is there, down to the test's function."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
PLACES = (ROOT, ROOT / "edgeveil" / "protocol", ROOT / "tests" / "vectors")
FILES = sorted(set(re.findall(r"`((?:\w+/)*\w+\.(?:py|json)|(?:edgeveil|tests)/[\w/]+)`", PAGE)))
TESTS = sorted(set(re.findall(r"`(test_\w+)`", PAGE)))
FUNCTIONS = sorted(set(re.findall(r"`(\w+)::(\w+)`", PAGE)))
UNDER_ROOT = PAGE.partition("## Attacks on the root's metadata")[2].partition("\n## ")[0]
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
