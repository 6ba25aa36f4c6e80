"""`edgeveil chaos` as a user calls it: a short run under every kind of fault, and Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits.interrupted_command import interrupted

pytestmark = pytest.mark.slow

KINDS = {"kill", "broker", "cut", "delay", "corrupt", "duplicate", "disk"}


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "edgeveil_tools.cli", "chaos", "--out", str(out), *more]


@pytest.mark.drill
def test_a_short_run_in_which_the_site_keeps_its_word(tmp_path: Path) -> None:
    out = tmp_path / "chaos"
    done = subprocess.run(
        command(out, "--kills", "10", "--seed", "3", "--json"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found == json.loads((out / "chaos.json").read_text())
    assert found["ok"] is True
    assert found["faults"].keys() == KINDS
    assert found["faults"]["kill"] == 10
    assert sum(row["killed"] for row in found["processes"].values()) == 10
    assert len(found["checks"]) == 11
    assert found["rounds_during_faults"] > 0
    assert found["touched"].keys() == KINDS
    assert found["disk_by"] in ("full", "limit")
    assert len(found["warnings"]) == sum(not count for count in found["touched"].values())
    assert all(check["looked"] and not check["violations"] for check in found["checks"])
    assert len(found["jobs"]) >= 2
    assert "every check holds" in (out / "report.html").read_text()
    assert (out / "logs" / "proxy.log").read_text().count("--- start") >= 2


@pytest.mark.drill
def test_under_masks_no_round_is_unmasked_twice_and_sums_are_exact(tmp_path: Path) -> None:
    out = tmp_path / "chaos"
    done = subprocess.run(
        command(out, "--secure", "--kills", "3", "--seed", "3", "--json"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    for name in ("unmasked once", "sums right", "acknowledged counted"):
        assert checks[name]["looked"] and not checks[name]["violations"]


@pytest.mark.drill
def test_two_cells_and_workers_that_open_batches_keep_their_word(tmp_path: Path) -> None:
    out = tmp_path / "chaos"
    done = subprocess.run(
        command(out, "--cells", "2", "--engine", "local", "--kills", "5", "--seed", "3", "--json"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["processes"].keys() >= {"cloud", "proxy-cell-1", "proxy-cell-2"}
    assert found["links"].keys() >= {"devices-edge-cell-1", "proxy-cloud-cell-2", "cloud-cloud"}
    assert [one["devices"] for one in found["cells"]] == [6, 6]
    for one in found["cells"]:
        assert one["rounds"] + one["left_out"] == len(found["rounds"])
        assert one["rounds"] and one["acknowledged"]
    assert found["compute"]["engine"] == "local"
    assert all(check["looked"] and not check["violations"] for check in found["checks"])


def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path) -> None:
    out = tmp_path / "chaos"
    interrupted(command(out), after=" faults: ", processes=6)
    assert not (out / "chaos.json").exists()
