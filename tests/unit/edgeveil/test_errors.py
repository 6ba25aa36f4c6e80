"""The text of an error, as a user reads it."""

import pytest

from edgeveil.errors import EdgeVeilError


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("is cut off", "a.npz: is cut off. copy it again"),
        ("ended early.", "a.npz: ended early. copy it again"),
        ("are the files swapped?", "a.npz: are the files swapped? copy it again"),
    ],
)
def test_place_fault_and_fix_are_sentences(what, text):
    assert str(EdgeVeilError(what, where="a.npz", fix="copy it again")) == text
