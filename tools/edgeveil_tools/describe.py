"""Draft of a schema from a file of records, for a person to judge.

It is marked `origin: own_records`, which no job may have: a list or a range known only from records
can reveal a single one."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from edgeveil.config.data import TableForm
from edgeveil.config.explain import number
from edgeveil.data.encoding import UNREADABLE
from edgeveil.data.table_form import date_in, number_reader
from edgeveil.errors import DataError
from edgeveil.parts.sources.audio import AUDIO_ENDINGS, AUDIO_FORMATS
from edgeveil.parts.sources.guess import MOSTLY, Guess, guess, mostly, without_units
from edgeveil.parts.sources.images import FORMATS, class_folders, files_below, has_colours
from edgeveil.parts.sources.tables import csv_rows, jsonl_rows, parquet_rows

OF_NUMBER = "in place of classes"  # a draft's remark on a numeric label
MISSING = ("?", "NA", "N/A", "n/a", "NaN", "nan", "null", "None", "-")
_LABELS = ("label", "class", "target", "y", "outcome", "diagnosis", "income")
_FEW = 10  # different texts of a label
_WIDER = 10.0  # times the range of most values: worth a note
LIST = 64  # different texts that make a category; more make a name or a remark
_USUAL = 100  # records of a device
_WIDTH = 100
SIDE = 64  # of a drafted picture
_WORDS = 3  # of a free text, on average
_ROW_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+")
_WITH_UNIT = re.compile(r"[$€£¥] ?[+-]?[\d.,]*\d|[+-]?[\d.,]*\d\s*[^\d\s.,:/-][^\d\s]{0,9}")


@dataclass(frozen=True)
class Draft:
    """The YAML of a `data` block; `notes` tell what was guessed and what is left out, and why.

    `read_as` is the form of a table, None for pictures."""

    text: str
    notes: tuple[str, ...]
    read_as: Guess | None = None

    @property
    def stated(self) -> list[str]:
        """The keys that state a CSV file's form beside its `path`."""
        if self.read_as is None or self.read_as.source != "csv":
            return []
        form = self.read_as.form.model_dump(exclude_defaults=True).items()
        block = ", ".join(f"{key}: {json.dumps(value)}" for key, value in form)
        header = f"header: {json.dumps(self.read_as.header)}"
        return [header, *([f"form: {{{block}}}"] if block else ())]


