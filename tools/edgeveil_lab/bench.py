"""Measures EdgeVeil beside its peers on this machine, and writes what docs/performance.md shows.

    python -m edgeveil_lab.bench [--repeats 5] [--out DIR] [--data MNIST] [ROW…]

Each row is the median of its repetitions. A peer is measured where it is installed (`bench-peers`);
else its cell and the ratio stay empty."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from edgeveil_tools.result import write_json, write_whole

JOB = """
job: {name}
data: {{source: digits, classes: 10, input_shape: [64], nominal_records: {records}}}
model: {{name: mlp, hidden: {hidden}, input_scale: 16}}
train: {{method: sgd, rounds: 10, local_epochs: 1, batch_size: 32, learning_rate: 0.1}}
privacy: {{accept_unproven: true}}
selection: {{devices: 10, min_devices: 10}}
round: {{deadline_s: 120}}
local_run: {{devices: 10, workers: 10, simulate: false, test_records: 360}}
"""
PERCEPTRON = {"name": "mlp", "hidden": (128,), "input_scale": 255}
CNN = {"name": "cnn", "input_scale": 255}
STEPS, BATCH = 20, 64
LOAD = (
    "loadtest",
    "--devices",
    "2000",
    "--rounds",
    "4",
    "--payload-bytes",
    "65536",
    "--compare",
    "raw",
)


class _Row(NamedTuple):
    """`ours` returns values by figure; `peer` that of the first, None where it is not installed."""

    what: str
    to_reach: str
    ours: Callable[[], dict[str, float]]
    peer: Callable[[], float | None] = lambda: None


def _command(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "edgeveil_tools.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _cpu_s(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=False, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def _script(text: str) -> float:
    """Return the processor seconds that a script needs beyond an empty one."""
    return _cpu_s(sys.executable, "-c", text) - _cpu_s(sys.executable, "-c", "pass")


@contextmanager
def _job(**keys: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="edgeveil-bench-") as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(JOB.format(**keys), "utf-8")
        yield path


def first_job() -> dict[str, float]:
    with _job(name="first", records=64, hidden=[64]) as path:
        load = f"import edgeveil, pathlib; edgeveil.load_job(pathlib.Path({str(path)!r}))"
        missing = _cpu_s(sys.executable, "-m", "edgeveil_tools.cli", "run", "missing.yaml")
        return {"first load_job": _script(load), "run of a missing file": missing}


def flower_import() -> float | None:
    return None if find_spec("flwr") is None else _script("import flwr")


def round_of(records: int, hidden: list[int]) -> dict[str, float]:
    """Run ten devices as processes; return seconds a round, to the first one, and their memory."""
    with _job(name="round", records=records, hidden=hidden) as path:
        begun_s, peak, processes = time.monotonic(), 0, 0
        run = _command("run", str(path), "--no-reference", "--out", str(path.parent / "out"))
        first_s = 0.0
        for line in run.stdout or ():
            if " round " in line:
                first_s = first_s or time.monotonic() - begun_s
                family = psutil.Process(run.pid).children(recursive=True)
                processes = max(processes, len(family))
                peak = max(peak, sum(map(_pss, family)))
        run.wait()
        rounds = json.loads((path.parent / "out" / "result.json").read_text("utf-8"))["rounds"]
    taken_s = statistics.median(one["seconds"] for one in rounds[1:])
    found = {"a round": taken_s, "to the first round": first_s}
    return found | {"processes": processes, "memory (PSS), MiB": peak / (1 << 20)}


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def step_of(model: dict[str, Any]) -> dict[str, float]:
    from edgeveil.jobs import Job, compile_job
    from edgeveil.jobs.rehearsal import rehearse_device

    shape, records = (28, 28), 10 * BATCH
    train = {"method": "dp_sgd", "rounds": 1, "local_steps": STEPS, "sampling_rate": 0.1}
    data = {"source": "mnist", "classes": 10, "input_shape": shape, "nominal_records": records}
    keys = {
        "job": "step",
        "data": data,
        "model": model,
        "train": train,
        "privacy": {"epsilon": 8.0},
    }
    plan = compile_job(Job.model_validate(keys))
    spent_s = [
        rehearse_device(plan, b"", trains=True, records=records, processor="cpu") for _ in range(3)
    ]
    return {"ms a step": min(spent_s) / STEPS * 1000}


def opacus_step(convolutional: bool) -> float | None:
    if find_spec("opacus") is None:
        return None
    import torch
    from opacus import GradSampleModule  # type: ignore[import-not-found]
    from opacus.optimizers import DPOptimizer  # type: ignore[import-not-found]
    from torch import nn

    dense = (nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    small = (nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2))
    head = (nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU())
    layers = (*small, *head, nn.Linear(32, 10)) if convolutional else dense
    model = GradSampleModule(nn.Sequential(*layers))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizer(
        plain, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=BATCH
    )
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    for step in range(STEPS + 3):
        if step == 3:
            begun_s = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return (time.perf_counter() - begun_s) / STEPS * 1000


def simulated(data: Path) -> dict[str, float]:
    job = Path(__file__).parents[2] / "configs" / "jobs" / "mnist_fedavg.yaml"
    text, spent = job.read_text("utf-8"), []
    for rounds in (2, 6):
        with tempfile.TemporaryDirectory(prefix="edgeveil-bench-") as folder:
            path = Path(folder) / "job.yaml"
            path.write_text(text.replace("rounds: 20", f"rounds: {rounds}"), "utf-8")
            words = (
                "run",
                str(path),
                "--no-reference",
                "--data",
                str(data),
                "--out",
                f"{folder}/out",
            )
            spent.append(_cpu_s(sys.executable, "-m", "edgeveil_tools.cli", *words))
    return {"CPU s a round": (spent[1] - spent[0]) / 4}


def uploads() -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="edgeveil-bench-") as folder:
        _command(*LOAD, "--out", folder).communicate()
        found = json.loads((Path(folder) / "load.json").read_text("utf-8"))
    cost = (found["processes"][one]["cpu_ms_per_upload"] or 0.0 for one in ("proxy", "cloud"))
    return {"CPU ms an upload": sum(cost), "of a bare relay's uploads/s": found["raw_ratio"]}


def rows(data: Path | None) -> dict[str, _Row]:
    found = {
        "start": _Row("processor time to the first job", "0.5 s; 0.3 s", first_job, flower_import),
        "round": _Row(
            "digits perceptron, 10 devices", "0.5 s; 8 s; 25; 1,536", partial(round_of, 128, [64])
        ),
        "large": _Row("16 MiB, 10 devices", "3.1 s", partial(round_of, 64, [2048, 1984])),
        "perceptron-step": _Row(
            "`dp_sgd`, 101,770 weights",
            "0.7 of Opacus",
            partial(step_of, PERCEPTRON),
            partial(opacus_step, False),
        ),
        "cnn-step": _Row(
            "`dp_sgd`, small CNN",
            "0.8 of Opacus",
            partial(step_of, CNN),
            partial(opacus_step, True),
        ),
        "uploads": _Row("2,000 uploads of 64 KiB", "1.1 ms; 0.40", uploads),
    }
    if data is not None:
        found["simulation"] = _Row("FedAvg simulated, 100 × 600", "1.4 s", partial(simulated, data))
    return found


def measured(row: _Row, repeats: int) -> dict[str, Any]:
    ours, peers = [], []
    for _ in range(repeats):  # in turn, so that both meet the same machine
        ours.append(row.ours())
        peers.append(row.peer())
    figures = {key: [one[key] for one in ours] for key in ours[0]}
    found: dict[str, Any] = {"what": row.what, "to_reach": row.to_reach}
    found["ours"] = {key: _spread(values) for key, values in figures.items()}
    known = [one for one in peers if one is not None]
    return found | {"peer": _spread(known) if known else None}


def _spread(values: list[float]) -> dict[str, float]:
    middle = statistics.median(values)
    return {"median": middle, "least": min(values), "most": max(values)}


def table(found: dict[str, Any]) -> str:
    """Return the rows as a Markdown table; a peer that was not measured is `–`."""
    lines = ["| row | figure | EdgeVeil | to reach | peer |", "| --- | --- | --- | --- | --- |"]
    for row in found["rows"].values():
        for place, (figure, one) in enumerate(row["ours"].items()):
            ours = f"{one['median']:.3g} ({one['least']:.3g} to {one['most']:.3g})"
            aims, peer = row["to_reach"].split("; "), row["peer"] if place == 0 else None
            aim = aims[place] if place < len(aims) else "–"
            other = (
                "–"
                if peer is None
                else f"{peer['median']:.3g}: {peer['median'] / one['median']:.2f}"
            )
            lines.append(f"| {row['what']} | {figure} | {ours} | {aim} | {other} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="edgeveil_lab.bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to measure; default: all")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder of MNIST's files, for `simulation`")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    args = parser.parse_args()
    known = rows(args.data)
    if unknown := [one for one in args.rows if one not in known]:
        parser.error(f"no row {', '.join(unknown)}; there are {', '.join(known)}")
    found: dict[str, Any] = {"cores": os.cpu_count(), "machine": platform.machine(), "rows": {}}
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.rows or known:
        print(f"{name} …", file=sys.stderr, flush=True)
        found["rows"][name] = measured(known[name], args.repeats)
        write_json(args.out / "bench.json", found)
        write_whole(args.out / "bench.md", table(found).encode())
    print(table(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
