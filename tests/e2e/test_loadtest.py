"""`edgeveil loadtest` as a user starts it: real brokers, cloud, proxy and generators."""

import json
import signal
import subprocess
from contextlib import closing

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


@pytest.mark.drill
def test_cells_share_the_devices_and_lose_nothing():
    result = loadtest("--cells", 2, "--devices", 40, "--rounds", 2, "--payload-bytes", 1024)
    assert (result["lost"], result["duplicated"], result["uploads"]) == (0, 0, 80)
    for cell in result["cells"]:
        assert (cell["counted"], cell["connected"], cell["rounds_without"]) == (40, 20, 0)
    names = {"proxy-cell-1", "broker-edge-cell-2", "generator-2", "cloud", "broker-cloud"}
    assert names <= set(result["processes"])


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
def test_a_running_site_is_loaded_and_what_the_test_admitted_is_out_again(tmp_path):
    """The site's own device is enrolled and away: no round waits for it."""
    site = tmp_path / "site"
    ports = Ports(*free_ports(4))
    provision(LocalSpec(devices=1, ports=ports).site(site))
    started = []

    def start(*arguments):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        started.append(subprocess.Popen(edgeveil(*arguments), **quiet))
        return started[-1]

    try:
        for name in ("broker-edge", "broker-cloud", "cloud", "proxy"):
            start(name.partition("-")[0], "--config", site / f"{name}.yaml")
        for port in (ports.edge, ports.cloud, ports.cloud_http, ports.proxy_http):
            wait_for(lambda port=port: not is_free(port), f"port {port}")
        result = loadtest("--site", site, "--devices", 3, "--rounds", 1)
        assert (admitted(site), admitted(site, revoked=True)) == (1, 4)
        again = start(*HELD, "--site", site, "--devices", 3)
        wait_for(lambda: admitted(site) == 4, "the test's devices", 60)
        again.send_signal(signal.SIGHUP)  # its terminal is closed
        assert again.wait(60) == 130
        assert admitted(site) == 1
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(20)
    assert (result["lost"], result["duplicated"], result["sum_matches"]) == (0, 0, True)
    for name in ("cloud", "proxy"):  # told by their pages, as those of children are
        used = result["processes"][name]
        assert used["cpu_s"] > 0 and used["peak_rss_bytes"] > 1 << 24
        assert result["series"][-1]["rss_bytes"][name] > 1 << 24


def admitted(site, **options):
    with closing(Registry(site / "state" / "proxy" / REGISTRY_FILE)) as registry:
        return len(registry.devices(**options))
