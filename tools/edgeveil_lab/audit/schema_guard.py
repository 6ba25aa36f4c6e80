"""Jobs whose schema asks a file a question: does its first record hold these cells?

The device is real; whether it answers, and in what groups and sizes, may not change when the first
record of its file is removed.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np

from edgeveil.config.edge import EdgeSite
from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.sources import tables
from edgeveil.privacy.ledger import Ledger
from edgeveil.protocol import device_round
from edgeveil.protocol.device import InstallJob
from edgeveil.protocol.messages import ExchangeId
from edgeveil.protocol.sealed import JobPackage, Terms, seal_broadcast
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.host import DeviceHost
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.store import DeviceStore
from edgeveil_lab.audit.guards import AttackOutcome, Guard

NAMES = ("age", "work", "income")
ROWS = [
    ["39", "State-gov", "<=50K"],  # whom the job asks for
    ["50", "Private", ">50K"],
    ["38", "Private", "<=50K"],
]
GUESSES, QUICK_GUESSES = ("38", "39", "40", "State-gov", "work"), ("39", "40")
_JOB_ID = bytes(16)
_FRAME_BYTES = 1 << 16


def play(flawed: bool, quick: bool) -> AttackOutcome:
    """Ask each form of file for columns of guessed names, with its first record and without it."""
    plans = list(_plans(QUICK_GUESSES if quick else GUESSES))
    told, asked, answers = 0, 0, 0
    with _first_line_names() if flawed else nullcontext(), TemporaryDirectory() as top:
        for form in _FORMS if not flawed else ("headless",):
            for plan in plans:
                place = Path(top) / str(asked)
                device = _Device(place, form, flawed)
                with_it, without = (device.seen(plan, rows) for rows in (ROWS, ROWS[1:]))
                told += with_it != without
                answers += with_it[0] == "answered"
                asked += 1
    figure = f"{asked} questions about the first record, {answers} answered, {told} gave it away"
    return AttackOutcome(told > 0, figure)


@contextmanager
def _first_line_names() -> Iterator[None]:
    """The flaw; the owner's word is then that of a file with names, which this one has not."""
    with mock.patch.object(tables, "_require_no_number"):
        yield


def _plans(guesses: tuple[str, ...]) -> Iterator[Plan]:
    """Jobs that learn one guessed column, to tell a label of the first record's or a named one."""
    for guess in guesses:
        for label in ("<=50K", "income"):
            for named in (None, (guess, label, "more")):
                schema = {
                    "origin": "public",
                    "label": {"column": label, "classes": ["<=50K", ">50K"]},
                    "columns": [{"name": guess, "number": [0, 100]}],
                    **({"header": named} if named else {}),
                }
                data = {"source": "audited", "nominal_records": 3, "schema": schema}
                plain = {
                    "job": "audit",
                    "data": data,
                    "features": [{"name": "identity"}],
                    "train": {"method": "fm", "rounds": 1},
                    "privacy": {"epsilon": 1.0},
                    "unsupervised": {"eval_type": "NOT_EVAL"},
                }
                yield compile_job(Job.model_validate_json(json.dumps(plain)))


# --- files ---


def _write(place: Path, form: str, rows: list[list[str]]) -> dict[str, Any]:
    """Write the records in a form; what the owner says of it in the site file."""
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


# --- the device ---


@dataclass(frozen=True)
class _Device:
    folder: Path
    form: str
    flawed: bool

    def seen(self, plan: Plan, rows: list[list[str]]) -> tuple[object, ...]:
        """What others see of a new box's answer to the job's first question."""
        state = self.folder / str(len(rows))
        state.mkdir(parents=True)
        data = _write(self.folder / "records", self.form, rows)
        if self.flawed:
            data["header"] = True
        site = EdgeSite.model_validate_json(json.dumps(_site(self.folder, state, data)))
        identity = DeviceIdentity.load_or_create(state)
        ledger = Ledger(state / "ledger.sqlite", site.data.name)
        with closing(ledger), closing(DeviceStore(state / "device.sqlite")) as store:
            host = DeviceHost(site, identity, store, ledger)
            keys = [identity.opening.public(), *(OpeningKey.generate().public() for _ in range(4))]
            return _asked(host, plan, [key.to_bytes() for key in keys])


def _asked(host: DeviceHost, plan: Plan, keys: list[bytes]) -> tuple[object, ...]:
    job = plan.job
    terms = Terms("job", ExchangeId(_JOB_ID, 0, 1), 0, job.digest(), "job")
    sealing = [SealingKey(key) for key in keys]
    announced, _, _ = seal_broadcast(terms, b"", sealing, _FRAME_BYTES)
    host.perform(InstallJob(announced, JobPackage(job.canonical(), plan.graph())))
    state, at = plan.cloud.initial_state(), ExchangeId(_JOB_ID, 1, 1)
    manifest, blob, _ = seal_round(RoundContext.of(plan, 1), state, keys, at, 1, _FRAME_BYTES)
    opened = host.perform(device_round.OpenPackage(manifest, blob))
    if not isinstance(opened, device_round.OpenedPackage) or opened.package is None:
        raise TypeError("the device of the audit cannot open what is sealed to it")
    answer = host.perform(device_round.ComputeAnswer(manifest, opened.package))
    if isinstance(answer, device_round.SealedAnswer):
        return "answered", answer.groups, answer.sizes, answer.at_once, answer.dummy
    if isinstance(answer, device_round.NoAnswer):
        return ("declined",)
    raise TypeError(f"the device of the audit fails: {answer}")


def _site(folder: Path, state: Path, data: dict[str, Any]) -> dict[str, Any]:
    for name in ("cloud", "proxy"):
        SigningKey.generate().public().save(state / f"{name}.pub")
    return {
        "name": "audited",
        "broker": {"url": "mqtt://127.0.0.1:1883"},
        "state_dir": str(state),
        "cloud_key_file": str(state / "cloud.pub"),
        "proxy_key_file": str(state / "proxy.pub"),
        "data": {"name": "audited", "path": str(folder / "records"), **data},
    }


SCHEMA = Guard(
    "schema jobs",
    "no job learns from a device's answer, or its silence, what a record holds",
    "the first line of a CSV file is taken for its names, whatever it is",
    play,
)
