"""`edgeveil loadtest` as a user starts it: real brokers, cloud, proxy and generators."""

import json
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from edgeveil_proxy.registry import REGISTRY_FILE, Registry
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.provision import LocalSpec, Ports, provision
from tests.kits.commands import edgeveil, ran
from tests.kits.guides import is_free
from tests.kits.live_site import wait_for

pytestmark = pytest.mark.slow

HELD = ("loadtest", "--rounds", 0, "--hold", 600)
PHASES = ("broadcast_s", "upload_s", "handover_s", "absorb_s")


def loadtest(*arguments):
    return json.loads(ran("loadtest", "--json", *arguments, timeout=200).stdout)


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
    result = loadtest("--devices", 20, "--rounds", 2, "--hold", 1, "--out", tmp_path, *how)
    assert json.loads((tmp_path / "load.json").read_text()) == result
    assert (tmp_path / "load.html").stat().st_size > 1000
    assert result["status"] == "completed"
    assert (result["lost"], result["duplicated"], result["refused"]) == (0, 0, {})
    assert (result["sum_matches"], result["warnings"]) == (True, [])
    assert [(row["round"], row["uploads"]) for row in result["rounds"]] == [(1, 20), (2, 20)]
    for row in result["rounds"]:
        assert sum(row[phase] for phase in PHASES) == pytest.approx(row["seconds"], abs=0.01)
        assert row["upload_bytes"] > result["options"]["payload_bytes"]
    assert result["connects"]["devices"] == 20
    assert result["uploads_per_s"] > 0 < result["latency_s"]["p50"] <= result["latency_s"]["max"]
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


def test_devices_that_drop_and_a_storm_lose_nothing_that_was_acknowledged(tmp_path):
    result = loadtest(
        *("--devices", 30, "--rounds", 3, "--payload-bytes", 70000, "--drop", 0.3),
        *("--reconnect-storm", "--quorum", 0.6, "--grace", 3),
    )
    assert result["connects"]["reconnects"] >= 30
    assert (result["lost"], result["duplicated"]) == (0, 0)
    assert len(result["rounds"]) == 3


def test_ctrl_c_ends_everything_and_leaves_what_was_measured(tmp_path):
    command = edgeveil(*HELD, "--devices", 20, "--out", tmp_path)
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # A background job of a shell ignores SIGINT; this one must hear it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    log = tmp_path / "logs" / "proxy.log"
    wait_for(lambda: log.exists() and "running" in log.read_text(), "the proxy", 60)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 4
    process.send_signal(signal.SIGINT)
    wait_for(lambda: not all(child.is_running() for child in children), "the first end", 60)
    process.send_signal(signal.SIGINT)  # once more, while it ends
    assert process.wait(60) == 130
    psutil.wait_procs(children, 10)
    assert not [child for child in children if child.is_running()]
    result = json.loads((tmp_path / "load.json").read_text())
    assert (result["status"], result["reason"]) == ("interrupted", "interrupted")
    assert result["latency_s"]["p50"] is result["acknowledged_s"]["max"] is None


@pytest.mark.drill
def test_a_running_site_is_loaded_over_the_network_and_by_its_folder(tmp_path):
    """The site's own device is enrolled and away: no round waits for it."""
    site, fleet = tmp_path / "site", tmp_path / "load.fleet"
    edge, cloud, cloud_http, proxy_http = free_ports(4)
    ports = Ports(edge, cloud, cloud_http, proxy_http)
    provision(LocalSpec(devices=1, ports=ports).site(site))
    ran("loadtest", "--make-fleet", fleet, "--devices", 6)
    ran("proxy", "admit", "--config", site / "proxy.yaml", f"{fleet}.enrolments")
    users = site / "passwords" / "edge-broker.users"
    users.write_text(users.read_text() + Path(f"{fleet}.users").read_text())
    started = []

    def start(*arguments, **options):
        started.append(subprocess.Popen(edgeveil(*arguments), text=True, **options))
        return started[-1]

    try:
        for side in ("edge", "cloud"):
            start("broker", "--config", site / f"broker-{side}.yaml", stdout=subprocess.DEVNULL)
        await_open(edge, cloud)
        for role in ("cloud", "proxy"):
            start(role, "--config", site / f"{role}.yaml", stderr=subprocess.DEVNULL)
        await_open(cloud_http, proxy_http)
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
        told_by_their_pages(loadtest("--site", site, "--devices", 3, "--rounds", 1))
        assert admitted(site) == 7  # as before: its own three are out again
        assert admitted(site, revoked=True) == 10
        again = start(*HELD, "--site", site, "--devices", 3)
        wait_for(lambda: admitted(site) == 10, "the test's devices", 60)
        again.send_signal(signal.SIGHUP)  # its terminal is closed
        assert again.wait(60) == 130
        assert admitted(site) == 7
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(20)
    result = json.loads(out)
    assert (result["generator"]["processes"], result["connects"]["devices"]) == (1, 6)
    assert [(row["uploads"], row["selected"]) for row in result["rounds"]] == [(6, 7), (6, 7)]
    assert len(result["warnings"]) == 1  # of the site's own device, which was selected too
    assert (result["lost"], result["duplicated"], result["sum_matches"]) == (0, 0, True)
    told_by_their_pages(result)


def admitted(site, **options):
    with closing(Registry(site / "state" / "proxy" / REGISTRY_FILE)) as registry:
        return len(registry.devices(**options))


def await_open(*ports):
    for port in ports:
        wait_for(lambda port=port: not is_free(port), f"port {port}")


def told_by_their_pages(result):
    for name in ("cloud", "proxy"):
        used = result["processes"][name]
        assert used["cpu_s"] > 0
        assert used["peak_rss_bytes"] > 1 << 24
        assert result["series"][-1]["rss_bytes"][name] > 1 << 24
        assert used["cpu_ms_per_upload"] is None  # of less than ten seconds
