"""`edgeveil draft`: the `data` block of a job from a fleet's noised answers, at no further cost."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeveil.errors import JobFailed, UsageError
from edgeveil.jobs import Job, load_job
from edgeveil.parts.methods.statistics import StatisticsParameters
from edgeveil.registry import nearest
from edgeveil.statistics.answer_text import (
    cells,
    count_text,
    measured,
    price_text,
)
from edgeveil.statistics.blocks import vectors
from edgeveil_tools.cli.common import answer
from edgeveil_tools.describe import ends_text, wrapped, yaml_text
from edgeveil_tools.result import Result, write_whole, writing

TAIL = 0.005  # share of the values that a range may leave out at each end
_UNNAMED = ("(other)", "(missing)", "(below)", "(above)")
_MOST_CLASSES = 10  # of a guessed label
Answers = Mapping[str, Mapping[str, Any]]  # of one column, by statistic


def command(args: argparse.Namespace) -> int:
    where = args.from_statistics
    if Path(where).exists():
        result = Result.load(where)
        found, job = result.statistics, load_job(result.folder / "job.yaml")
        if found is None:
            raise UsageError("has no answers", where=where, fix="name a run of kind statistics")
    else:
        from edgeveil_tools.cli.jobs import cloud_of
        from edgeveil_tools.statistics.ask import of_cloud

        cloud = cloud_of(args)
        if cloud.job(where)["status"] != "completed":
            raise JobFailed("has not completed", where=where, fix="wait for its end")
        found, job = of_cloud(cloud, where), Job.from_canonical(cloud.content(where))
    text = drafted(found.content, job, args.label)
    if args.out is None:
        return answer(args, [text.rstrip()], {"draft": text})
    with writing(args.out, "name a file that you may write to with --out"):
        write_whole(args.out, text.encode())
    return answer(args, [str(args.out)], {"draft": text, "file": str(args.out)})


def drafted(whole: Mapping[str, Any], job: Job, label: str | None = None) -> str:
    """Return the YAML of a `data` block. Raises UsageError for a label that was not asked."""
    columns: dict[str, dict[str, Any]] = {}
    for one in whole["answers"]:
        if "column" in one:
            columns.setdefault(one["column"], {})[one["statistic"]] = one
    listed = {name: _found(of) for name, of in columns.items()}
    chosen = label or _guess(listed)
    if chosen not in columns:
        fix = nearest(chosen, [*columns])
        raise UsageError("was not asked about", where=f"--label {chosen}", fix=fix)
    return "\n".join(_lines(whole, job, columns, chosen, guessed=label is None)) + "\n"


def _lines(
    whole: Mapping[str, Any],
    job: Job,
    columns: Mapping[str, Answers],
    label: str,
    *,
    guessed: bool,
) -> Iterator[str]:
    shares, train = cost_shares(job), job.train
    ranges = {one.name: one.number for one in getattr(train, "columns", ())}
    records = measured(whole["records"], whole["records_plus_minus"])
    yield f"# From answers of job {job.job}: {price_text(whole)}. This block costs"
    yield "# nothing further; a column's cost is its share of the answers' squared sensitivity."
    yield "data:"
    yield f"  source: {yaml_text(job.data.source)}"
    each = _rounded(whole["records"] / max(1, whole["uploads"]))
    yield f"  nominal_records: {each}   # {records} records on {whole['uploads']} devices"
    yield "  schema:"
    yield "    origin: public   # noised answers, which their ε covers"
    yield "    label:"
    yield f"      column: {yaml_text(label)}{'   # a guess' if guessed else ''}"
    yield from _label(columns[label], ranges[label], _cost(shares, label))
    schema = job.data.schema_
    if schema is not None and schema.missing:
        yield from wrapped("    missing: ", schema.missing)
    yield "    columns:"
    for name, of in columns.items():
        if name == label:
            continue
        if names := _found(of):
            yield f"    - name: {yaml_text(name)}   # {_listed(of, names)}; {_cost(shares, name)}"
            yield from wrapped("      category: ", names)
        elif ends := ranges[name]:
            low, high, why = _range(of, ends)
            form = f"{{name: {yaml_text(name)}, number: {ends_text((low, high))}}}"
            yield f"    - {form}   # {why}; {_cost(shares, name)}"
        else:
            yield f"    # {yaml_text(name)} is left out: too noisy to list its values"


def _label(of: Answers, ends: Any, cost: str) -> Iterator[str]:
    names = _found(of)
    if names:
        counts = _counts(of)
        ordered = sorted((counts[name] for name in names), key=lambda cell: cell.value)
        ends = f"{count_text(ordered[0])} to {count_text(ordered[-1])}"
        yield f"      # {ends} records of a class; {cost}"
        yield from wrapped("      classes: ", names)
        total = sum(counts[name].value for name in names)
        weights = [total / (len(names) * counts[name].value) for name in names]
        text = ", ".join(f"{weight:.3g}" for weight in weights)
        yield f"      # all classes weigh the same with train: {{class_weights: [{text}]}}"
    elif ends:
        low, high, why = _range(of, ends)
        yield f"      number: {ends_text((low, high))}   # {why}; {cost}"
    else:
        yield '      classes: ["no", "yes"]   # too noisy to list'


def _guess(listed: Mapping[str, Sequence[str]]) -> str:
    """Return the last column with few values, or the last one."""
    few = [name for name, names in listed.items() if 2 <= len(names) <= _MOST_CLASSES]
    return [*listed, *few][-1]


def _counts(of: Answers) -> dict[str, Any]:
    found = of.get("categories") or of.get("values")
    return {} if found is None else {cell.name: cell for cell in cells(found)}


def _found(of: Answers) -> list[str]:
    """Return the categories and values whose counts exceed their ±."""
    counts = _counts(of).items()
    return [name for name, c in counts if name not in _UNNAMED and c.value > c.plus_minus]


def _listed(of: Answers, names: Sequence[str]) -> str:
    counts = _counts(of)
    asked = [name for name in counts if name not in _UNNAMED]
    other = f", {count_text(counts['(other)'])} others" if "(other)" in counts else ""
    return f"{len(names)} of {len(asked)} exceed the noise{other}"


def _range(of: Answers, ends: tuple[float, float]) -> tuple[float, float, str]:
    """Return a range that leaves out at most TAIL of the values at each end, and why.

    The ends are edges of the histogram's bins, so rounded outward."""
    histogram, clipped = of.get("histogram"), of.get("clipped")
    if histogram is None or histogram.get("too_noisy"):
        return *ends, "the range that was asked with"
    edges, shares = histogram["edges"], histogram["value"]
    off = max(histogram["plus_minus"])
    low = _tail(shares, off)
    high = len(edges) - 1 - _tail(shares[::-1], off)
    inside = sum(shares[low:high])
    error = off * math.sqrt(max(1, min(high - low, len(shares) - high + low)))
    why = f"{100 * min(inside, 1.0):.1f} ± {100 * error:.1f} % of the values"
    if clipped and clipped["value"] > 2 * clipped["plus_minus"]:
        why += f", {count_text(next(cells(clipped)))} outside the range that was asked with"
    return edges[low], edges[high], why


