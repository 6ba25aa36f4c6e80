"""`edgeveil init`: a job with made-up records, or drafted from own ones, by `templates/init`."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import UsageError, needs_extra
from edgeveil.logs import printable
from edgeveil.parts.sources.audio import AUDIO_ENDINGS
from edgeveil.parts.sources.images import files_below
from edgeveil_tools.cli.common import answer
from edgeveil_tools.describe import OF_NUMBER, describe
from edgeveil_tools.result import write_whole, writing

_TEMPLATES = Path(__file__).parents[1] / "templates" / "init"
_RECORDS = 1500
_SIDE = 16  # pixels of a picture
_SEED = 2025


def command(args: argparse.Namespace) -> int:
    folder = args.out or Path(f"my-{args.records.stem if args.records else args.kind}")
    notes: tuple[str, ...] = ()
    if args.records is not None:
        then, notes = write_from(args.records, folder, args.label)
        hint = "judge each list and range of its schema, then write origin: public"
    elif args.label is not None:
        raise UsageError("needs a file with this column", where="--label", fix="add --from FILE")
    else:
        then, hint = write(args.kind, folder), "see README.md in its folder"
    line = f"wrote {folder / 'job.yaml'}: {hint}. Next:\n\n  {then}"
    for note in notes:
        print(printable(f"edgeveil: {args.records}: {note}"), file=sys.stderr)
    plain = {"job": str(folder / "job.yaml"), "next": then, "notes": notes}
    return answer(args, [line], plain)


def write(kind: str, folder: Path) -> str:
    """Write the folder of one kind; returns its command, raises UsageError for files there."""
    texts = {one.name: one.read_text("utf-8") for one in sorted((_TEMPLATES / kind).iterdir())}
    texts["README.md"] = texts["README.md"].replace("DIR/", f"{folder}/")
    made = {name: text.encode() for name, text in texts.items()}
    _write_new(folder, {**made, **_RECORDS_OF[kind]()})
    return "edgeveil " + texts["README.md"].partition("    edgeveil ")[2].partition("\n")[0]


def _write_new(folder: Path, files: dict[str, bytes]) -> None:
    for name in files:
        if (folder / name).exists():
            fix = "name another folder with --out, or move it away"
            raise UsageError("already exists", where=str(folder / name), fix=fix)
    with writing(folder):
        for name, raw in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, raw)


_OF_TABLE = """
  - {name: identity}        # the columns as the schema scales them"""
_OF_PICTURES = """
  - {name: gabor, input_scale: 255}     # fixed and public, computed on the box
  - {name: random, dimension: 200}"""
_OF_RECORDINGS = """
  - {name: pictures}        # loudness by pitch and time, as a picture"""
_WITHOUT_CLASSES = """
unsupervised: {eval_type: NOT_EVAL}       # that is about classes
"""
DEVICES = 20
_NAME = re.compile(r"[^a-z0-9_-]+")


def write_from(
    records: Path, folder: Path, label: str | None = None
) -> tuple[str, tuple[str, ...]]:
    """Write a job drafted from records; returns a command, and notes on what was guessed.

    Raises UsageError, or DataError for what is no table and no folder of pictures."""
    draft = describe(records, label, devices=DEVICES)
    read_as = draft.read_as
    source, what, features = "images", "the class of a picture", _OF_PICTURES
    if read_as is not None:
        source, what, features = read_as.source, "the label of a record", _OF_TABLE
    elif files_below(records, AUDIO_ENDINGS):
        source, what, features = "audio", "the class of a recording", _OF_RECORDINGS
    text = (_TEMPLATES.parent / "job_of_records.yaml").read_text("utf-8")
    text = text.format(
        what=what,
        file=records.name,
        job=_NAME.sub("_", records.stem.lower()).strip("_")[:64] or "mine",
        devices=DEVICES,
        data=draft.text,
        evaluation=_WITHOUT_CLASSES if OF_NUMBER in draft.text else "",
        features=features,
        source=source,
        header="".join(f"\n    {line}" for line in draft.stated),
        path=json.dumps(os.path.relpath(records, folder), ensure_ascii=False),
    )
    _write_new(folder, {"job.yaml": text.encode()})
    return f"edgeveil check {folder / 'job.yaml'}", draft.notes


