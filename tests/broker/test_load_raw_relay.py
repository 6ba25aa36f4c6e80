"""The bare relay over real brokers: every byte is counted at the end, and faults are named."""

from contextlib import ExitStack

import pytest

from edgeveil.config.site_files import load_site
from edgeveil.errors import JobFailed
from edgeveil_lab.load.raw_relay import RawDevice, raw_site, run_raw
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec, free_ports
from edgeveil_tools.site.provision import Ports, SiteSpec, provision

pytestmark = pytest.mark.drill


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A provisioned site whose two brokers run."""
    folder = tmp_path_factory.mktemp("raw")
    plan = SiteSpec(folder / "site", devices=6, ports=Ports(*free_ports(4)))
    made = provision(plan)
    with ExitStack() as stack:
        pids = {}
        for side, file in made.brokers.items():
            limits = load_site(file)
            broker = BrokerProcess(
                BrokerSpec(port=limits.port, acl=side),
                folder / f"broker-{side}",
                users_file=limits.users_file,
            )
            broker.start()
            stack.callback(broker.stop)
            pids[f"broker-{side}"] = broker.pid
        devices = [RawDevice(one, made.passwords["edge"][one]) for one in made.device_ids]
        yield raw_site(plan.folder), devices, pids


def test_every_upload_arrives_and_is_measured(site):
    accounts, devices, brokers = site
    options = LoadOptions(processes=2, payload_bytes=65536)
    found = run_raw(accounts, devices, options, rounds=2, brokers=brokers)
    assert (found["uploads"], found["upload_messages"]) == (12, 3)
    assert 65536 < found["upload_bytes"] < 67000
    assert found["mb_per_s"]["up"] == pytest.approx(
        found["uploads_per_s"] * found["upload_bytes"] / 1e6, rel=1e-3
    )
    assert [row["uploads"] for row in found["rounds"]] == [6, 6]
    assert set(found["processes"]) == {
        "relay", "sink", "generator-1", "generator-2", "broker-edge", "broker-cloud",
    }  # fmt: skip
    assert all(one["peak_rss_bytes"] > 1 << 20 for one in found["processes"].values())


def test_it_stops_where_nothing_arrives(site, monkeypatch):
    accounts, devices, brokers = site
    monkeypatch.setattr("edgeveil_lab.load.raw_relay.STALLED_S", 0.5)
    elsewhere = accounts._replace(onwards=accounts.edge)  # the relay writes to the wrong broker
    with pytest.raises(JobFailed, match="nothing arrives any more, 0 of"):
        run_raw(elsewhere, devices, LoadOptions(payload_bytes=64), 1, brokers)
