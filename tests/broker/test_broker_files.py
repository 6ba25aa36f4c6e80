"""A broker opens as many files as it may, and takes no more clients than it has files for;
who says nothing takes none of their places."""

import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import yaml

from edgeveil_tools.site.brokers import free_port

SOFT, HARD = 512, 1024
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x14\x00\x01a"


def _limits():
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))


def _comes_in(port):
    """A client, while more than the broker has places for are connected and say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with ExitStack() as crowd:
        for _ in range(HARD + 500):
            crowd.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            client.settimeout(60)
            client.sendall(CONNECT)
            assert client.recv(4)[:2] == b"\x20\x02", "no CONNACK"


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
        _comes_in(yaml.safe_load(site.read_text())["broker"]["port"])
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(10)
        running.stdout.close()
