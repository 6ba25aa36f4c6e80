"""`edgeveil loadtest` as a user starts it: real brokers, cloud, proxy and generators."""

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from pathlib import Path

import psutil
import pytest

from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.provision import LocalSpec, Ports, provision
from tests.kits.live_site import wait_for

pytestmark = pytest.mark.slow

PHASES = ("broadcast_s", "upload_s", "handover_s", "absorb_s")


def edgeveil(*arguments):
    return [sys.executable, "-m", "edgeveil_tools.cli", *map(str, arguments)]


def loadtest(*arguments, **options):
    command = edgeveil("loadtest", *arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=200, **options)


@pytest.mark.parametrize(
    "how",
    [
        ("--payload-bytes", 65536, "--processes", 2),
        ("--protocol", 4, "--payload-bytes", 1024, "--tls"),
        ("--qos", 0, "--payload-bytes", 1024, "--rate", 20),
        pytest.param(("--payload-bytes", 65536, "--compare", "raw"), marks=pytest.mark.drill),
    ],
    ids=["two-processes", "mqtt311-tls", "qos0", "compared"],
)
def test_every_upload_is_counted_once(tmp_path, how):
    done = loadtest("--devices", 20, "--rounds", 2, "--hold", 1, "--json", "--out", tmp_path, *how)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert json.loads((tmp_path / "load.json").read_text()) == result
    assert (tmp_path / "load.html").stat().st_size > 1000
    assert result["status"] == "completed"
    assert (result["lost"], result["duplicated"], result["refused"]) == (0, 0, {})
    assert (result["sum_matches"], result["warnings"]) == (True, [])
    assert [row["uploads"] for row in result["rounds"]] == [20, 20]
    assert [row["round"] for row in result["rounds"]] == [1, 2]
    for row in result["rounds"]:
        assert sum(row[phase] for phase in PHASES) == pytest.approx(row["seconds"], abs=0.01)
        assert row["upload_bytes"] > result["options"]["payload_bytes"]
    assert result["connects"]["devices"] == 20
    assert result["uploads_per_s"] > 0
    assert result["latency_s"]["max"] >= result["latency_s"]["p50"] > 0
    names = {"cloud", "proxy", "broker-edge", "broker-cloud", "generator-1"}
    assert names <= set(result["processes"])
    assert all(result["processes"][name]["peak_rss_bytes"] > 1 << 20 for name in names)
    assert result["idle"]["connected"] == 20
    assert {"processes", "busy_percent", "note"} <= set(result["generator"])
    if "--compare" not in how:
        return
    raw, last = result["raw"], result["rounds"][-1]
    assert raw["uploads"] == 40
    # Both carried the same packets: what a device of the fleet sent, and what the relay was given.
    assert abs(last["upload_bytes"] - raw["upload_bytes"]) <= 16
    assert last["upload_messages"] == raw["upload_messages"] == 3
    assert result["raw_ratio"] > 0
    assert {"relay", "sink", "broker-edge", "broker-cloud"} <= set(raw["processes"])
    assert "of a bare relay" in (tmp_path / "load.html").read_text()


