"""A broker opens as many files as it may, and takes no more clients than it has files for."""

import resource
import signal
import subprocess
import sys
from pathlib import Path

import yaml

from edgeveil_tools.site.brokers import free_port

SOFT, HARD = 512, 1024


def _limits():
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))


def test_its_connections_fit_into_its_files(tmp_path):
    site = tmp_path / "broker.yaml"
    site.write_text(yaml.safe_dump({"broker": {"engine": "mosquitto", "port": free_port()}}))
    command = [sys.executable, "-m", "edgeveil_tools.cli", "broker", "--config", str(site)]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=_limits)
    try:
        assert "listens on" in running.stdout.readline()
        (child,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        limits = Path(f"/proc/{child}/limits").read_text()
        (files,) = (line.split() for line in limits.splitlines() if line.startswith("Max open"))
        assert files[3] == str(HARD)
        told = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        lines = Path(told[told.index(b"-c") + 1].decode()).read_text().splitlines()
        assert f"max_connections {HARD - 64}" in lines
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(10)
        running.stdout.close()