@dataclass(frozen=True)
class Look:
    """The values of a column, as texts."""

    name: str
    texts: Counter[str]  # of values that are not missing
    gaps: frozenset[str]  # texts of a missing value
    form: TableForm
    records: int = 0

    @cached_property
    def numeric(self) -> bool:
        read = number_reader(self.form)
        return mostly(self.texts, lambda text: not math.isnan(read(text)))

    @cached_property
    def dated(self) -> bool:
        return mostly(self.texts, lambda text: date_in(text, self.form) is not None)

    @property
    def measured(self) -> bool:
        """Whether the values are many numbers that are mostly not whole."""
        fractions = sum(not n.is_integer() for n in self._numbers)
        return self.numeric and len(self.texts) > _FEW and 2 * fractions > len(self._numbers)

    @property
    def prose(self) -> bool:
        given = self.texts.total()
        words = sum(len(text.split()) * count for text, count in self.texts.items())
        return len(self.texts) > given / 2 and words >= _WORDS * given

    @property
    def why_unread(self) -> str:
        """Why no column of a schema reads it, or ""."""
        once = len(self.texts) == self.texts.total()
        if not self.texts:
            return "it is empty"
        if unread := self.texts[UNREADABLE]:
            return f"{unread} values are lists, objects or not readable"
        if mostly(self.texts, lambda text: _WITH_UNIT.fullmatch(text) is not None):
            return "it looks like numbers with a unit; write the numbers alone"
        if not self.prose and (len(self.texts) > LIST or (once and len(self.texts) > _FEW)):
            return f"{len(self.texts)} different texts"
        return ""

    @cached_property
    def _numbers(self) -> list[float]:
        read = number_reader(self.form)
        return sorted(n for text in self.texts.elements() if math.isfinite(n := read(text)))

    @property
    def span(self) -> tuple[float, float]:
        found = self._numbers or [0.0, 1.0]
        return around(found[0], found[-1])

    @property
    def why_wide(self) -> str:
        """Why a range without its few lowest and highest values is much narrower, or ""."""
        found = self._numbers
        few = max(1, len(found) // 100)
        most = found[few:-few] if len(found) > _FEW else found
        if not most or not 0 < most[-1] - most[0] < (found[-1] - found[0]) / _WIDER:
            return ""
        return (
            f"{len(most)} of {len(found)} values are within {ends_text(around(most[0], most[-1]))}"
        )


def describe(path: Path, label: str | None = None, devices: int | None = None) -> Draft:
    """Draft a schema from a table or a folder of files; raises DataError for what is neither."""
    notes: list[str] = []
    if path.is_dir():
        of_files = _of_recordings if files_below(path, AUDIO_ENDINGS) else _of_pictures
        lines, read_as = list(of_files(path, devices, notes)), None
    else:
        read_as = guess(path)
        notes += read_as.notes
        lines = list(_of_table(path, read_as, label, devices, notes))
    lead = [f"# {note[0].upper()}{note[1:]}." for note in notes]
    return Draft("\n".join([lines[0], *lead, *lines[1:]]) + "\n", tuple(notes), read_as)


def looks_of(path: Path, read_as: Guess) -> list[Look]:
    """Return the columns of a table's file. Raises DataError."""
    names, rows = _rows(path, read_as)
    whole = [row for row in rows if len(row) == len(names) and row != names]
    return [
        look_at(name, [row[at] for row in whole], read_as.form) for at, name in enumerate(names)
    ]


def _rows(path: Path, read_as: Guess) -> tuple[list[str], list[list[str]]]:
    """Return names of all columns, and all rows as they are."""
    if read_as.source != "csv":
        return (parquet_rows if read_as.source == "parquet" else jsonl_rows)(path)
    rows = csv_rows(path, read_as.form)
    if read_as.header:
        return rows[0], without_units(rows)[1:]
    width = Counter(map(len, rows)).most_common(1)[0][0]
    return [f"v{at}" for at in range(1, width + 1)], rows


def _of_table(
    path: Path, read_as: Guess, label: str | None, devices: int | None, notes: list[str]
) -> Iterator[str]:
    names, every = _rows(path, read_as)
    rows = [row for row in every if len(row) == len(names) and row != names]
    index = [name for name in names if _ROW_INDEX.fullmatch(name)]
    notes += [f"'{name}' is left out: it looks like a row index of pandas" for name in index]
    counts = Counter(filter(None, names))
    once = [at for at, name in enumerate(names) if counts[name] == 1 and name not in index]
    if not (rows and once):
        raise DataError("holds no records", where=str(path), fix="name a file with some")
    if len(rows) < len(every):
        of_csv = "have another number of cells, or repeat the header"
        why = "are no JSON objects" if read_as.source == "jsonl" else of_csv
        notes.append(f"{len(every) - len(rows)} lines {why}: left out")
    looks = [look_at(names[at], [row[at].strip() for row in rows], read_as.form) for at in once]
    chosen, why = _label(path, looks, label)
    if why:
        notes.append(f"label '{chosen.name}': guessed {why}")
    chosen.texts.pop(UNREADABLE, None)
    if gaps := len(rows) - chosen.texts.total():
        notes.append(f"{gaps} of {len(rows)} records have no label")
    others = [look for look in looks if look is not chosen]
    unread = {look.name: look.why_unread for look in others if not look.numeric and not look.dated}
    notes += [f"'{name}' is left out: {why}" for name, why in unread.items() if why]
    others = [look for look in others if not unread.get(look.name)]
    wide = {look.name: look.why_wide for look in (*others, chosen) if look.numeric}
    notes += [f"'{name}' has a wide range, but {why}" for name, why in wide.items() if why]
    if not others:
        why = "; ".join(note for note in notes if "left out" in note)
        what = f"has no column that can be read{why and f': {why}'}"
        raise DataError(what, where=str(path), fix="write numbers, dates or words of a short list")
    yield from _head(path, len(rows), devices)
    yield "    label:"
    yield f"      column: {yaml_text(chosen.name)}" + ("" if label else "   # a guess")
    if len(chosen.texts) <= LIST and not chosen.measured:
        yield from wrapped("      classes: ", sorted(chosen.texts))
    elif chosen.numeric:
        yield f"      number: {ends_text(chosen.span)}   # {OF_NUMBER}: its range"
    else:
        remark = f"{len(chosen.texts)} different texts: list the classes"
        yield f'      classes: ["no", "yes"]   # {remark}'
    if not read_as.header:
        yield "    # the file has no header: these names are made up"
        yield from wrapped("    header: ", names)
    if missing := sorted({text for look in looks for text in look.gaps}):
        yield from wrapped("    missing: ", missing)
    yield "    columns:"
    for span, alike in groupby(others, lambda look: look.span if look.numeric else None):
        if span is None:
            for look in alike:
                if look.prose and not look.dated:
                    yield f"    - {{name: {yaml_text(look.name)}, text: {{}}}}"
                    continue
                yield from _date(look) if look.dated else _category(look)
        elif len(columns := [look.name for look in alike]) == 1:
            yield f"    - {{name: {yaml_text(columns[0])}, number: {ends_text(span)}}}"
        else:
            remark = f"{len(columns)} columns with the same range"
            yield f"    - number: {ends_text(span)}   # {remark}"
            yield from wrapped("      name: ", columns)


def look_at(name: str, cells: Sequence[str], form: TableForm) -> Look:
    texts = Counter(cells)
    gaps = frozenset(text for text in MISSING if text in texts)
    for text in ("", *gaps):
        texts.pop(text, None)
    return Look(name, texts, gaps, form, len(cells))


def _label(path: Path, looks: list[Look], label: str | None) -> tuple[Look, str]:
    """Return the label's column and why it is guessed, "" for the stated one."""
    if label is None:
        fit = [look for look in looks if look.texts and not look.dated]
        fit = [look for look in fit if UNREADABLE not in look.texts] or looks
        few = [look for look in fit if 2 <= len(look.texts) <= _FEW]
        called = [look for look in few if look.name.casefold() in _LABELS]
        if few:
            return (called[0], "by its name") if called else (few[-1], "by its few values")
        return fit[-1], "as the last column" + " that can be one" * (fit[-1] is not looks[-1])
    found = next((look for look in looks if look.name == label), None)
    if found is None:
        known = ", ".join(look.name for look in looks[:8])
        raise DataError(f"has no column '{label}'", where=str(path), fix=f"known: {known}")
    return found, ""


def ends_text(span: tuple[float, float]) -> str:
    low, high = (number(float(f"{end:g}")) for end in span)
    return f"[{low}, {high}]"


def _category(look: Look) -> Iterator[str]:
    once = sum(count == 1 for count in look.texts.values())
    remark = f"   # {once} of them occur in only one record" if once else ""
    yield f"    - name: {yaml_text(look.name)}{remark}"
    yield from wrapped("      category: ", sorted(look.texts))


def _date(look: Look) -> Iterator[str]:
    found = [date for text in look.texts if (date := date_in(text, look.form)) is not None]
    low, high = min(found)[0], max(found)[0]
    hour = ", hour" * any(date[3] < 24 for date in found)
    parts = f"date: [year, month, weekday{hour}], years: [{low}, {max(high, low + 1)}]"
    yield f"    - {{name: {yaml_text(look.name)}, {parts}}}"


def _of_pictures(folder: Path, devices: int | None, notes: list[str]) -> Iterator[str]:
    from PIL import Image

    classes = [one.name for one in class_folders(folder)]
    sizes: Counter[tuple[int, int]] = Counter()
    coloured = False
    for file in files_below(folder):
        with suppress(Exception), Image.open(file, formats=FORMATS) as image:
            sizes[image.height, image.width] += 1
            coloured |= has_colours(image)
    if not sizes:
        raise DataError("holds no pictures", where=str(folder), fix="put them into class folders")
    notes += _left_out(folder, sizes.total(), "pictures")
    height, width = sizes.most_common(1)[0][0]
    if (longest := max(height, width)) > SIDE:
        height, width = (max(1, round(side * SIDE / longest)) for side in (height, width))
        notes.append(f"size: {longest} pixels a side are too many to learn from, {SIDE} are usual")
    yield from _head(folder, sizes.total(), devices)
    yield from wrapped("    label: {classes: ", classes, end="}")
    remark = f"   # {len(sizes)} sizes: all are scaled to this one" * (len(sizes) > 1)
    yield f"    image: {{size: [{height}, {width}], channels: {3 if coloured else 1}}}{remark}"


def _of_recordings(folder: Path, devices: int | None, notes: list[str]) -> Iterator[str]:
    import soundfile

    rates: Counter[int] = Counter()
    lengths_s = []
    for file in files_below(folder, AUDIO_ENDINGS):
        with suppress(Exception):
            found = soundfile.info(file)
            if found.format in AUDIO_FORMATS:
                rates[found.samplerate] += 1
                lengths_s.append(found.duration)
    if not rates:
        what = "holds no recordings that can be read"
        raise DataError(what, where=str(folder), fix="convert them")
    notes += _left_out(folder, rates.total(), "recordings")
    longest = sorted(lengths_s)[int(MOSTLY * (len(lengths_s) - 1))]
    rate, seconds = min(max(rates.most_common(1)[0][0], 4000), 16_000), _step(4 * longest)
    yield from _head(folder, rates.total(), devices)
    yield from wrapped("    label: {classes: ", [one.name for one in class_folders(folder)], "}")
    remark = f"   # {len(rates)} rates: all are resampled to this one" * (len(rates) > 1)
    yield f"    audio: {{rate_hz: {rate}, seconds: {min(seconds, 30):g}}}{remark}"


def _left_out(folder: Path, read: int, what: str) -> list[str]:
    left_out = sum(one.is_file() for one in folder.rglob("*")) - read
    return [f"{left_out} files are no {what} that are read: left out"] if left_out else []


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
    yield f"  source: {yaml_text(path.stem)}"
    yield f"  nominal_records: {nominal}   # public: about as many as each device has"
    yield "  schema:"
    yield "    origin: own_records   # refused in a job"


def around(low: float, high: float) -> tuple[float, float]:
    """Return a range of round ends."""
    step = _step(high - low)
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return (low, high) if low < high else (low, low + step)


def _step(width: float) -> float:
    """Return the least of 1, 2, 5 times a power of ten that is a quarter of a range or more."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width / 4))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= width / 4)


def yaml_text(name: str) -> str:
    plain = name.replace("_", "").replace("-", "").isalnum() and name[0].isalpha()
    reserved = name.casefold() in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    if plain and name.isascii() and not reserved:
        return name
    return json.dumps(name, ensure_ascii=not name.isprintable())


def wrapped(lead: str, names: Sequence[str], end: str = "") -> Iterator[str]:
    line, indent = f"{lead}[", " " * (len(lead) + 1)
    for at, name in enumerate(names):
        item = yaml_text(name) + (", " if at < len(names) - 1 else "")
        if len(line) + len(item) > _WIDTH and line.strip() != "[":
            yield line.rstrip()
            line = indent
        line += item
    yield f"{line}]{end}"
