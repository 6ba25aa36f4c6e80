"""Faults of the machine that real processes meet: each ends by itself, none is "ok" meanwhile."""

import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import SystemFault
from edgeveil.protocol.cloud_reasons import OTHER_KEY, SILENT
from edgeveil.transport.process import LOCK_FILE
from edgeveil_tools.probe import problem_of
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.provision import Ports, SiteSpec, provision
from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.slow
ENDS_S = 30.0
STARTS_S = 120.0  # a start beside other work


@pytest.fixture
def site(tmp_path):
    """A site with its brokers, and no process yet."""
    with LiveSite(tmp_path) as made:
        yield made


def without_memory(process):
    """Cap the address space at its size and 4 MiB: no thread (stack: 8 MiB) can be started."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (size,) = re.findall(r"VmSize:\s+(\d+) kB", status)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (int(size) * 1024 + (4 << 20), -1))


# --- a thread that cannot be started ---


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


# --- links: an outage longer than all attempts of a round ---


@pytest.mark.drill
@pytest.mark.parametrize("domain", ["edge", "cloud"])
def test_a_job_outlives_a_broker_that_is_away_for_longer_than_its_attempts(site, domain):
    site.start_all()
    job = site.submit(rounds=4, every=0, deadline_s=6)
    wait_for(lambda: site.client.job(job)["exchanges"], "the first round's commit")
    site.brokers[domain].stop()
    wait_for(lambda: site.client.job(job)["status"] == "paused", "the pause", 120)
    paused = site.client.job(job)
    wait_for(lambda: health(site) == 503, "a health check that fails")
    if domain == "edge":
        state = str(site.site.edges[0].parent / named_in(site.site.edges[0], "state_dir"))
        assert problem_of(state, "", 0) == "not well: broker (link_down)"
        assert problem_of(state, "", 0, live=True) is None
    site.brokers[domain].start_again()
    link = "the proxy's link" if domain == "edge" else "the cloud's link"
    assert link in paused["reason"] and "look at the devices" not in paused["reason"]
    wait_for(lambda: site.client.job(job)["status"] != "paused", "its end", ENDS_S)
    site.completed(job)


def health(site):
    """What the proxy's health page answers: it is on both links."""
    url = f"http://127.0.0.1:{site.spec.ports_of('').proxy_http}/healthz"
    try:
        with urlopen(url, timeout=10) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


# --- what the machine lacks is tried again, what the owner wrote is not ---


FILES = {"cloud": "cloud.yaml", "proxy": "proxy.yaml", "edge": "edge-1.yaml"}


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    """The files of a site of which no process runs."""
    folder = tmp_path_factory.mktemp("files") / "site"
    provision(SiteSpec(folder, devices=3, ports=Ports(*free_ports(6))))
    return folder


@pytest.fixture
def files(provisioned, tmp_path):
    """The same, for one test to change."""
    return Path(shutil.copytree(provisioned, tmp_path / "site"))


def ended(config, *before):
    """The exit code of a process that cannot start, and what it wrote."""
    role = config.name.partition("-")[0].removesuffix(".yaml")
    command = [*before, sys.executable, "-m", "edgeveil_tools.cli", role, "--config", str(config)]
    done = subprocess.run(command, capture_output=True, timeout=STARTS_S, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


def named_in(config, key):
    """The first value of this key."""
    return re.findall(rf"^\s*{key}: (.+)$", config.read_text(), re.MULTILINE)[0]


def mounted(options, state):
    """A prefix of a command that sees another file system in the place of this folder."""
    probe = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("this machine does not let a test mount anything")
    script = f'mount -t tmpfs -o {options} none "{state}" && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh"]


@pytest.mark.parametrize("role", FILES)
@pytest.mark.parametrize("options", ["ro", "nr_inodes=1"])
def test_a_disk_that_takes_nothing_is_tried_again(files, role, options):
    config = files / FILES[role]
    state = files / named_in(config, "state_dir")
    state.mkdir(parents=True, exist_ok=True)
    code, said = ended(config, *mounted(options, state))
    assert code == 1 and str(state) in said


@pytest.mark.parametrize("role", FILES)
def test_a_password_that_is_not_there_yet_is_tried_again(files, role):
    path = files / named_in(files / FILES[role], "password_file")
    path.unlink()
    code, said = ended(files / FILES[role])
    assert code == 1 and str(path) in said


@pytest.mark.parametrize("role", ["cloud", "proxy"])
def test_a_port_that_is_taken_is_tried_again(files, role):
    config = files / FILES[role]
    port = int(named_in(config, "port"))
    with socket.create_server(("127.0.0.1", port)):
        code, said = ended(config)
    assert code == 1 and str(port) in said


@pytest.mark.parametrize("role", FILES)
def test_a_path_that_can_never_be_a_folder_is_the_owners_word(files, role):
    config = files / FILES[role]
    text = config.read_text().replace(named_in(config, "state_dir"), f"{config}/state")
    config.write_text(text)
    assert ended(config)[0] == 2


# --- a state folder whose disk is not mounted ---


@pytest.mark.parametrize("role", FILES)
def test_in_a_state_folder_without_its_key_a_process_makes_nothing(files, role):
    config = files / FILES[role]
    state = files / named_in(config, "state_dir")
    shutil.rmtree(state)
    code, said = ended(config)
    assert code == 1 and str(state) in said
    left = {path.name for path in state.rglob("*")} if state.exists() else set()
    assert left <= {LOCK_FILE}


@pytest.mark.parametrize("role", FILES)
def test_provision_over_a_site_makes_no_second_key(files, role):
    state = files / named_in(files / FILES[role], "state_dir")
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
    state = site.site.proxy.parent / named_in(site.site.proxy, "state_dir")
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
    path = config.parent / named_in(config, "state_dir") / f"{role}.key"
    key = SigningKey.load(path)
    SigningKey.generate().save(path, overwrite=True)
    site.start(role, config)
    other = "proxy" if role == "cloud" else "cloud"
    state = str(config.parent / named_in(config.parent / f"{other}.yaml", "state_dir"))
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


# --- the terminal hangs up ---


def test_all_end_cleanly_when_their_terminal_hangs_up(site):
    site.start_all()
    for role in ("cloud", "proxy", "edge"):
        assert site.stop(role, signal.SIGHUP) == 0
        assert "Traceback" not in site.log(role)
