"""What processes with keys leave behind, by what the system says of real ones: no core, no memory
that others read, and state that is their user's alone whatever umask they were started with.
"""

import os
import resource
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from edgeveil.config.site_files import load_site
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.provision import Ports, SiteSpec, provision
from tests.kits.live_site import wait_for

# Each interpreter answers SIGUSR2 with whether it is dumpable (PR_GET_DUMPABLE is 3).
_ANSWERS = """import ctypes, os, signal

def _answer(*_):
    said = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    with open(os.path.join(os.environ["ANSWERS"], str(os.getpid())), "w") as file:
        file.write(str(said))

signal.signal(signal.SIGUSR2, _answer)
"""


class Started:
    """Processes of a site, started with umask 000 where cores may have any size."""

    def __init__(self, folder):
        self.answers, self.cores, begins = (folder / one for one in ("said", "cores", "begins"))
        for made in (self.answers, self.cores, begins):
            made.mkdir()
        (begins / "sitecustomize.py").write_text(_ANSWERS)
        path = os.pathsep.join([str(begins), *sys.path])
        self._env = {**os.environ, "PYTHONPATH": path, "ANSWERS": str(self.answers)}
        self._all = []

    def __call__(self, *words):
        process = subprocess.Popen(
            [sys.executable, "-m", "edgeveil_tools.cli", *map(str, words)],
            env=self._env,
            cwd=self.cores,
            umask=0,
            stdout=subprocess.DEVNULL,
            preexec_fn=_any_core,
        )
        self._all.append(process)
        return process

    def dumpable(self, pid):
        answer = self.answers / str(pid)
        answer.unlink(missing_ok=True)
        os.kill(pid, signal.SIGUSR2)
        wait_for(lambda: answer.exists() and answer.read_text(), f"the answer of process {pid}")
        return answer.read_text()

    def end(self):
        for process in self._all:
            if process.poll() is None:
                process.kill()
                process.wait()


def _any_core():
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    found = Started(tmp_path_factory.mktemp("started"))
    try:
        yield found
    finally:
        found.end()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    before = os.umask(0)
    try:
        folder = tmp_path_factory.mktemp("umask") / "site"
        plan = SiteSpec(
            folder, devices=1, infer_only=0, engine="amqtt", ports=Ports(*free_ports(4))
        )
        return provision(plan)
    finally:
        os.umask(before)


def _core_limit(pid):
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("Max core file size"))
    return line.removeprefix("Max core file size").split()[:2]


def _listens(place):
    with socket.socket() as asked:
        return asked.connect_ex(place) == 0


@pytest.fixture(scope="module")
def running(site, started):
    found = {}
    for domain in ("edge", "cloud"):
        found[domain + " broker"] = started("broker", "--config", site.brokers[domain])
        place = ("127.0.0.1", site.spec.port(domain))
        wait_for(lambda place=place: _listens(place), f"the broker of the {domain} side")
    config = {"cloud": site.cloud, "proxy": site.proxy, "edge": site.edges[0]}
    for role, file in config.items():
        found[role] = started(role, "--config", file)
    for role, file in config.items():
        wait_for((load_site(file).state_dir / "health.sock").exists, f"the start of {role}")
    return found


def test_a_process_with_keys_writes_no_core_and_others_read_none_of_its_memory(running, started):
    for role, process in running.items():
        own = psutil.Process(process.pid)
        computing = own.children(recursive=True)
        for one in (own, *computing):
            assert _core_limit(one.pid) == ["0", "0"], one.cmdline()
        assert started.dumpable(own.pid) == "0"
        if role == "edge":  # what computes for it sees its records
            assert computing and {started.dumpable(one.pid) for one in computing} == {"0"}


_PRIVATE = """
said = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) or resource.getrlimit(resource.RLIMIT_CORE)[1]
sys.exit(said)
"""


# Without Ray: in its place stands what looks at its own process.
_ON_RAY = f"""
import ctypes, resource, socket, sys
from edgeveil_cloud.compute import on_ray
def looked(*_):{_PRIVATE.replace(chr(10), chr(10) + "    ")}
"""
_DEVICE = """
import ctypes, numpy, resource, sys
from edgeveil_edge.embedded import Device
with Device(CONFIG, records=lambda: (numpy.zeros((4, 64)), numpy.arange(4))):
    pass
"""
SCRIPTS = {
    "a command": "import ctypes, resource, sys; from edgeveil_tools.cli.program import main\n"
    f"main(['check', '--schema', 'job']){_PRIVATE}",
    "hands slices to Ray": _ON_RAY
    + "on_ray.RayTasks = looked\non_ray.main(socket.socketpair()[0], 1, None)",
    "opens them there": _ON_RAY + "on_ray.pickle.loads = looked\non_ray.opened({}, b'', b'')",
    "a program with a device": _DEVICE + _PRIVATE,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_whatever_else_holds_keys_or_records_is_as_private(tmp_path, site, name):
    DeviceIdentity.load_or_create(tmp_path / "state")
    config = site.spec.folder / "embedded.yaml"
    config.write_text(site.edges[0].read_text().replace("state/edge-1", str(tmp_path / "state")))
    script = SCRIPTS[name].replace("CONFIG", repr(str(config)))
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)


def test_state_is_its_users_alone_under_any_umask(running, site):
    state = site.spec.folder / "state"
    found = [state, *state.rglob("*")]
    assert len(found) > 20
    wide = {
        str(path.relative_to(state)): oct(stat.S_IMODE(path.lstat().st_mode))
        for path in found
        if path.suffix != ".pub" and path.lstat().st_mode & 0o077
    }
    assert wide == {}
    for role, process in running.items():  # so that what is made without a mode is as private
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "Umask:\t0077" in status.splitlines(), role


def test_a_process_that_is_aborted_leaves_no_core(running, started):
    for process in running.values():
        os.kill(process.pid, signal.SIGABRT)
        _, status = os.waitpid(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert not os.WCOREDUMP(status)
    assert list(started.cores.iterdir()) == []