def _fruit() -> dict[str, bytes]:
    """Return scores, 0 to 10 in tenths, of apples, pears and quinces."""
    chance = np.random.default_rng(_SEED)
    called = ("apple", "pear", "quince")
    usual = [[6.5, 4.5, 7.0, 5.0, 5.5], [7.5, 2.5, 4.0, 5.5, 3.0], [4.0, 6.5, 8.5, 8.0, 2.0]]
    kinds = chance.integers(0, 3, _RECORDS)
    scores = np.array(usual)[kinds] + chance.normal(0, 1.2, (_RECORDS, 5))
    names = ("sweetness", "acidity", "firmness", "scent", "redness", "kind")
    return {"fruit.csv": _csv(names, np.clip(scores, 0, 10), [called[k] for k in kinds], "%.1f")}


def _bearing() -> dict[str, bytes]:
    """Return vibrations of a bearing, 24 readings per turn, mostly normal, a third unlabelled."""
    chance = np.random.default_rng(_SEED)
    turn = 2 * np.pi * np.arange(24) / 24
    states = chance.choice(3, _RECORDS, p=[0.92, 0.04, 0.04])
    at, loud = chance.uniform(0, 2 * np.pi, (_RECORDS, 1)), chance.uniform(2, 4, (_RECORDS, 1))
    shaking = loud * np.sin(2 * turn + at) + chance.normal(0, 0.3, (_RECORDS, 24))
    shaking += (states == 1)[:, None] * 1.5 * np.sin(7 * turn + at)
    shaking += (states == 2)[:, None] * 2.0 * np.sign(np.sin(2 * turn + at))
    names = (*(f"r{n:02d}" for n in range(24)), "state")
    called = ("ok", "worn", "loose")
    known = chance.random(_RECORDS) < 2 / 3
    labels = [called[state] if known else "" for state, known in zip(states, known, strict=True)]
    return {"windows.csv": _csv(names, np.clip(shaking, -8, 8), labels, "%.2f")}


def _csv(
    names: tuple[str, ...], values: NDArray[np.float64], labels: Sequence[str], form: str
) -> bytes:
    pairs = zip(values, labels, strict=True)
    rows = (",".join([*(form % value for value in row), label]) for row, label in pairs)
    return "\n".join([",".join(names), *rows, ""]).encode()


@needs_extra("images")
def _shapes() -> dict[str, bytes]:
    """Return grey pictures of discs, crosses and stripes that vary in size and brightness."""
    import io

    from PIL import Image

    chance = np.random.default_rng(_SEED)
    rows, columns = np.mgrid[:_SIDE, :_SIDE]
    found = {}
    for number in range(600):
        name = ("disc", "cross", "stripes")[number % 3]
        up, left = chance.uniform(6, 10, 2)
        size = chance.uniform(3.5, 5.5)
        if name == "disc":
            drawn = np.hypot(rows - up, columns - left) < size
        elif name == "cross":
            arms = np.minimum(abs(rows - up), abs(columns - left)) < 1.2
            drawn = arms & (np.maximum(abs(rows - up), abs(columns - left)) < size + 1)
        else:
            drawn = (rows + int(up)) % 4 < 2
        picture = chance.uniform(40, 90) + chance.uniform(90, 150) * drawn
        levels = np.clip(picture + chance.normal(0, 12, picture.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(levels).save(file, "PNG")
        found[f"pictures/{name}/{number // 3:03d}.png"] = file.getvalue()
    return found


_RECORDS_OF: dict[str, Callable[[], dict[str, bytes]]] = {
    "anomaly": _bearing,
    "classification": _fruit,
    "images": _shapes,
}
