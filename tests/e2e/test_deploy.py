"""The commands of docs/deploy.md, run as they stand: a fleet from its plan to a job and back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"
JOB = Path(__file__).parents[2] / "tools" / "edgeveil_tools" / "templates" / "job.yaml"
PORTS = (8883, 8884, 18701, 18702)
SUBMIT = """
for try in $(seq 60); do
    edgeveil job submit job.yaml --config places/cloud/edgeveil.yaml > id && break || sleep 1
done
edgeveil job watch "$(cat id)" --config places/cloud/edgeveil.yaml
"""


def test_the_guide_makes_a_fleet_that_runs_a_job(tmp_path: Path) -> None:
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.fail(f"port {port} is in use: stop what listens there")
    blocks = re.findall(r"```sh fleet\n(.*?)```", GUIDE.read_text("utf-8"), re.S)
    assert len(blocks) == 6
    text = JOB.read_text().format(devices=4, min_batch=3, nominal_records=300)
    for old, new in (("rounds: 15", "rounds: 2"), ("every_rounds: 5", "every_rounds: 0")):
        text = text.replace(old, new)
    (tmp_path / "job.yaml").write_text(text)
    targets = re.search(r"```sh targets\n(.*?)```", GUIDE.read_text("utf-8"), re.S)[1]
    started = next(number for number, block in enumerate(blocks) if "edgeveil cloud" in block)
    script = "".join([*blocks[: started + 1], targets, SUBMIT, *blocks[started + 1 :]])
    # Others of these tests have the usual ports of the pages.
    other = "sed -i 's/8701/18701/; s/8702/18702/' clinics/fleet.yaml\nedgeveil site plan clinics\n"
    script = script.replace("edgeveil site plan clinics\n", other, 1)
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with (tmp_path / "log").open("wb") as log:
        run = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = run.wait(240)
        finally:
            os.killpg(run.pid, signal.SIGKILL)
    told = (tmp_path / "log").read_text()
    assert code == 0, told
    assert "completed" in told
    for name in ("units/edgeveil-proxy.service", "compose/compose.yaml"):
        assert (tmp_path / name).exists()
    assert "-  min_batch_floor: 3" in told
    assert re.search(r"revoked  \S+  box-0004", told), told
