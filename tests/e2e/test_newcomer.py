"""docs/walkthroughs/own-data.md as it stands: from a table to predictions, each
command told by the one before."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.kits.guides import blocks

pytestmark = pytest.mark.slow

PAGE = "docs/walkthroughs/own-data.md"
NEXT = re.compile(r"^(?:Next: |  )(edgeveil .*)$", re.MULTILINE)


def command(line):
    return [sys.executable, "-m", "edgeveil_tools.cli", *shlex.split(line)[1:]]


def run(words, folder):
    """What the command says, of which the last command is what to go on with."""
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_five_commands_lead_from_a_table_to_answers_each_told_by_the_one_before(tmp_path):
    lines = [block.strip() for block in blocks(PAGE, "sh command")]
    assert [line.split()[1] for line in lines] == ["init", "check", "check", "run", "predict"]
    (made,), (judged,) = (blocks(PAGE, k) for k in ("python pets", "sh judged"))
    run([sys.executable, "-c", made], tmp_path)
    told = run(command(lines[0]), tmp_path)
    job = tmp_path / "my-pets" / "job.yaml"
    (draft,) = blocks(PAGE, "yaml")
    assert draft in job.read_text()
    run(["sh", "-c", judged], tmp_path)
    price = blocks(PAGE, "text")[0].split("\n\n")[1].split("Noise")[0]
    for line in lines[1:]:
        assert NEXT.findall(told)[-1] == line
        told = run(command(line), tmp_path)
        assert "--estimate" not in line or price in told
    assert "dog" in told and "cat" in told  # what predict printed: names
