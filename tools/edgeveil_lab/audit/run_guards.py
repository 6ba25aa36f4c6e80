"""What a run on a user's own file leaves in its folder.

The attacker has the output folder, and is told the figures it looks for: the accuracy that
learning without noise has after each round, and how many records of each class every device was
dealt.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml

from edgeveil.jobs import Job
from edgeveil.pages.frozen import thawed
from edgeveil.pages.parts import rounded
from edgeveil_lab.audit.guards import AttackOutcome, Guard
from edgeveil_tools.local.job import Overrides, local_job, site_of
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.local.reference import train
from edgeveil_tools.local.run import run_local
from edgeveil_tools.report.page import holdings, holdings_picture

RECORDS, CLASSES, DEVICES = 14_330, 3, 5
_TELLING = 1000  # a smaller whole number may stand there for another reason
_NUMBER = re.compile(r"(?<![\w.])\d{4,}(?![\w.])")


def _disclosed(flawed: bool, quick: bool) -> AttackOutcome:
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = _own_file_job(folder, rounds=2 if quick else 8)
        out = folder / "out"
        run_local(
            path, out, Overrides(), reference=True if flawed else None, brief=True,
            stream=io.StringIO(),
        )  # fmt: skip
        found = sorted(set(exact_figures(out, *local_job(path, Overrides()))))
    return AttackOutcome(bool(found), "; ".join(found) or "none found")


def exact_figures(out: Path, job: Job, run: LocalRun) -> Iterator[str]:
    """What the files below `out` tell of the records that the run dealt, in words.

    Takes a job whose devices keep no evaluation records: what they train on is what was dealt.
    """
    held = holdings(job, run)
    with TemporaryDirectory() as folder:
        site = site_of(job, run, Path(folder))
        for number in range(1, run.devices + 1):
            site.edge_state(number).mkdir(parents=True)
        curve = train(job, run, site)
    counts = {str(n) for n in (*held.counts.ravel(), *held.counts.sum(axis=1)) if n >= _TELLING}
    picture = holdings_picture(held)["values"]
    drawn = [rounded(value) for value in curve]
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        text = path.read_bytes().decode("utf-8", "replace")
        values = list(_values(path, text))
        if any(_lists(picture, value) for value in values):
            yield f"who holds what in {path.name}"
        if any(_lists(curve, value) or _lists(drawn, value) for value in values):
            yield f"the curve without noise in {path.name}"
        if path.suffix in (".json", ".jsonl", ".log") and counts & set(_NUMBER.findall(text)):
            yield f"counts of records in {path.name}"


def _values(path: Path, text: str) -> Iterator[Any]:
    if path.suffix == ".json":
        yield json.loads(text)
    elif path.suffix == ".jsonl":
        yield from map(json.loads, text.splitlines())
    elif path.suffix == ".html":
        yield thawed(text)


def _lists(wanted: Sequence[Any], value: Any) -> bool:
    """Whether this list stands somewhere inside."""
    if isinstance(value, dict):
        return any(_lists(wanted, inner) for inner in value.values())
    if not isinstance(value, list):
        return False
    return value == wanted or any(_lists(wanted, inner) for inner in value)


def _own_file_job(folder: Path, rounds: int) -> Path:
    """A job on a CSV file of its own, which no other process could have read before."""
    rng = np.random.default_rng(12)
    y = rng.choice(CLASSES, RECORDS, p=(0.6, 0.25, 0.15))
    x = rng.normal(size=(RECORDS, 2)) + np.stack([y - 1.0, np.abs(y - 1.0)], axis=1)
    rows = np.column_stack([x, y])
    np.savetxt(folder / "own.csv", rows, "%.4f,%.4f,%d", header="a,b,label", comments="")
    plain = {
        "job": "disclosure",
        "data": {
            "source": "mine",
            "classes": CLASSES,
            "input_shape": [2],
            "nominal_records": 2000,
            "evaluation_share": 0,
        },
        "features": [{"name": "identity", "input_scale": 4}],
        "train": {"method": "fm", "rounds": rounds},
        "privacy": {"epsilon": 1, "delta": 1e-6},
        "round": {"min_batch": DEVICES},
        "local_run": {
            "devices": DEVICES,
            "simulate": True,
            "data": {"source": "csv", "path": "own.csv"},
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


DISCLOSURE = Guard(
    "output of a run",
    "a run on an own file tells no exact figure of the records dealt to devices",
    "the noise-free reference and who holds what, as of a published set",
    _disclosed,
)
