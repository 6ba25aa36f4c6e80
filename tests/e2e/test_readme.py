"""The README's section on starting each process by hand, run as it stands."""

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

README = Path(__file__).parents[2] / "README.md"
PORTS = (21883, 21884, 8701, 8702)


def test_by_hand_section_runs_two_jobs(tmp_path: Path) -> None:
    for port in PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.fail(f"port {port} is in use: stop what listens there")
    script = re.search(r"```sh by-hand\n(.*?)```", README.read_text("utf-8"), re.S)[1]
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    run = subprocess.Popen(
        ["bash", "-e", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    lines: list[str] = []
    try:
        # The processes in the background keep the pipe open: read up to the last command's end.
        for line in run.stdout:
            lines.append(line)
            if "submitted" in line and "status" in line:
                lines += [next(run.stdout), next(run.stdout)]
                break
    finally:
        os.killpg(run.pid, signal.SIGTERM)
        run.wait(15)
    text = "".join(lines)
    assert text.count("digits-") >= 2, text
    assert [row.split()[1] for row in lines[-2:]] == ["completed", "completed"], text
    assert "Traceback" not in text
