"""`python -m tests.chaos`: short runs under every kind of fault, and Ctrl-C."""

import json
import subprocess
import sys

import pytest

from tests.kits.interrupted_command import interrupted

pytestmark = pytest.mark.slow

KINDS = {"kill", "broker", "cut", "delay", "corrupt", "duplicate", "disk"}


def command(out, *more):
    return [sys.executable, "-m", "tests.chaos", "--out", str(out), *more]


def played(out, *more):
    """A run in which every check has looked and holds."""
    done = subprocess.run(command(out, *more), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    found = json.loads((out / "chaos.json").read_text())
    assert found["ok"] is True
    assert all(check["looked"] and not check["violations"] for check in found["checks"])
    return found


@pytest.mark.drill
def test_a_short_run_in_which_nothing_is_lost(tmp_path):
    found = played(tmp_path, "--kills", "10", "--seed", "3")
    assert found["faults"].keys() == found["touched"].keys() == KINDS
    assert found["faults"]["kill"] == 10
    assert sum(row.get("killed", 0) for row in found["processes"].values()) == 10
    assert found["rounds_during_faults"] > 0
    assert len(found["jobs"]) >= 2
    assert (tmp_path / "logs" / "proxy.log").read_text().count("--- start") >= 2


@pytest.mark.drill
def test_under_masks_no_round_is_unmasked_twice_and_sums_are_exact(tmp_path):
    found = played(tmp_path, "--secure", "--kills", "3", "--seed", "3")
    assert {check["name"] for check in found["checks"]} >= {"unmasked once", "sums right"}


@pytest.mark.drill
def test_two_cells_and_workers_that_open_batches_lose_nothing(tmp_path):
    found = played(tmp_path, "--cells", "2", "--engine", "local", "--kills", "5", "--seed", "3")
    assert found["processes"].keys() >= {"cloud", "proxy-cell-1", "proxy-cell-2"}
    assert found["links"].keys() >= {"devices-edge-cell-1", "proxy-cloud-cell-2", "cloud-cloud"}
    cells = {cell for job in found["jobs"] for row in job["rounds"] for cell in row["cells"]}
    assert cells == {"cell-1", "cell-2"}


def test_ctrl_c_ends_everything_that_was_started(tmp_path):
    interrupted(command(tmp_path), after="s  faults: ", processes=6)
    assert not list(tmp_path.glob("*.json"))
