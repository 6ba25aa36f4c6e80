"""Checks of a device's records before it enrols; results never leave the owner's console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from edgeveil.data.anomaly import anomalous, learned_from
from edgeveil.data.encoding import ColumnTally, Encoded
from edgeveil.data.records import Records, flat_rows
from edgeveil.data.schema import DATE_PARTS, Column, DataSchema
from edgeveil.data.text import LETTERS


@dataclass(frozen=True)
class DataReport:
    """Counts over one device's records, and one line per problem."""

    records: int
    training: int
    evaluation: int
    shape: tuple[int, ...]
    not_learned: int  # anomalous records of an anomaly job
    usable: int  # records used for learning
    histogram: Mapping[int, int]  # usable records by class
    problems: list[str]


def check_records(
    training: Records,
    evaluation: Records,
    *,
    classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    input_range: tuple[float, float] | None = None,
    anomaly: bool = False,
) -> DataReport:
    shape, wanted = tuple(training.x.shape[1:]), input_shape and tuple(input_shape)
    y = np.concatenate([training.y, evaluation.y])
    rows = [flat_rows(part.x) for part in (training, evaluation)]
    finite = np.concatenate([np.isfinite(one).all(axis=1) for one in rows])
    outside = (y < 0) if classes is None else (y < 0) | (y >= classes)
    if anomaly:
        outside = ~(learned_from(y) | anomalous(y))
    low, high = input_range or (-np.inf, np.inf)
    beyond = np.concatenate([((one < low) | (one > high)).any(axis=1) for one in rows])
    usable = finite & ~outside & (wanted in (None, shape))
    labels, counts = np.unique(y[usable], return_counts=True)
    scale = "hold values beyond the job's input_scale, or its tokens: check units and vocabulary"
    found = (
        ((~finite).sum(), "records hold NaN or an infinity: they are dropped"),
        (outside.sum(), "labels are outside the classes, missing or no number: dropped"),
        ((beyond & finite).sum(), f"records {scale}"),
    )
    problems = [f"{count} {text}" for count, text in found if count]
    if wanted not in (None, shape):
        text = f"a record has shape {shape}, the job requires {wanted}: no record can be used"
        problems.insert(0, text)
    if not usable.any():
        problems.append("no record is usable: this device would upload only noise")
    return DataReport(
        records=len(y),
        training=len(training),
        evaluation=len(evaluation),
        shape=shape,
        not_learned=int(anomalous(y).sum()) if anomaly else 0,
        usable=int(usable.sum()),
        histogram=dict(zip(labels.tolist(), counts.tolist(), strict=True)),
        problems=problems,
    )


_NEARLY_ALL = 0.9


def schema_problems(schema: DataSchema, found: Encoded) -> list[str]:
    """Return deviations of a table from its schema, for the owner's console alone."""
    columns = [one for one in schema.columns or () for _ in one.names]
    pairs = zip(found.columns, columns, strict=False)  # none of pictures
    lines = [line for one, column in pairs for line in _column_problems(one, column)]
    lines += found.remarks
    if found.unknown_labels:
        are = f"none of the classes {', '.join(schema.label.names[:8])}"
        if schema.target is not None:
            are = "missing or no number"
        elif schema.anomaly:
            are = "neither normal nor anomalous by the schema"
        lines.append(
            f"{found.unknown_labels} of {len(found.records)} labels in column"
            f" '{schema.label.column}' are {are}: dropped"
        )
    return lines


def _column_problems(one: ColumnTally, column: Column) -> Iterator[str]:
    given, (low, high) = one.rows - one.missing, column.number or column.years or (0, 0)
    what = "dates" if column.date or column.part in DATE_PARTS else "numbers"
    outside = one.unreadable + one.clipped + one.unknown
    nearly = outside >= _NEARLY_ALL * max(given, 1)
    clipped, units = f"lie outside {low:g} to {high:g}: clipped", "check the units"
    unknown, spelling = "are not among its categories: read as unknown", "check the list's spelling"
    if column.text is not None or column.tokens is not None:
        longest = f"{LETTERS} characters" if column.text is not None else f"{column.width} tokens"
        clipped, units = f"have more than {longest}: cut there", "are they whole documents?"
        unknown = "have no token of the vocabulary: read as unknown"
        spelling = "is it of the texts' language?"
    for count, text, fix in (
        (one.unreadable, f"are no {what}: read as missing", "is it a category, or has it a unit?"),
        (one.clipped, clipped, units),
        (one.unknown, unknown, spelling),
    ):
        if count:
            advice = f"; {fix}" if nearly else ""
            yield f"column '{one.name}': {count} of {given} values {text}{advice}"
