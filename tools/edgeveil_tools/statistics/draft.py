"""`edgeveil draft`: the `data` block of a job from a fleet's noised answers, at no further cost."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgeveil.data.schema import DATE_PARTS
from edgeveil.errors import JobFailed, UsageError
from edgeveil.jobs import Job, load_job
from edgeveil.parts.methods.statistics import StatisticsParameters
from edgeveil.registry import nearest
from edgeveil.statistics.answer_text import (
    NoisedCount,
    cells,
    count_text,
    measured,
    number_text,
    price_text,
)
from edgeveil.statistics.answers import MISSING, OTHER, RANKS
from edgeveil.statistics.blocks import vectors
from edgeveil.statistics.questions import AskedColumn
from edgeveil_tools.cli.common import answer
from edgeveil_tools.describe import SIDE, ends_text, wrapped, yaml_text
from edgeveil_tools.result import Result, write_whole, writing

TAIL = 0.005  # share of the values that a range may leave out at each end
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


def drafted(whole: Mapping[str, Any], job: Job, label: str) -> str:
    """Return the YAML of a `data` block. Raises UsageError for a label that was not asked."""
    columns: dict[str, dict[str, Any]] = {}
    for one in whole["answers"]:
        if "column" in one:
            columns.setdefault(one["column"], {})[one["statistic"]] = one
    if label not in columns:
        fix = nearest(label, [*columns])
        raise UsageError("was not asked about", where=f"--label {label}", fix=fix)
    return "\n".join(_lines(whole, job, columns, label)) + "\n"


def _lines(
    whole: Mapping[str, Any], job: Job, columns: Mapping[str, Answers], label: str
) -> Iterator[str]:
    asked, shares = cost_shares(job)
    if asked[label].part not in (None, "class"):
        fix = "name a column, or picture:class"
        raise UsageError("is a part of a column", where=f"--label {label}", fix=fix)
    yield f"# From answers of job {job.job}: {price_text(whole)}. This block costs"
    yield "# nothing further; a column's cost is its share of the answers' squared sensitivity."
    yield "data:"
    yield f"  source: {yaml_text(job.data.source)}"
    records = measured(whole["records"], whole["records_plus_minus"])
    each = float(f"{max(1.0, whole['records'] / whole['uploads']):.2g}")
    yield f"  nominal_records: {each:.0f}   # {records} records on {whole['uploads']} devices"
    yield "  schema:"
    yield "    origin: public   # from noised answers alone"
    yield "    label:"
    pictures = asked[label].part == "class"
    yield f"      {'' if pictures else f'column: {yaml_text(label)}   '}# {_cost([label], shares)}"
    counts, found = _counts(columns[label]), _found(columns[label])
    if found:
        records = " and ".join(count_text(counts[name]) for name in found[:10])
        yield f"      # {records} records; {_why(columns[label], found)}"
        yield from wrapped("      classes: ", found)
        total = sum(counts[name].value for name in found)
        weights = [f"{total / (len(found) * counts[name].value):.3g}" for name in found]
        text = f"train: {{class_weights: [{', '.join(weights)}]}}"
        yield f"      # all classes weigh the same with {text}"
    elif ends := asked[label].number:
        low, high, why = _range(columns[label], ends)
        yield f"      number: {ends_text((low, high))}   # {why}"
    else:
        yield "      # no whole value exceeds the noise: name its classes"
    if pictures:
        yield from _picture(columns, asked, shares)
        return
    schema = job.data.schema_
    if schema is not None and schema.missing:
        yield from wrapped("    missing: ", schema.missing)
    yield "    columns:"
    for column in dict.fromkeys(asked[name].column for name in columns):
        if asked[label].column == column:
            continue
        parts = {asked[name].part: name for name in columns if asked[name].column == column}
        cost, name = _cost(parts.values(), shares), parts.get(None, next(iter(parts.values())))
        of = columns[name]
        if dated := [part for part in DATE_PARTS if part in parts]:
            form, why = f"{{name: {yaml_text(column)}, date: [{', '.join(dated)}]", "its parts"
            if "year" in parts and (ends := asked[parts["year"]].number):
                low, high, why = _range(columns[parts["year"]], ends)
                form += f", years: [{low:.0f}, {max(math.ceil(high), low + 1):.0f}]"
            yield f"    - {form}}}   # {why}; {cost}"
        elif found := _found(of):
            yield f"    - name: {yaml_text(name)}   # {_why(of, found)}; {cost}"
            yield from wrapped("      category: ", found)
        elif "characters" in parts or "exact" not in of.get("values", {"exact": ()}):
            yield f"    - {{name: {yaml_text(column)}, text: {{}}}}   # its words; {cost}"
        elif ends := asked[name].number:
            low, high, why = _range(of, ends)
            form = f"{{name: {yaml_text(name)}, number: {ends_text((low, high))}}}"
            yield f"    - {form}   # {why}; {cost}"
        else:
            yield f"    # {yaml_text(name)} is left out: no value exceeds the noise"


def _cost(names: Iterable[str], shares: Mapping[str, float]) -> str:
    share = float(f"{100 * sum(shares[name] for name in names):.2g}")
    return f"cost {number_text(share)} %"


def _picture(
    columns: Mapping[str, Answers], asked: Mapping[str, AskedColumn], shares: Mapping[str, float]
) -> Iterator[str]:
    """Yield the form of pictures, by the medians of their height, width and channels."""
    parts = {asked[name].part: name for name in columns if asked[name].number is not None}
    known = [columns[name].get("quantiles", {"too_noisy": True}) for name in parts.values()]
    medians = {
        part: int(one["value"][RANKS.index(0.5)])  # a whole number is at its cell's lower end
        for part, one in zip(parts, known, strict=True)
        if not one["too_noisy"]
    }
    if not {"height", "width"} <= medians.keys():
        yield "    # write image: {size: [32, 32]}: no quantiles of height and width are known"
        return
    height, width = medians["height"], medians["width"]
    scale = min(1.0, SIDE / max(height, width, 1))
    channels = 3 if medians.get("channels", 1) > 1 else 1
    size = ", ".join(str(max(1, round(side * scale))) for side in (height, width))
    why = f"medians are {height} and {width}; {_cost(parts.values(), shares)}"
    yield f"    image: {{size: [{size}], channels: {channels}}}   # {why}"


def _counts(of: Answers) -> dict[str, NoisedCount]:
    found = of.get("categories") or of.get("values")
    return {} if found is None else {cell.name: cell for cell in cells(found)}


def _named(of: Answers) -> Iterator[NoisedCount]:
    return (cell for name, cell in _counts(of).items() if name not in (OTHER, MISSING))


def _found(of: Answers) -> list[str]:
    """Return the categories, and values that are whole texts, whose counts exceed their ±."""
    whole = of["values"].get("exact", ()) if "values" in of else _counts(of)
    return [cell.name for cell in _named(of) if cell.value > cell.plus_minus and cell.name in whole]


def _why(of: Answers, found: Sequence[str]) -> str:
    counts = _counts(of)
    other = f", {count_text(counts[OTHER])} others" if OTHER in counts else ""
    return f"{len(found)} of {len([*_named(of)])} exceed the noise{other}"


def _range(of: Answers, ends: tuple[float, float]) -> tuple[float, float, str]:
    """Return a range that leaves out at most TAIL of the values at each end, and why.

    The ends are edges of the histogram's bins, so rounded outward."""
    histogram = of.get("histogram")
    if histogram is None or histogram.get("too_noisy"):
        return *ends, "the range that was asked with"
    edges, shares, off = histogram["edges"], histogram["value"], max(histogram["plus_minus"])
    low, high = _tail(shares, off), len(shares) - _tail(shares[::-1], off)
    error = off * math.sqrt(max(1, min(high - low, len(shares) - high + low)))
    why = f"{100 * min(sum(shares[low:high]), 1.0):.1f} ± {100 * error:.1f} % of the values"
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


def cost_shares(job: Job) -> tuple[dict[str, AskedColumn], dict[str, float]]:
    """Return what was asked of each column, and its share of the squared sensitivity.

    Tables and correlations are in the whole, and no column's. Raises UsageError."""
    train = job.train
    if not isinstance(train, StatisticsParameters):
        raise UsageError("asks nothing", where=job.job, fix="name a job of kind statistics")
    found, total = dict.fromkeys(train.by_name, 0.0), 0.0
    for vector in vectors(train, train.rounds):
        for weight, block in zip(vector.weights, vector.blocks, strict=True):
            squared = (weight * block.whole) ** 2 * block.bound
            total += squared
            of = getattr(block, "columns", ()) or (getattr(block, "column", ""),)
            if len(of) == 1:
                found[of[0]] += squared
    shares = {name: squared / total for name, squared in found.items()}
    return train.by_name, shares