def _tail(shares: Sequence[float], off: float) -> int:
    """Return how many bins at the beginning hold at most TAIL of the values, or only noise.

    Where noise hides more than TAIL, one bin less."""
    total = 0.0
    for at, share in enumerate(shares[:-1]):
        total += share
        if total > max(TAIL, off * math.sqrt(at + 1)):
            return max(0, at - (off > TAIL))
    return len(shares) - 1


def cost_shares(job: Job) -> dict[str, float]:
    """Return each column's share of the squared sensitivity; those of pairs are not in it."""
    train = job.train
    if not isinstance(train, StatisticsParameters):
        raise UsageError("asks nothing", where=job.job, fix="name a job of kind statistics")
    found: dict[str, float] = {}
    total = 0.0
    for vector in vectors(train, train.rounds):
        for weight, block in zip(vector.weights, vector.blocks, strict=True):
            squared = (weight * block.whole) ** 2 * block.bound
            total += squared
            of = getattr(block, "columns", None) or (block.column,)
            if len(of) == 1:
                found[of[0]] = found.get(of[0], 0.0) + squared
    return {name: squared / total for name, squared in found.items()}


def _cost(shares: Mapping[str, float], name: str) -> str:
    return f"cost {100 * shares.get(name, 0.0):.2g} %"


def _rounded(value: float) -> int:
    """Return a positive number with two digits."""
    step = int(10 ** max(0, len(str(max(1, int(value)))) - 2))
    return max(1, round(value / step) * step)
