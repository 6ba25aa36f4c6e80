"""Attacks on `statistics`: each statistic by the records that move its answer the most.

A device's records are read from rows of text. The attacker is the cloud: it chooses the broadcasts,
and sees one device's uploads of all exchanges or, with shared noise, the sum of `honest` ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.encoding import RowEncoder
from edgeveil.data.records import Records
from edgeveil.parts.features import Identity, IdentityParameters
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods.statistics import (
    SUMS,
    StatisticsCloud,
    StatisticsDevice,
    StatisticsParameters,
)
from edgeveil.parts.round import PlannedRound, Tensors
from edgeveil.privacy.accountant import epsilon
from edgeveil.privacy.events import as_summed
from edgeveil_lab.audit.mechanism_attacks import (
    MANY,
    Attack,
    Hits,
    claims_with_bits,
    fresh_noise,
    gaussian_law,
    low_bits,
)
from edgeveil_lab.audit.statistics import gaussian_threshold

MECHANISM, HONEST = "statistics", 4
MOST = 5_000  # runs of an attack on one statistic
Rows = Sequence[tuple[str, ...]]
_AGE = {"name": "age", "number": [0, 100], "bins": 4}
_SEX = {"name": "sex", "category": ["f", "m"]}
PAIR = {"columns": [_AGE, _SEX], "tables": [["age", "sex"]]}
ADDED, OTHERS = [("100", "m")], [("50", "f"), ("20", "m")]
ALL = {**PAIR, "rounds": 2}


def _number(*asked: str) -> dict[str, Any]:
    return {"columns": [{**_AGE, "ask": asked}]}


def _text(**form: Any) -> dict[str, Any]:
    return {"columns": [{"name": "said", **form}], "rounds": 4 if "values" in form else 1}


CASES: dict[str, tuple[Mapping[str, Any], Rows, Rows]] = {  # question, added and other records
    "categories": ({"columns": [_SEX]}, [("m",)], [("f",)]),
    "a missing value": (_number(), [("x",)], [("20",)]),
    "a histogram": (_number("histogram"), [("100",)], [("20",)]),
    "quantiles": (_number("quantiles"), [("7",)], [("20",)]),
    "a mean": (_number("mean"), [("1e9",)], [("20",)]),
    "a deviation": (_number("deviation"), [("-1e9",)], [("20",)]),
    "a table": (PAIR, ADDED, OTHERS),
    "a correlation": (
        {"columns": [_AGE, {**_AGE, "name": "pay"}], "correlations": [["age", "pay"]]},
        [("200", "-3")],
        [("50", "20")],
    ),
    "values that nobody listed": (_text(values={"length": 2}), [("yes",)], [("no",)]),
    "words": (_text(values={"length": 2, "words": 2}), [("no, yes",)], [("no no",)]),
    "text lengths": (_text(number=[0, 9], part="characters"), [("y" * 20,)], [("no",)]),
    "a part of a date": (_text(part="month", ask=["histogram"]), [("2026-12-01",)], [("never",)]),
    "a filter": ({**PAIR, "where": "age >= 60 and sex = m"}, ADDED, OTHERS),
}


def statistics_attack(
    title: str,
    runs: int,
    asked: Mapping[str, Any],
    added: Rows,
    others: Rows = (),
    *,
    unit: Literal["record", "person", "device"] = "record",
    honest: int = 0,
) -> Attack:
    """Build a likelihood-ratio attack on the noised sums of all exchanges of a job.

    `added` are one record, or all of one person or device."""
    parameters = StatisticsParameters.model_validate(asked)
    context = MethodContext(
        epsilon=4.0,
        delta=1e-5,
        max_participations=parameters.rounds,
        classes=2,
        input_shape=(parameters.records_schema.width,),
        features=Identity(IdentityParameters()),
        nominal_records=9,
        devices=4,
        honest=honest,
        unit=unit,
    )
    device, cloud = StatisticsDevice(parameters, context), StatisticsCloud(parameters, context)
    encoder = RowEncoder(
        parameters.records_schema, [one.column for one in parameters.columns], "audit"
    )
    for row in [*others, *added]:
        encoder.add(row)
    whose = np.repeat([0, 1], [len(others), len(added)])[:, None].astype(np.float32)
    present = replace(encoder.encoded().records, stored=whose)
    empty, worlds = present.at(whose[:, 0] > 1), [present.at(whose[:, 0] < 1), present]
    state, exchanges = cloud.initial_state(), []
    laws = [gaussian_law(as_summed(event)) for event in device.asking.events]
    for round, law in zip(cloud.plan(), laws, strict=True):
        package, room = cloud.package(state, round), device.asking.room(round)
        vector = device.asking.vector(round).about(package)
        without, moved = (device.steps(vector, held, law, room) for held in worlds)
        exchanges.append((round, package, without, (moved - without).astype(np.float64)))
        state = cloud.absorb(state, round, {SUMS: moved}, 1)  # the added records' own broadcasts
    gaps = [gap for *_, gap in exchanges]
    variances = (law.sigma_squared * (gap @ gap) for law, gap in zip(laws, gaps, strict=True))
    spread = math.sqrt(sum(variances))
    edge, delta = gaussian_threshold(math.hypot(*(law.mu for law in laws)), runs)

    def observed(round: PlannedRound, package: Tensors, held: Records) -> NDArray[np.int64]:
        every = [held, *[empty] * (honest - 1)]
        sent = [device.answer(round, package, one, fresh_noise()).segments[SUMS] for one in every]
        total: NDArray[np.int64] = np.sum(sent, axis=0, dtype=np.int64)
        return total

    def play(present: bool, count: int) -> Hits:
        hits = list[NDArray[np.bool_]]()
        for _ in range(count):
            seen = [observed(round, package, worlds[present]) for round, package, *_ in exchanges]
            moved = sum(
                float((one - without).astype(np.float64) @ gap)
                for one, (*_, without, gap) in zip(seen, exchanges, strict=True)
            )
            odd, off = low_bits(seen[0][:1], laws[0].grid_bits)
            hits.append(np.array([moved / spread >= edge, odd[0], off[0]]))
        return np.stack(hits, axis=1)

    claims = claims_with_bits("all exchanges", epsilon(device.asking.events, delta).epsilon, delta)
    return Attack(MECHANISM, title, claims, play, runs)


def statistics_attacks(runs: int) -> tuple[Attack, ...]:
    few, (added, others), person = min(runs, MOST), (ADDED, OTHERS), [*ADDED] * MANY
    of = f" of {MANY} records"
    return (
        *(statistics_attack(title, few, *case) for title, case in CASES.items()),
        statistics_attack("all at once", runs, ALL, added, others),
        statistics_attack(
            "all at once, shared noise", runs // 2, ALL, added, others, honest=HONEST
        ),
        statistics_attack(f"all at once, a person{of}", few, ALL, person, others, unit="person"),
        statistics_attack(f"all at once, a device{of}", few, ALL, person, unit="device"),
    )
