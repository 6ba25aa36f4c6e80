"""`python -m tests.chaos`: short runs under every kind of fault, and Ctrl-C."""

import json
import subprocess
import sys
from collections import Counter

import pytest

from tests.kits.commands import interrupted

pytestmark = pytest.mark.slow

KINDS = {"kill", "broker", "cut", "delay", "corrupt", "duplicate", "disk"}
CELLS = {"cell-1", "cell-2"}


def command(out, *more):
    return [sys.executable, "-m", "tests.chaos", "--out", str(out), *more]


@pytest.mark.drill
@pytest.mark.parametrize(
    ("kills", "how"),
    [(10, ()), (3, ("--secure",)), (5, ("--cells", "2", "--engine", "local"))],
    ids=["plain", "masks", "cells and workers"],
)
def test_a_short_run_under_every_kind_of_fault_loses_nothing(tmp_path, kills, how):
    words = command(tmp_path, "--kills", str(kills), "--seed", "3", *how)
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    found = json.loads((tmp_path / "chaos.json").read_text())
    assert found["ok"] and all(check["looked"] for check in found["checks"])
    assert {check["name"] for check in found["checks"]} >= {"unmasked once", "sums right"}
    kinds = Counter(fault["kind"] for fault in found["faults"])
    assert kinds.keys() == found["touched"].keys() == KINDS
    assert kinds["kill"] == kills
    assert len(found["jobs"]) >= 2
    if "--cells" in how:
        cells = {cell for job in found["jobs"] for row in job["rounds"] for cell in row["cells"]}
        assert cells == CELLS
    elif not how:
        assert sum(end["how"] == "killed" for end in found["ends"]) == kills
        assert found["rounds_during_faults"] > 0


def test_ctrl_c_ends_everything_that_was_started(tmp_path):
    interrupted(command(tmp_path), after="s  faults: ", processes=6)
    assert not list(tmp_path.glob("*.json"))
