"""When an answer leaves: fixed as the round's package arrives, before a record is read.

A moment that followed from the work would show how long that took, and so tell about the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Of the time there is. Between the two an answer is put into the ledger and sealed, also one that
# is there only because the work was ended; what comes after is for leaving, spread by chance, so
# that a fleet's uploads do not come all at once.
WORK_SHARE, LEAVE_SHARE = 3 / 4, 7 / 8


@dataclass(frozen=True)
class Moment:
    """Of one answer, in the machine's time: work may take `allowed_s` from `begun_s` on, and what
    there is then leaves at `leaves_s`. Without a budget both are free."""

    begun_s: float = 0.0
    allowed_s: float = math.inf
    leaves_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Seconds until it leaves."""
        return max(0.0, self.leaves_s - now_s)


def moment(begun_s: float, budget_s: float, cover_s: float, chance: float) -> Moment:
    """The moment of an answer to a package that came at `begun_s`.

    `budget_s` is the job's (0: a job that is not known here), `cover_s` the window of cover traffic
    (0: there is none), `chance` a draw from [0, 1). Under cover all answers and dummies leave in
    the window's second half, so its first half is all there is for work.
    """
    if cover_s:
        half_s = cover_s / 2
        allowed_s = min(budget_s or half_s, half_s) * WORK_SHARE
        return Moment(begun_s, allowed_s, begun_s + half_s + chance * half_s)
    if not budget_s:
        return Moment(begun_s, math.inf, begun_s)
    leaves = LEAVE_SHARE + chance * (1 - LEAVE_SHARE)
    return Moment(begun_s, budget_s * WORK_SHARE, begun_s + budget_s * leaves)
