"""`edgeveil chaos --drill` as a user calls it: what befalls trust, mended as an operator would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgeveil_lab.chaos.trust_acts import TrustActs
from edgeveil_lab.chaos.trust_checks import CHECKS
from tests.kits.interrupted_command import interrupted

pytestmark = pytest.mark.slow


def command(out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "edgeveil_tools.cli", "chaos", "--drill", "--out", str(out), *more
    ]  # fmt: skip


@pytest.mark.drill
def test_all_recover_without_a_visit_and_pay_for_nothing_in_vain(tmp_path: Path) -> None:
    out = tmp_path / "drill"
    done = subprocess.run(command(out, "--json"), capture_output=True, text=True)
    assert done.stdout, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert not [act for act in found["acts"] if act["failed"]]
    assert not [check for check in found["checks"] if check["violations"]]
    assert done.returncode == 0, done.stderr[-4000:]
    assert found == json.loads((out / "drill.json").read_text())
    assert found["ok"] is True
    assert [act["name"] for act in found["acts"]] == list(TrustActs.ACTS)
    assert len(found["checks"]) == len(CHECKS)
    assert all(check["looked"] and not check["violations"] for check in found["checks"])
    assert found["revoked"] == ["box-0007"]
    assert "every check holds" in (out / "report.html").read_text()


@pytest.mark.drill
def test_ctrl_c_ends_the_whole_fleet(tmp_path: Path) -> None:
    interrupted(command(tmp_path / "drill"), after="devices are there", processes=11)
    assert not (tmp_path / "drill" / "drill.json").exists()


def test_what_belongs_to_the_faults_is_refused_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "drill", "--kills", "5", "--seed", "9"), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "takes no kills or seed" in done.stderr
    assert not (tmp_path / "drill").exists()
