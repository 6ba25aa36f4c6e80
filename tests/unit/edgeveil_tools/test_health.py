"""`edgeveil health`: its answer about a process that does its work, and one that does not."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from edgeveil.config.site_files import load_site
from edgeveil.transport.health import HEALTH_SOCKET, Health, HealthSocket
from edgeveil.transport.process import OwnFolder
from edgeveil_tools import probe

CONFIGS = Path(__file__).parents[3] / "configs"


def asked(state, checks, *, live=False):
    """The problem of a process with these checks, as seen by another thread."""

    async def scene():
        served = HealthSocket(state, Health(checks))
        await served.start()
        try:
            return await asyncio.to_thread(probe.problem_of, str(state), "", 0, live=live)
        finally:
            await served.stop()

    return asyncio.run(scene())


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_broker_is_well_while_it_listens(host):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert probe.problem_of("", host, port) is None
    assert str(port) in probe.problem_of("", host, port)


DOWN = {"broker": lambda: "link_down", "machine": lambda: True}
STUCK = {"broker": lambda: True, "machine": lambda: "stuck"}


@pytest.mark.parametrize(
    ("checks", "live", "problem"),
    [
        ({"broker": lambda: True}, False, None),
        (DOWN, False, "degraded: broker (link_down)"),
        (DOWN, True, None),  # a new start would mend nothing
        (STUCK, True, "degraded: machine (stuck)"),
    ],
)
def test_a_process_is_as_well_as_its_parts(tmp_path, checks, live, problem):
    folder = tmp_path / ("long" * 20) / ("longer" * 20)  # than a socket's name may be
    folder.mkdir(parents=True)
    assert asked(folder, checks, live=live) == problem


def test_a_process_that_starts_is_alive_and_not_ready_and_one_that_hangs_is_neither(
    tmp_path, monkeypatch
):
    state = str(tmp_path)
    assert probe.problem_of(state, "", 0) == "does not run"
    with OwnFolder(tmp_path):
        assert probe.problem_of(state, "", 0) == "is starting"
        assert probe.problem_of(state, "", 0, live=True) is None
    assert probe.problem_of(state, "", 0, live=True) == "does not run"
    monkeypatch.setattr(probe, "TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / HEALTH_SOCKET))
        silent.listen()
        assert "does not answer" in probe.problem_of(state, "", 0, live=True)


@pytest.mark.parametrize("name", ["cloud", "proxy", "edge", "broker-edge"])
def test_site_files_are_read_as_their_loader_reads_them(tmp_path, name):
    path = CONFIGS / f"{name}.yaml"
    state, host, port = probe.site_values(str(path))
    loaded = load_site(path)
    if name.startswith("broker"):
        assert (host, port) == (loaded.host, loaded.port)
        return
    assert os.path.normpath(state) == os.path.normpath(loaded.state_dir)
    found = yaml.safe_load(path.read_text())
    del found[name]["state_dir"]  # its loader's default is asked
    found[name].pop("policy_file", None)
    bare = tmp_path / "site.yaml"
    bare.write_text(yaml.safe_dump(found, width=1000))
    assert probe.site_values(str(bare)) == (str(load_site(bare).state_dir), "", 0)
    for text in ("edge:\n  state_dir: 7\n", "", "edge: [", "broker: {port: x}", "a: 1\nb: 2"):
        bare.write_text(text)  # left to the loader
        assert probe.site_values(str(bare)) is None


def test_a_check_loads_next_to_nothing_and_fits_a_probe_of_a_second():
    """20 MiB and 80 ms of a processor, most of it Python's own start."""
    code = (
        "import sys, json\n"
        f"sys.argv = ['edgeveil', 'health', '--config', {str(CONFIGS / 'edge.yaml')!r}]\n"
        "from edgeveil_tools.cli import run\n"
        "code = run()\n"
        "status = open('/proc/self/status').read().split('VmHWM:')[1]\n"
        "loaded = sorted({name.partition('.')[0] for name in sys.modules})\n"
        "print(json.dumps([code, int(status.split()[0]), loaded]))\n"
    )
    command = [sys.executable, "-S", "-c", code]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    code, rss_kib, loaded = json.loads(done.stdout)
    assert code == 1 and rss_kib <= 20 * 1024
    own = {name for name in loaded if name not in sys.stdlib_module_names and "cython" not in name}
    assert own <= {"__main__", "edgeveil_tools", "yaml", "_yaml"}
    assert not {"argparse", "asyncio", "pathlib", "logging"} & set(loaded)
