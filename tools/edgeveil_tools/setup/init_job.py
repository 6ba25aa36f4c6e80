"""`edgeveil init`: a folder with a commented job, records made up for it, and what to do next.

Texts are the files of `templates/init/KIND/`; records are drawn by a public rule, the same every
time, and stand for a user's own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import UsageError, needs_extra
from edgeveil_tools.result import write_whole, writing

_TEMPLATES = Path(__file__).parents[1] / "templates" / "init"
_RECORDS = 1500
_SIDE = 16  # pixels of a picture
_SEED = 2025


def write(kind: str, folder: Path) -> str:
    """Write the folder for one kind; the command that plays it. UsageError for files in the way."""
    texts = {one.name: one.read_text("utf-8") for one in sorted((_TEMPLATES / kind).iterdir())}
    made = _RECORDS_OF.get(kind, dict)()
    files = {**{name: text.encode() for name, text in texts.items()}, **made}
    for name in files:
        if (folder / name).exists():
            fix = "name another folder with --out, or move it away"
            raise UsageError("is there already", where=str(folder / name), fix=fix)
    play = texts["README.md"].partition("    edgeveil ")[2].partition("\n")[0]
    shown = str(folder)
    with writing(folder):
        for name, raw in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if name == "README.md":
                raw = raw.decode().replace("DIR/", f"{shown}/").encode()
            write_whole(folder / name, raw)
    return f"edgeveil {play}".replace("DIR/", f"{shown}/")


def _fruit() -> dict[str, bytes]:
    """Apples, pears and quinces as a trained tongue scores them, 0 to 10 in tenths."""
    chance = np.random.default_rng(_SEED)
    usual = np.array(
        [
            [6.5, 4.5, 7.0, 5.0, 5.5],  # apple
            [7.5, 2.5, 4.0, 5.5, 3.0],  # pear
            [4.0, 6.5, 8.5, 8.0, 2.0],  # quince
        ]
    )
    kinds = chance.integers(0, 3, _RECORDS)
    scores = usual[kinds] + chance.normal(0, 1.2, (_RECORDS, 5))
    names = ("sweetness", "acidity", "firmness", "scent", "redness", "kind")
    called = np.array(["apple", "pear", "quince"])[kinds]
    return {"fruit.csv": _csv(names, np.clip(scores, 0, 10), called, "%.1f")}


def _pump() -> dict[str, bytes]:
    """The current that a pump's motor takes in 24 tenths of a second after its start, in ampere."""
    chance = np.random.default_rng(_SEED)
    time_s = np.arange(24) / 10
    surge, settle_s, steady = np.array([[4.5, 0.4, 4.0], [2.5, 0.2, 2.0], [2.0, 3.0, 7.0]]).T
    states = chance.integers(0, 3, _RECORDS)
    scale = chance.normal(1, 0.12, (_RECORDS, 1))
    course = steady[states, None] + surge[states, None] * np.exp(-time_s / settle_s[states, None])
    current = scale * course + chance.normal(0, 0.5, (_RECORDS, 24))
    names = (*(f"t{n:02d}" for n in range(24)), "state")
    called = np.array(["normal", "dry", "blocked"])[states]
    return {"windows.csv": _csv(names, np.clip(current, 0, 10), called, "%.2f")}


def _csv(
    names: tuple[str, ...], values: NDArray[np.float64], labels: NDArray[np.str_], form: str
) -> bytes:
    rows = (
        ",".join([*(form % value for value in row), str(label)])
        for row, label in zip(values, labels, strict=True)
    )
    return "\n".join([",".join(names), *rows, ""]).encode()


@needs_extra("images")
def _shapes() -> dict[str, bytes]:
    """Discs, crosses and stripes on grey, each of another size, place and brightness."""
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
    "classification": _fruit,
    "images": _shapes,
    "sensors": _pump,
}
