"""YAML and JSON that would cost a reader memory: refused with a line and a fix, at a low price."""

import tracemalloc
from itertools import pairwise

import pytest

from edgeveil.config.yaml_tree import TEXT_BYTES
from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job

LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")
)
ROOM = 64 << 20

TEXTS = {
    "a billion laughs": (LAUGHS, "anchors and aliases"),
    "an anchor of itself": ("a: &a [*a]\n", "anchors and aliases"),
    "a merge": ("a: &a {b: 1}\nc: {<<: *a}\n", "anchors and aliases"),
    "deep lists": ("a: " + "[" * 1_000, "more than 32 levels"),
    "deep blocks": ("\n".join(" " * n + "a:" for n in range(200)), "more than 32 levels"),
    "deep keys": ("? " * 1_000 + "a", "more than 32 levels"),
    "a flood of values": ("a: [" + "1," * 20_001 + "]", "more than 20000 values"),
    "a text too long": ("a" * (TEXT_BYTES + 1), "must be at most"),
    "a number too long": ("a: " + "9" * 5_000, "more than 64 characters"),
    "a number that is none": ("a: 1.0e+99999", "finite number"),
    "code": ("a: !!python/name:os.system id", "tags"),
    "binary": ("a: !!binary aGVsbG8=", "tags"),
    "a second document": ("a: 1\n---\nb: 2\n", "not YAML"),
    "control characters": ("a: \x1b[31m", "control character"),
    "letters that turn a line round": ("job: \u202e\u200b\n", "data: is missing"),
}


@pytest.mark.parametrize(("text", "said"), TEXTS.values(), ids=TEXTS)
def test_a_costly_text_is_refused(text, said):
    tracemalloc.start()
    try:
        with pytest.raises(ConfigError, match=said) as caught:
            parse_job(text)
        assert tracemalloc.get_traced_memory()[1] < ROOM
    finally:
        tracemalloc.stop()
    assert all(problem.startswith("(posted):") for problem in caught.value.problems)
    assert str(caught.value).replace("\n", "").isprintable()
