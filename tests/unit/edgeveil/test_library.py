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


def test_every_name_is_there_is_documented_and_listed():
    assert set(edgeveil.__all__) <= set(dir(edgeveil))
    for name in edgeveil.__all__:
        found = getattr(edgeveil, name)
        assert found.__doc__, name
        assert f"`{name}`" in edgeveil.__doc__
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        edgeveil.absent  # noqa: B018


def test_importing_the_library_loads_nothing_of_what_it_offers():
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


def test_a_result_gives_plain_tables(simulated):
    assert simulated.status == "completed"
    assert 0 < simulated.accuracy < 1
    assert simulated.reference_accuracy is None
    assert [row["round"] for row in simulated.rounds] == [1, 2]
    for name in simulated.TABLES:
        rows = simulated.table(name)
        assert rows == getattr(simulated, name)
        assert all(not isinstance(value, dict | list) for row in rows for value in row.values())
        assert len({tuple(row) for row in rows}) == 1 or name in ("rounds", "evaluations")
    assert simulated.uploads[-1]["uploads"] == 5
    assert simulated.epsilon[-1]["training"] == simulated.privacy["training"]["epsilon"]
    with pytest.raises(UsageError, match="name one of rounds, epsilon, uploads"):
        simulated.table("absent")


def test_a_result_is_read_back_and_shows_itself(simulated):
    again = edgeveil.Result.load(str(simulated.folder))
    assert again.content == json.loads(json.dumps(simulated.content))
    assert again.events[-1]["type"] == "job_completed"
    assert repr(again).startswith("<Result of small: completed, accuracy 0.")
    for part in ("guarantees", "per device", "protects nobody", "final accuracy"):
        assert part in str(again)
    with pytest.raises(UsageError, match="is no result of a run"):
        edgeveil.Result.load(simulated.folder / "absent")


def test_a_run_tells_how_it_stands(small, tmp_path):
    seen = []

    def hear(progress):
        assert isinstance(progress, edgeveil.RunProgress)
        seen.append((progress.kind, progress.round, progress.line))

    edgeveil.simulate(small, out=tmp_path, reference=False, report=False, progress=hear)
    assert [turn for kind, turn, _ in seen if kind == "committed"] == [0, 0, 1, 2]
    assert any(kind == "note" and "encryption off" in line for kind, _, line in seen)


def test_a_run_is_awaited_and_cancelled(small, simulated, tmp_path):
    loop_went_on = []

    async def both():
        begun, resumes_by_itself = asyncio.Event(), asyncio.get_running_loop()

        def hear(_progress):
            resumes_by_itself.call_soon_threadsafe(begun.set)

        work = asyncio.create_task(
            edgeveil.run_async(
                small, simulate=True, out=tmp_path / "a", seed=3, reference=False, report=False
            )
        )
        await asyncio.sleep(0)
        loop_went_on.append(not work.done())
        result = await work
        cut = asyncio.create_task(
            edgeveil.run_async(
                small, simulate=True, out=tmp_path / "b", reference=False, progress=hear
            )
        )
        await begun.wait()
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        return result

    result = asyncio.run(both())
    assert loop_went_on == [True]
    assert result.model.read_bytes() == simulated.model.read_bytes()
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
