"""`import edgeveil`: the names a user's own program calls, and what they cost and say."""

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

import edgeveil
from edgeveil.errors import MissingExtraError, UsageError

QUICKSTART = Path(__file__).parents[3] / "tests" / "kits" / "quickstart.yaml"
SMALL = {
    "job": "small",
    "train": {"method": "fm", "rounds": 2},
    "selection": {"min_devices": 5},
    "round": {"deadline_s": 30, "min_batch": 3},
    "unsupervised": {"every_rounds": 2},
    "local_run": {"devices": 5, "partition": {"kind": "iid"}},
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("jobs") / "small.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(QUICKSTART.read_text()), **SMALL}))
    return path


@pytest.fixture(scope="module")
def simulated(small, tmp_path_factory):
    return edgeveil.simulate(small, out=tmp_path_factory.mktemp("out"), seed=3, reference=False)


# --- the names ---


def test_every_name_is_there_and_documented_and_loaded_by_use_alone():
    for name in edgeveil.__all__:
        assert getattr(edgeveil, name).__doc__, name
        assert name in dir(edgeveil) and f"`{name}`" in edgeveil.__doc__
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        edgeveil.absent  # noqa: B018
    code = "import sys, edgeveil; print(*(m for m in sys.modules if m.startswith('edgeveil')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["edgeveil.errors", "edgeveil"]


def test_a_missing_extra_is_named(simulated):
    code = """
import sys
for name in ("psutil", "rich", "scipy", "onnxruntime"):
    sys.modules[name] = None
import edgeveil
model = sys.argv[2]
for call in (lambda: edgeveil.run, lambda: edgeveil.predict(model, [[1.0, 0.0]])):
    try:
        call()
    except edgeveil.errors.EdgeVeilError as error:
        print(type(error).__name__, error)
print(edgeveil.price(sys.argv[1]).training)
"""
    command = [sys.executable, "-c", code, str(QUICKSTART), str(simulated.model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    run, predict, price = done.stdout.splitlines()
    assert run.startswith("MissingExtraError") and run.endswith("pip install 'edgeveil[tools]'")
    assert predict.endswith("pip install edgeveil[infer]")
    assert issubclass(MissingExtraError, ImportError)
    assert "ε = 8" in price


# --- before a run ---


def test_problems_and_a_price_are_known_before_anything_runs(tmp_path):
    assert edgeveil.validate(QUICKSTART) == []
    path = tmp_path / "job.yaml"
    path.write_text(QUICKSTART.read_text().replace("privacy:", "privcy:"))
    first = next(one for one in edgeveil.validate(str(path)) if one.key == "privcy")
    assert str(first) == f"{path}:{first.line} privcy: {first.text}"
    assert path.read_text().splitlines()[first.line - 1].startswith("privcy:")
    price = edgeveil.price(edgeveil.load_job(QUICKSTART))
    assert price.rounds[-1]["training"] == price.training.epsilon <= 8


# --- a run ---


def test_a_result_gives_plain_tables_shows_itself_and_is_read_back(simulated):
    assert simulated.status == "completed" and 0 < simulated.accuracy < 1
    assert simulated.reference_accuracy is None
    assert [row["round"] for row in simulated.rounds] == [1, 2]
    for name in simulated.TABLES:
        rows = simulated.table(name)
        assert rows == getattr(simulated, name)
        assert all(not isinstance(value, dict | list) for row in rows for value in row.values())
    assert simulated.uploads[-1]["uploads"] == 5
    assert simulated.epsilon[-1]["training"] == simulated.privacy["training"]["epsilon"]
    with pytest.raises(UsageError, match="name one of rounds, epsilon, uploads"):
        simulated.table("absent")
    again = edgeveil.Result.load(str(simulated.folder))
    assert again.content == json.loads(json.dumps(simulated.content))
    assert again.events[-1]["type"] == "job_completed"
    assert repr(again).startswith("<Result of small: completed, accuracy 0.")
    assert "guarantees" in str(again)
    with pytest.raises(UsageError, match="is no result of a run"):
        edgeveil.Result.load(simulated.folder / "absent")


async def test_a_run_is_awaited_reports_its_progress_and_is_cancelled(small, simulated, tmp_path):
    begun, seen, loop = asyncio.Event(), [], asyncio.get_running_loop()

    def on_progress(progress):
        assert isinstance(progress, edgeveil.RunProgress)
        seen.append((progress.kind, progress.round))
        loop.call_soon_threadsafe(begun.set)

    def start(name):
        how = {"simulate": True, "seed": 3, "reference": False, "report": False}
        run = edgeveil.run_async(small, out=tmp_path / name, progress=on_progress, **how)
        return asyncio.create_task(run)

    work = start("a")
    await asyncio.sleep(0)
    assert not work.done()
    assert (await work).model.read_bytes() == simulated.model.read_bytes()
    assert [turn for kind, turn in seen if kind == "committed"] == [0, 0, 1, 2]
    begun.clear()
    cut = start("b")
    await begun.wait()
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert not [t for t in threading.enumerate() if t.name.startswith("edgeveil-work")]


@pytest.mark.slow
def test_two_runs_at_once_in_a_fresh_program_are_those_of_one(small, simulated):
    code = f"""
import asyncio, edgeveil
async def both():
    runs = [
        edgeveil.run_async({str(small)!r}, simulate=True, seed=3, reference=False, report=False)
        for _ in range(2)
    ]
    return await asyncio.gather(*runs)
print(*[run.accuracy for run in asyncio.run(both())])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == 2 * [str(simulated.accuracy)]
