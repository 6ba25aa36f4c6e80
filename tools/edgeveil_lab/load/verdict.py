"""What must hold after a load test: every upload in its round, the sum right, memory flat."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from edgeveil_lab.load.leader import Totals
from edgeveil_lab.load.rounds import Course

_SUM_SHARE = 0.01  # of what one upload typically adds to the mean


def losses(totals: Totals, course: Course, *, alone: bool) -> dict[str, int]:
    """`lost`: acknowledged and not in the round's commit record, or offered and never answered
    though the device stayed, or what the cloud's count of a round is off by. Of an attempt that
    was given up nothing is lost: it is repeated. `alone`: nobody else's devices took part.
    """
    rows = [(one, totals.rounds.get((one["round"], one["attempt"]))) for one in course.committed]
    told = [(one, row) for one, row in rows if row is not None]
    unanswered = sum(row["unanswered"] for _, row in told)
    unconfirmed = sum(row["unconfirmed"] for _, row in told)
    off = 0
    for one, row in told:
        difference = row["counted"] + row["unconfirmed"] - int(one["uploads"])
        # Records of which no generator heard are lost already; others may upload beside us.
        off += abs(difference) if alone else max(0, difference - row["unconfirmed"])
    return {
        "lost": totals.counts["missing"] + unconfirmed + unanswered + off,
        "unanswered": unanswered,
    }


def sum_matches(totals: Totals, course: Course, values: int) -> bool | None:
    """Whether the cloud's mean of all counted values is that of what the generators sent.

    None where that cannot be told: no round, or uploads of others among them.
    """
    uploads, total = 0, 0.0
    for one in course.committed:
        row = totals.rounds.get((one["round"], one["attempt"]))
        if row is None or row["counted"] != one["uploads"]:
            return None
        uploads, total = uploads + row["counted"], total + row["counted_sum"]
    if not uploads or course.mean_of_values is None:
        return None
    one_adds = 1 / (uploads * math.sqrt(values))
    return abs(total / (uploads * values) - course.mean_of_values) <= _SUM_SHARE * one_adds


def faults(result: Mapping[str, Any]) -> Iterator[str]:
    """Why a test that came to its end did not pass."""
    devices = result["connects"]["devices"]
    if result["lost"] or result["duplicated"]:
        yield f"{devices:,} devices: {result['lost']} lost, {result['duplicated']} duplicated"
    if result.get("sum_matches") is False:
        yield f"{devices:,} devices: the cloud's sum is not that of the counted uploads"
    for name, one in result.get("drift", {}).items():
        if one["verdict"] == "grows":
            yield f"the memory of {name} grows by {one['mib_per_hour']:.1f} MiB an hour"
