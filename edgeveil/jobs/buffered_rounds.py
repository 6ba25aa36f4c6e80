"""Buffered rounds (FedBuff, Nguyen et al. 2022, algorithm 1).

Each round closes with its first `round.buffer` uploads; a late update goes with a later round,
times (1 + τ)^-a for τ rounds between. The device weighs its own update, encrypted for that round,
so the batch does not identify it. A late update is post-processing of a release priced in its own
round (Dwork and Roth 2014, proposition 2.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

from edgeveil.config.base import Mix
from edgeveil.jobs.job import Round
from edgeveil.parts.methods import trains_model
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.selection import rounded_up

if TYPE_CHECKING:
    from edgeveil.jobs.plan import Plan

MAX_STALENESS = 8  # rounds; later updates are dropped
STALENESS_EXPONENT = 0.5


def staleness_weight(staleness: int) -> float:
    return float((1 + staleness) ** -STALENESS_EXPONENT)


def late_rounds(plan: Plan, index: int) -> Iterator[PlannedRound]:
    """Yield the training rounds with updates that may still go with round `index`, newest first."""
    round = plan.round(index)
    if plan.job.round.mode == "buffered" and round.phase == TRAIN:
        earlier = (e for e in plan.all_rounds[: index - 1][::-1] if e.phase == TRAIN)
        oldest = round.number - MAX_STALENESS
        yield from takewhile(lambda e: e.number >= oldest, earlier)


def closing_uploads(round_: Round, asked: int, in_all: int) -> int:
    """Return the uploads that close a round early in a cell with `asked` of `in_all` devices."""
    if round_.mode == "sync" or round_.buffer is None:
        return rounded_up(asked, round_.quorum)
    share = -(-asked * min(round_.buffer, in_all) // in_all)
    return min(asked, max(share, round_.min_batch))


def impossible(plan: Plan, trainers: int | None = None) -> Iterator[Mix]:
    """Yield reasons why rounds cannot be buffered, or `trainers` devices cannot fill them."""
    job, round_ = plan.job, plan.job.round
    if round_.mode == "sync":
        if "buffer" in round_.model_fields_set:
            text = "is only for buffered rounds; set round.mode: buffered, or leave it out"
            yield Mix(("round.buffer", "round.mode"), text)
        return
    least, asked, buffer = round_.min_batch, job.selection.devices, round_.buffer or 0
    if round_.buffer is not None and buffer < least:
        text = f"the proxy hands over {least} or more uploads; set at least {least}"
        yield Mix(("round.buffer", "round.min_batch"), text)
    if asked != "all" and buffer > (selected := rounded_up(asked, job.selection.over_select)):
        text = f"only {selected} devices are selected; set at most {selected}, or select more"
        yield Mix(("round.buffer", "selection.devices", "selection.over_select"), text)
    if job.aggregation.secure:
        text = "a late update is masked for a sum that is already closed; leave secure out"
        yield Mix(("round.mode", "aggregation.secure"), text)
    elif job.aggregation.name != "fedavg":
        text = f"'{job.aggregation.name}' would treat late updates as outliers; use fedavg"
        yield Mix(("round.mode", "aggregation.name"), text)
    if job.infer_every:
        text = "a late update has no inferences and would be recognised; leave the block out"
        yield Mix(("round.mode", "unsupervised"), text)
    if not trains_model(job.train.method):
        text = f"uploads of method '{job.train.method}' are no change of a model; use for example"
        yield Mix(("round.mode", "train.method"), f"{text} sgd or dp_sgd")
    if any(getattr(entry, "composition", "") == "parallel" for entry in job.update):
        text = "composition: parallel hides values among all, late ones are weighed; use sequential"
        yield Mix(("round.mode", "update"), text)
    needed = job.rounds * buffer
    if trainers is not None and (most := trainers * job.max_participations) < needed:
        text = f"{trainers} devices make {most} updates, and {job.rounds} rounds of {buffer} need"
        text += f" {needed}; raise it"
        yield Mix(("privacy.max_participations", "round.buffer", "train.rounds"), text)
