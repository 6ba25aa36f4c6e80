"""The digits as pictures, for quick runs of models that need them."""

from __future__ import annotations

from edgeveil.data.records import Records
from edgeveil.parts.sources.digits import load_digits_split

SOURCE = "python: edgeveil_lab.reproduce.digit_pictures:digits"  # as a job's `data.source`


def digits() -> Records:
    """All of them: x (n, 8, 8) float32 in 0..16."""
    whole, _ = load_digits_split(0)
    return Records(whole.x.reshape(-1, 8, 8), whole.y)
