"""Faults of the machine that real processes meet: each ends by itself, none is "ok" meanwhile."""

import re
import resource
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import SystemFault
from edgeveil.protocol.cloud_reasons import OTHER_KEY, SILENT
from edgeveil.transport.process import LOCK_FILE
from edgeveil_tools.probe import problem_of
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.provision import Ports, SiteSpec, provision
from tests.kits.commands import edgeveil
from tests.kits.live_site import LiveSite, page, start_again, wait_for

pytestmark = pytest.mark.slow
ENDS_S = 30.0
STARTS_S = 120.0  # a start beside other work


@pytest.fixture
def site(tmp_path):
    with LiveSite(tmp_path) as made:
        yield made


def without_memory(process):
    """Cap the address space at its size and 4 MiB: no thread (stack: 8 MiB) can be started."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (size,) = re.findall(r"VmSize:\s+(\d+) kB", status)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (int(size) * 1024 + (4 << 20), -1))


def test_a_cloud_that_can_start_no_thread_ends_and_its_job_goes_on(site):
    cloud = site.start("cloud", site.site.cloud)
    wait_for(site.answers, "the cloud's start")
    job = site.submit(rounds=1, every=0, deadline_s=300)  # waits: no device is known yet
    without_memory(cloud)
    site.start_proxy()
    site.start("edge", *site.site.edges)
    assert cloud.wait(ENDS_S) == 1
    site.start("cloud", site.site.cloud)
    wait_for(site.answers, "the cloud's start")
    site.completed(job)


@pytest.mark.drill
@pytest.mark.parametrize("domain", ["edge", "cloud"])
def test_a_job_outlives_a_broker_that_is_away_for_longer_than_its_attempts(site, domain):
    site.start_all()
    job = site.submit(rounds=4, every=0, deadline_s=6)
    wait_for(lambda: site.client.job(job)["exchanges"], "the first round's commit")
    site.brokers[domain].stop()
    wait_for(lambda: site.client.job(job)["status"] == "paused", "the pause", 120)
    paused = site.client.job(job)
    wait_for(lambda: page(f"{site.proxy_url()}/healthz")[0] == 503, "a health check that fails")
    if domain == "edge":
        state = str(state_of(site.site.edges[0]))
        assert problem_of(state, "", 0) == "degraded: broker (link_down)"
        assert problem_of(state, "", 0, live=True) is None
    start_again(site.brokers[domain])
    link = "the proxy's link" if domain == "edge" else "the cloud's link"
    assert link in paused["reason"] and "look at the devices" not in paused["reason"]
    wait_for(lambda: site.client.job(job)["status"] != "paused", "its end", ENDS_S)
    site.completed(job)


# --- what the machine lacks is tried again (1, 3), what the owner wrote is not (2) ---

FILES = {"cloud": "cloud.yaml", "proxy": "proxy.yaml", "edge": "edge-1.yaml"}
CODES = {"possible path": 2, "broker": 3}
NO_MOUNTS = "this machine does not let a test mount anything"


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    """The files of a site of which no process runs."""
    folder = tmp_path_factory.mktemp("files") / "site"
    provision(SiteSpec(folder, devices=3, ports=Ports(*free_ports(6))))
    return folder


@pytest.fixture
def files(provisioned, tmp_path):
    return Path(shutil.copytree(provisioned, tmp_path / "site"))


def named_in(config, key):
    return re.findall(rf"^\s*{key}: (.+)$", config.read_text(), re.MULTILINE)[0]


def state_of(config):
    return config.parent / named_in(config, "state_dir")


@contextmanager
def without(what, config):
    """Take it from the machine; yields a prefix of the command, and what a process must name."""
    before, named = [], state_of(config)
    if what == "password":
        named = config.parent / named_in(config, "password_file")
        named.unlink()
    elif what == "possible path":
        text = config.read_text()
        config.write_text(text.replace(named_in(config, "state_dir"), f"{config}/state"))
        named = config
    elif what == "key":
        shutil.rmtree(named)  # as if its disk were not mounted
    elif what == "broker":
        named = f"127.0.0.1:{named_in(config, 'url').rpartition(':')[2]}"  # none runs
    elif what == "port":
        named = int(named_in(config, "port"))
    else:
        if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            pytest.skip(NO_MOUNTS)
        named.mkdir(parents=True, exist_ok=True)
        script = f'mount -t tmpfs -o {what} none "{named}" && exec "$@"'
        before = ["unshare", "-m", "sh", "-c", script, "sh"]
    with socket.create_server(("127.0.0.1", named)) if what == "port" else nullcontext():
        yield before, str(named)


@pytest.mark.parametrize(
    ("what", "role"),
    [
        *(("ro", "edge"), ("nr_inodes=1", "edge"), ("password", "proxy"), ("key", "cloud")),
        *(("key", "edge"), ("possible path", "edge"), ("port", "cloud"), ("port", "proxy")),
        ("broker", "cloud"),
    ],
)
def test_a_process_that_cannot_start_names_what_is_missing_and_makes_nothing(files, what, role):
    config = files / FILES[role]
    with without(what, config) as (before, named):
        command = [*before, *edgeveil(role, "--config", config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STARTS_S)
    assert done.returncode == CODES.get(what, 1), done.stderr
    assert named in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert what != "key" or {path.name for path in Path(named).rglob("*")} <= {LOCK_FILE}


def test_provision_over_a_site_makes_no_second_key(files):
    state = state_of(files / FILES["cloud"])
    shutil.rmtree(state)
    before = {path: path.read_bytes() for path in (files / "keys").iterdir()}
    plan = SiteSpec(files, devices=3, ports=Ports(*free_ports(6)))
    with pytest.raises(SystemFault) as caught:
        provision(plan, force=True)
    assert str(state) in str(caught.value) and not list(state.glob("*.key"))
    assert before == {path: path.read_bytes() for path in (files / "keys").iterdir()}


@pytest.mark.drill
def test_a_job_says_that_the_proxy_is_gone_and_goes_on_once_its_disk_is_mounted(site):
    site.start_all()
    job = site.submit(rounds=4, every=0, deadline_s=6)
    wait_for(lambda: site.client.job(job)["exchanges"], "the first round's commit")
    site.stop("proxy", signal.SIGKILL)
    state = state_of(site.site.proxy)
    mounted_at = state.rename(state.with_name("elsewhere"))
    site.start_proxy()
    assert site.processes["proxy"].wait(STARTS_S) == 1
    wait_for(lambda: site.client.job(job)["status"] == "paused", "the pause", 120)
    assert SILENT in site.client.job(job)["reason"]
    shutil.rmtree(state, ignore_errors=True)
    mounted_at.rename(state)
    site.start_proxy()
    site.completed(job)


@pytest.mark.drill
@pytest.mark.parametrize("role", ["cloud", "proxy"])
def test_a_party_with_another_key_than_its_fleets_is_named(site, role):
    site.start_all()
    job = site.submit(rounds=12, every=0, deadline_s=6)
    wait_for(lambda: site.client.job(job)["exchanges"], "the first round's commit")
    site.stop(role)
    config = site.site.cloud if role == "cloud" else site.site.proxy
    path = state_of(config) / f"{role}.key"
    key = SigningKey.load(path)
    SigningKey.generate().save(path, overwrite=True)
    site.start(role, config)
    other = "proxy" if role == "cloud" else "cloud"
    state = str(state_of(config.with_name(f"{other}.yaml")))
    wait_for(lambda: "keys (other_key)" in (problem_of(state, "", 0) or ""), "its peer's word", 60)
    wait_for(site.answers, "the cloud's control")
    wait_for(lambda: site.client.job(job)["status"] == "paused", "the pause", 120)
    assert (OTHER_KEY if role == "proxy" else SILENT) in site.client.job(job)["reason"]
    site.stop(role)
    key.save(path, overwrite=True)
    site.start(role, config)
    wait_for(site.answers, "the cloud's control")
    site.completed(job)
    assert problem_of(state, "", 0) is None


def test_all_end_cleanly_when_their_terminal_hangs_up(site):
    site.start_all()
    for role in ("cloud", "proxy", "edge"):
        assert site.stop(role, signal.SIGHUP) == 0
        assert "Traceback" not in site.log(role)
