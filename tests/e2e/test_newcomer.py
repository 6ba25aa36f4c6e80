"""From a table of one's own to a model that answers programs: six commands, each told by the one
before."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np

NEXT = re.compile(r"^(?:Next: |  )(edgeveil .*)$", re.MULTILINE)


def table(path: Path) -> None:
    """Cats and dogs, some without a weight: names, numbers and words, as people keep them."""
    chance = np.random.default_rng(3)
    lines = ["weight_kg,ears,temper,kind"]
    for dog in chance.integers(0, 2, 1200):
        weight = chance.normal(18 if dog else 4.5, 4 if dog else 1)
        ears = ("hanging", "upright")[int(chance.random() < (0.4 if dog else 0.95))]
        temper = ("calm", "lively", "shy")[
            chance.choice(3, p=(0.3, 0.6, 0.1) if dog else (0.4, 0.2, 0.4))
        ]
        shown = "" if chance.random() < 0.03 else f"{max(weight, 0.5):.1f}"
        lines.append(f"{shown},{ears},{temper},{'dog' if dog else 'cat'}")
    path.write_text("\n".join(lines) + "\n")


def run(line: str, folder: Path) -> str:
    """What the command says, of which the last command is what to go on with."""
    command = [sys.executable, "-m", "edgeveil_tools.cli", *shlex.split(line)[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_six_commands_lead_from_a_table_to_answers_each_told_by_the_one_before(
    tmp_path: Path,
) -> None:
    table(tmp_path / "pets.csv")
    told, words = run("edgeveil init --from pets.csv", tmp_path), []
    job = tmp_path / "my-pets" / "job.yaml"
    text = job.read_text()
    assert "origin: own_records" in text
    job.write_text(re.sub(r"origin: own_records.*", "origin: public", text))  # it was judged
    while True:
        line = NEXT.findall(told)[-1]
        words.append(line.split()[1])
        if words[-1] == "serve":
            break
        told = run(line, tmp_path)
    assert words == ["validate", "plan", "run", "predict", "serve"]
    assert "dog" in told and "cat" in told  # what predict printed: names

    command = [sys.executable, "-m", "edgeveil_tools.cli", *shlex.split(line)[1:], "--port", "8797"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=os.environ
    ) as served:
        assert served.stdout is not None
        try:
            url = served.stdout.readline().split("/v1/")[0]
            record = {"weight_kg": 25, "ears": "hanging", "temper": "lively"}
            body = json.dumps({"records": [record, {"weight_kg": 4, "ears": "upright"}]}).encode()
            request = urllib.request.Request(
                f"{url}/v1/predict", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=20) as answer:
                found = json.load(answer)
            assert [one["name"] for one in found["predictions"]] == ["dog", "cat"]
            served.send_signal(signal.SIGINT)
            assert served.wait(20) == 0
        finally:
            served.kill()