def test_devices_that_drop_and_a_storm_lose_nothing_that_was_acknowledged(tmp_path):
    done = loadtest(
        *("--devices", 30, "--rounds", 3, "--payload-bytes", 70000, "--json"),
        *("--drop", 0.3, "--reconnect-storm", "--quorum", 0.6, "--grace", 3),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["connects"]["reconnects"] >= 30
    assert (result["lost"], result["duplicated"]) == (0, 0)
    assert len(result["rounds"]) == 3


@pytest.mark.drill
def test_cells_share_the_devices_and_lose_nothing():
    done = loadtest(
        *("--cells", 2, "--devices", 40, "--rounds", 2, "--payload-bytes", 1024, "--json")
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["lost"], result["duplicated"], result["uploads"]) == (0, 0, 80)
    for cell in result["cells"]:
        assert (cell["counted"], cell["connected"], cell["rounds_without"]) == (40, 20, 0)
    names = {"proxy-cell-1", "broker-edge-cell-2", "generator-2", "cloud", "broker-cloud"}
    assert names <= set(result["processes"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_ends_everything_and_leaves_what_was_measured(tmp_path, number):
    command = edgeveil("loadtest", "--devices", 20, "--rounds", 0, "--hold", 600)
    process = subprocess.Popen(
        [*command, "--out", tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A background job of a shell ignores SIGINT; this one must hear it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    log = tmp_path / "logs" / "proxy.log"
    wait_for(lambda: log.exists() and "running" in log.read_text(), "the proxy", 60)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 4
    process.send_signal(number)
    wait_for(lambda: not all(child.is_running() for child in children), "the first end", 60)
    process.send_signal(number)  # once more, while it ends
    assert process.wait(60) == 130
    psutil.wait_procs(children, 10)
    assert not [child for child in children if child.is_running()]
    result = json.loads((tmp_path / "load.json").read_text())
    assert (result["status"], result["reason"]) == ("interrupted", "interrupted")
    assert result["latency_s"]["p50"] is result["acknowledged_s"]["max"] is None


def test_a_terminal_that_is_closed_ends_the_test_in_good_order(tmp_path):
    """Its live picture has nowhere to go any more."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        edgeveil("loadtest", "--devices", 5, "--rounds", 0, "--hold", 600, "--out", tmp_path),
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(its)
    seen = bytearray()
    while b"holding" not in seen:
        seen += os.read(ours, 65536)
    os.close(ours)
    assert process.wait(60) == 130
    result = json.loads((tmp_path / "load.json").read_text())
    assert result["reason"] == "interrupted"


@pytest.mark.drill
def test_a_running_site_is_loaded_over_the_network_and_by_its_folder(tmp_path):
    """The site's own device is enrolled and away: no round waits for it."""
    site, fleet = tmp_path / "site", tmp_path / "load.fleet"
    run = {"check": True, "capture_output": True, "timeout": 120}
    edge, cloud, cloud_http, proxy_http = free_ports(4)
    ports = Ports(edge, cloud, cloud_http, proxy_http)
    provision(LocalSpec(devices=1, ports=ports).site(site))
    subprocess.run(edgeveil("loadtest", "--make-fleet", fleet, "--devices", 6), **run)
    admit = ("proxy", "admit", "--config", site / "proxy.yaml", f"{fleet}.enrolments")
    subprocess.run(edgeveil(*admit), **run)
    users = site / "passwords" / "edge-broker.users"
    users.write_text(users.read_text() + Path(f"{fleet}.users").read_text())
    started = []

    def start(*arguments, **options):
        started.append(subprocess.Popen(edgeveil(*arguments), text=True, **options))
        return started[-1]

    try:
        for side in ("edge", "cloud"):
            start("broker", "--config", site / f"broker-{side}.yaml", stdout=subprocess.DEVNULL)
        wait_for(lambda: all(_open(p) for p in (edge, cloud)), "the ports", 30)
        for role in ("cloud", "proxy"):
            start(role, "--config", site / f"{role}.yaml", stderr=subprocess.DEVNULL)
        wait_for(lambda: all(_open(p) for p in (cloud_http, proxy_http)), "the ports", 60)
        leader = start(
            *("loadtest", "--devices", 6, "--rounds", 2, "--payload-bytes", 1024, "--json"),
            *("--broker", f"mqtt://127.0.0.1:{edge}"),
            *("--cloud", f"http://127.0.0.1:{cloud_http}"),
            *("--proxy-http", f"http://127.0.0.1:{proxy_http}/"),
            *("--token-file", site / "state" / "cloud" / "http.token", "--keys", site / "keys"),
            *("--fleet", fleet, "--deadline", 60),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, said = leader.communicate(timeout=150)
        assert leader.returncode == 0, said
        again = loadtest("--site", site, "--devices", 3, "--rounds", 1, "--json")
        assert again.returncode == 0, again.stderr
        told_by_their_pages(json.loads(again.stdout))
        registry = Registry(site / "state" / "proxy" / REGISTRY_FILE)
        assert len(registry.devices()) == 7  # as before: its own three are out again
        assert len(registry.devices(revoked=True)) == 10
        registry.close()
        _hangs_up(
            start("loadtest", "--site", site, "--devices", 3, "--rounds", 0, "--hold", 600), site
        )
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(20)
    result = json.loads(out)
    assert result["generator"]["processes"] == 1
    assert result["connects"]["devices"] == 6
    assert [row["uploads"] for row in result["rounds"]] == [6, 6]
    assert [row["selected"] for row in result["rounds"]] == [7, 7]
    [warning] = result["warnings"]
    assert warning.startswith("1 enrolled devices that are not of this test were selected")
    assert (result["lost"], result["duplicated"], result["sum_matches"]) == (0, 0, True)
    told_by_their_pages(result)


def _hangs_up(process, site):
    """A test whose terminal is closed takes its own three devices out again."""

    def admitted():
        registry = Registry(site / "state" / "proxy" / REGISTRY_FILE)
        try:
            return len(registry.devices())
        finally:
            registry.close()

    wait_for(lambda: admitted() == 10, "the test's devices", 60)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 130
    assert admitted() == 7


def told_by_their_pages(result):
    """What a running site's cloud and proxy spend is in the result as that of children is."""
    for name in ("cloud", "proxy"):
        used = result["processes"][name]
        assert used["cpu_s"] > 0
        assert used["peak_rss_bytes"] > 1 << 24
        assert result["series"][-1]["rss_bytes"][name] > 1 << 24
        assert used["cpu_ms_per_upload"] is None  # of less than ten seconds


def _open(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
