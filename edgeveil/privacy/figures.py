"""ε and δ as text: rounded up to the digits that are shown, and what is left of a limit down.

Here is also decided which ε is told with the words that it protects nothing.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

DIGITS = 4
HAIR = 1.0 - 2.0**-40  # room for the rounding of a sum of shares of ε
ROUND_UP = 1.0 + 1e-9  # covers the float64 rounding of a computed ε or δ
# Relative: what turning exact sums and decimals into float64 may have added, a few last bits.
_SLACK = Decimal(2) ** -50

PEOPLE_ALIVE = 8.2e9  # United Nations, World Population Prospects 2024
# ε multiplies an observer's odds by e^ε at most. From here on, who takes one person of all alive by
# chance may be more sure afterwards than not that it is the right one: the bound rules out nothing
# that could be wanted. Below, it is still for the reader to judge.
PROTECTS_NOTHING_FROM = math.log(PEOPLE_ALIVE)  # 22.8
PROTECTS_NOTHING = "so large that it protects nothing"


def protects_nothing(epsilon: float) -> bool:
    """Whether a guarantee with this ε is one in name only."""
    return epsilon >= PROTECTS_NOTHING_FROM


def worth(epsilon: float) -> str:
    """What stands behind a printed ε: `, so large that it protects nothing`, or nothing."""
    return f", {PROTECTS_NOTHING}" if protects_nothing(epsilon) else ""


def up(value: float, digits: int = DIGITS) -> str:
    """The least number of so many significant digits that is not below `value`: 7.9994 is `8`."""
    return _rounded(value, digits, ROUND_CEILING, 1 - _SLACK)


def down(value: float, digits: int = DIGITS) -> str:
    """The same from below, for what a limit still allows."""
    return _rounded(value, digits, ROUND_FLOOR, 1 + _SLACK)


def _rounded(value: float, digits: int, rounding: str, slack: Decimal) -> str:
    if not math.isfinite(value):
        return f"{value:g}"
    context = Context(prec=digits, rounding=rounding)
    return f"{float(context.plus(Decimal(value) * slack)):.{digits}g}"
