"""Jobs whose schema probes a file: does its first record hold given cells?

The device is real. Whether it answers, and in which groups and sizes, must not change when the
first record of its file is removed."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing, nullcontext
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np

from edgeveil.crypto.keys import SigningKey
from edgeveil.jobs import parse_plan
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.sources import tables
from edgeveil.privacy.ledger import Ledger
from edgeveil.protocol import device_round
from edgeveil.protocol.device import InstallJob
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.sealed import JobPackage
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.host import DeviceHost
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.store import DeviceStore
from edgeveil_lab.audit.guards import JOB_ID, AttackOutcome, Guard, announced, attacked_site

NAMES = ("age", "work", "income")
ROWS = [
    ["39", "State-gov", "<=50K"],  # the record that the job probes for
    ["50", "Private", ">50K"],
    ["38", "Private", "<=50K"],
]
GUESSES, QUICK_GUESSES = ("38", "39", "40", "State-gov", "work"), ("39", "40")
_JOB = """
job: audit
features: [{name: identity}]
train: {method: fm, rounds: 1}
privacy: {epsilon: 1}
unsupervised: {eval_type: NOT_EVAL}
"""
_FRAME_BYTES = 1 << 16


def play(flawed: bool, quick: bool) -> AttackOutcome:
    """Ask each file format for columns of guessed names, with its first record and without it."""
    plans = list(_plans(QUICK_GUESSES if quick else GUESSES))
    leaked, asked, answers = 0, 0, 0
    # The flawed site file then declares a header that the file does not have.
    flaw = mock.patch.object(tables, "_require_no_number") if flawed else nullcontext()
    with flaw, TemporaryDirectory() as top:
        for form in _FORMS if not flawed else ("headless",):
            for plan in plans:
                with_it, without = (
                    _seen(Path(top, str(asked), str(len(rows))), form, flawed, plan, rows)
                    for rows in (ROWS, ROWS[1:])
                )
                leaked += with_it != without
                answers += with_it[0] == "answered"
                asked += 1
    figure = f"{asked} probes for the first record, {answers} answered, {leaked} revealed it"
    return AttackOutcome(leaked > 0, figure)


def _plans(guesses: tuple[str, ...]) -> Iterator[Plan]:
    """Yield jobs that learn one guessed column, with a guessed label column, headed or not."""
    for guess in guesses:
        for label in ("<=50K", "income"):
            for named in (None, (guess, label, "more")):
                header = {"header": named} if named else {}
                columns = [{"name": guess, "number": [0, 100]}]
                schema: dict[str, Any] = {"columns": columns, **header}
                label_of = {"column": label, "classes": ["<=50K", ">50K"]}
                schema |= {"origin": "public", "label": label_of}
                data = {"source": "audited", "nominal_records": 3, "schema": schema}
                yield parse_plan(_JOB + json.dumps({"data": data})[1:-1])


def _write(place: Path, form: str, rows: list[list[str]]) -> dict[str, Any]:
    if form in ("headed", "headless"):
        with place.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([*([NAMES] if form == "headed" else ()), *rows])
        return {"source": "csv", "header": form == "headed"}
    if form == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        columns = zip(*rows, strict=True)
        parquet.write_table(pa.table(dict(zip(NAMES, map(list, columns), strict=True))), place)
        return {"source": "parquet"}
    with place.open("wb") as file:
        np.savez(file, x=np.array(rows)[:, :2], y=np.array(rows)[:, 2])
    return {"source": "npz"}


_FORMS = ("headed", "headless", "npz", *(("parquet",) if find_spec("pyarrow") else ()))


def _seen(folder: Path, form: str, flawed: bool, plan: Plan, rows: list[list[str]]) -> Any:
    state = folder / "state"
    state.mkdir(parents=True)
    data = {"path": str(folder / "records"), **_write(folder / "records", form, rows)}
    if flawed:
        data["header"] = True
    site = attacked_site(folder, SigningKey.generate(), SigningKey.generate(), data)
    identity = DeviceIdentity.load_or_create(state)
    ledger = Ledger(state / "ledger.sqlite", site.data.name)
    with closing(ledger), closing(DeviceStore(state / "device.sqlite")) as store:
        host, job = DeviceHost(site, identity, store, ledger), plan.job
        announcement, _, keys = announced(plan, b"", identity.opening, _FRAME_BYTES)
        host.perform(InstallJob(announcement, JobPackage(job.canonical(), plan.graph())))
        state_of, at = plan.cloud.initial_state(), RoundId(JOB_ID, 1, 1)
        context = RoundContext.of(plan, 1)
        manifest, blob, _ = seal_round(context, state_of, keys, at, 1, _FRAME_BYTES)
        opened = host.perform(device_round.OpenPackage(manifest, blob))
        answer = host.perform(device_round.ComputeAnswer(manifest, opened.package))  # type: ignore[attr-defined]
    if isinstance(answer, device_round.SealedAnswer):
        return "answered", answer.groups, answer.sizes, answer.at_once, answer.dummy
    if isinstance(answer, device_round.NoAnswer):
        return ("declined",)
    raise TypeError(f"the audited device failed: {answer}")


SCHEMA = Guard(
    "schema jobs",
    "no job learns from a device's answer, or its silence, what a record holds",
    "the first line of a CSV file is taken for its names, whatever it is",
    play,
)
