"""The walk of someone new: from the README to an aggregation rule of their own, in one file."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.kits.plugin_wheels import ROOT, files_of

ROOMS = ("edgeveil", "edge_client", "cloud_server", "proxy", "tools")


@pytest.mark.slow
def test_one_file_adds_a_rule_to_a_checkout(tmp_path):
    """The README leads to one page; the file it shows is put into the tree, and nothing else."""
    (page,) = set(
        re.findall(r"\]\((docs/extending\.md)\)", (ROOT / "README.md").read_text("utf-8"))
    )
    rule = files_of(ROOT / page)["my_parts/midrange.py"]
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "edgeveil/parts/aggregation/midrange.py").write_text(rule, "utf-8")
    job = (ROOT / "tests/kits/quickstart.yaml").read_text("utf-8")
    job, changed = re.subn(r"aggregation: .*", "aggregation: {name: midrange}", job)
    assert changed == 1
    (tmp_path / "job.yaml").write_text(job.replace("rounds: 15", "rounds: 5"), "utf-8")
    path = os.pathsep.join(str(tmp_path / room) for room in ("", *ROOMS[1:]))

    def edgeveil(*arguments):
        ran = subprocess.run(
            [sys.executable, "-m", "edgeveil_tools.cli", "--json", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(ran.stdout)

    (found,) = edgeveil("methods", "midrange")["names"]
    assert (found["name"], found["family"]) == ("midrange", "aggregation")
    (laws,) = edgeveil("methods", "check", "midrange")["parts"]
    assert len(laws["laws"]) >= 2
    assert edgeveil("run", "job.yaml", "--devices", "6", "--out", "out")["status"] == "completed"
