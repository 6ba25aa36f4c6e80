"""`edgeveil loadtest --compare raw` as a user starts it, on a site of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.drill


def test_the_ratio_to_a_bare_relay_comes_from_one_call(tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = (
        f"loadtest --devices 20 --rounds 1 --payload-bytes 65536 --compare raw --json --out {out}"
    )
    command = [sys.executable, "-m", "edgeveil_tools.cli", *line.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((out / "load.json").read_text())
    assert [row["uploads"] for row in result["rounds"]] == [20]
    raw = result["raw"]
    assert raw["uploads"] == 20
    # Both carried the same packets: what a device of the fleet sent, and what the relay was given.
    assert abs(result["rounds"][0]["upload_bytes"] - raw["upload_bytes"]) <= 16
    assert result["rounds"][0]["upload_messages"] == raw["upload_messages"] == 3
    ratio = result["rounds"][0]["uploads_per_s"] / raw["uploads_per_s"]
    assert abs(result["raw_ratio"] - ratio) < 0.01
    assert {"relay", "sink", "broker-edge", "broker-cloud"} <= set(raw["processes"])
    assert "of a bare relay" in (out / "load.html").read_text()
