"""Draft of a schema from a file of records, for a person to judge.

It is marked `origin: own_records`, which no job may have: a list or a range known only from records
can reveal a single one."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from edgeveil.config.explain import number
from edgeveil.data.encoding import number_in
from edgeveil.errors import DataError
from edgeveil.parts.sources.images import class_folders, pictures_below
from edgeveil.parts.sources.tables import csv_rows, parquet_rows

OF_NUMBER = "in place of classes"  # a draft's remark on a numeric label
_MISSING = ("?", "NA", "N/A", "NaN", "nan", "null", "None", "-")
_LABELS = ("label", "class", "target", "y", "outcome", "diagnosis", "income")
_FEW = 10  # different texts of a label
_LIST = 64  # different texts that make a category; more make a name or a remark
_MOSTLY = 0.95
_USUAL = 100  # records of a device
_WIDTH = 100


@dataclass(frozen=True)
class _Look:
    name: str
    texts: Counter[str]  # of values that are not missing
    gaps: frozenset[str]  # texts of a missing value

    @property
    def numeric(self) -> bool:
        given = self.texts.total()
        numbers = sum(n for text, n in self.texts.items() if not math.isnan(number_in(text)))
        return given > 0 and numbers >= _MOSTLY * given

    @property
    def span(self) -> tuple[float, float]:
        found = [value for text in self.texts if math.isfinite(value := number_in(text))]
        low, high = min(found, default=0.0), max(found, default=1.0)
        step = _step(high - low)
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
        return (low, high) if low < high else (low, low + step)


def describe(path: Path, label: str | None = None, devices: int | None = None) -> str:
    """Draft the YAML of a `data` block from a table or a picture folder; raises DataError."""
    lines = _of_pictures(path, devices) if path.is_dir() else _of_table(path, label, devices)
    return "\n".join(lines) + "\n"


def _of_table(path: Path, label: str | None, devices: int | None) -> Iterator[str]:
    named, rows = parquet_rows(path) if path.suffix == ".parquet" else csv_rows(path)
    if not rows:
        raise DataError("holds no records", where=str(path), fix="name a file with some")
    width = Counter(map(len, rows)).most_common(1)[0][0]
    names = named or [f"v{at}" for at in range(1, width + 1)]
    rows = [row for row in rows if len(row) == len(names)]
    looks = [_look(name, [row[at].strip() for row in rows]) for at, name in enumerate(names)]
    chosen = _label(path, looks, label)
    yield from _head(path, len(rows), devices)
    yield "    label:"
    yield f"      column: {_text(chosen.name)}" + ("" if label else "   # a guess")
    if len(chosen.texts) <= _LIST:
        yield from _wrapped("      classes: ", sorted(chosen.texts))
    elif chosen.numeric:
        yield f"      number: {_ends(chosen.span)}   # {OF_NUMBER}: its range"
    else:
        remark = f"{len(chosen.texts)} different texts: list the classes"
        yield f'      classes: ["no", "yes"]   # {remark}'
    if not named:
        yield "    # the file has no header: these names are made up"
        yield from _wrapped("    header: ", names)
    if missing := sorted({text for look in looks for text in look.gaps}):
        yield from _wrapped("    missing: ", missing)
    yield "    columns:"
    others = [look for look in looks if look is not chosen]
    for span, alike in groupby(others, lambda look: look.span if look.numeric else None):
        if span is None:
            for look in alike:
                yield from _category(look)
        elif len(columns := [look.name for look in alike]) == 1:
            yield f"    - {{name: {_text(columns[0])}, number: {_ends(span)}}}"
        else:
            remark = f"{len(columns)} columns with the same range"
            yield f"    - number: {_ends(span)}   # {remark}"
            yield from _wrapped("      name: ", columns)


def _look(name: str, cells: Sequence[str]) -> _Look:
    texts = Counter(cells)
    gaps = frozenset(text for text in _MISSING if text in texts)
    for text in ("", *gaps):
        texts.pop(text, None)
    return _Look(name, texts, gaps)


def _label(path: Path, looks: list[_Look], label: str | None) -> _Look:
    if label is None:
        few = [look for look in looks if 2 <= len(look.texts) <= _FEW]
        called = [look for look in few if look.name.casefold() in _LABELS]
        return (called or few[-1:] or looks[-1:])[0]
    found = next((look for look in looks if look.name == label), None)
    if found is None:
        known = ", ".join(look.name for look in looks[:8])
        raise DataError(f"has no column '{label}'", where=str(path), fix=f"known: {known}")
    return found


def _ends(span: tuple[float, float]) -> str:
    low, high = (number(float(f"{end:g}")) for end in span)
    return f"[{low}, {high}]"


def _category(look: _Look) -> Iterator[str]:
    if not 0 < len(look.texts) <= _LIST:
        why = f"{len(look.texts)} different texts" if look.texts else "it is empty"
        yield f"    # {_text(look.name)} is left out: {why}"
        return
    once = sum(count == 1 for count in look.texts.values())
    remark = f"   # {once} of them occur in only one record" if once else ""
    yield f"    - name: {_text(look.name)}{remark}"
    yield from _wrapped("      category: ", sorted(look.texts))


def _of_pictures(folder: Path, devices: int | None) -> Iterator[str]:
    from PIL import Image

    classes = [one.name for one in class_folders(folder)]
    sizes: Counter[tuple[int, int]] = Counter()
    coloured = False
    for file in pictures_below(folder):
        with suppress(Exception), Image.open(file, formats=("PNG", "JPEG")) as image:
            sizes[image.height, image.width] += 1
            coloured |= image.mode not in ("1", "L", "LA", "I", "I;16")
    if not sizes:
        raise DataError("holds no pictures", where=str(folder), fix="put them into class folders")
    height, width = sizes.most_common(1)[0][0]
    yield from _head(folder, sizes.total(), devices)
    yield from _wrapped("    label: {classes: ", classes, end="}")
    remark = f"   # {len(sizes)} sizes: all are scaled to this one" * (len(sizes) > 1)
    yield f"    image: {{size: [{height}, {width}], channels: {3 if coloured else 1}}}{remark}"


def _head(path: Path, records: int, devices: int | None) -> Iterator[str]:
    nominal = _USUAL
    if devices is not None:  # about as many as each of them gets, as a round number
        each = max(1, 4 * records // (5 * devices))
        step = int(10 ** max(0, len(str(each)) - 2))
        nominal = each // step * step
    yield f"# Drafted by `edgeveil` from {path.name}."
    yield "# A job is public, and a list or range taken from records can reveal one. Replace"
    yield "# each value that you know only from the records, then set origin: public."
    yield "data:"
    yield f"  source: {_text(path.stem)}"
    yield f"  nominal_records: {nominal}   # public: about as many as each device has"
    yield "  schema:"
    yield "    origin: own_records   # refused in a job"


def _step(width: float) -> float:
    """Return the least of 1, 2, 5 times a power of ten that is a quarter of a range or more."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width / 4))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= width / 4)


def _text(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").isalnum() and name[0].isalpha()
    reserved = name.casefold() in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    return name if plain and name.isascii() and not reserved else json.dumps(name)


def _wrapped(lead: str, names: Sequence[str], end: str = "") -> Iterator[str]:
    line, indent = f"{lead}[", " " * (len(lead) + 1)
    for at, name in enumerate(names):
        item = _text(name) + (", " if at < len(names) - 1 else "")
        if len(line) + len(item) > _WIDTH and line.strip() != "[":
            yield line.rstrip()
            line = indent
        line += item
    yield f"{line}]{end}"
