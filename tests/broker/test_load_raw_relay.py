"""The bare relay over real brokers: every byte is counted at the end, and faults are named."""

import pytest

from edgeveil.config.site_files import load_site
from edgeveil.errors import JobFailed
from edgeveil_lab.load.raw_relay import RawDevice, raw_site, run_raw
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_tools.site.brokers import free_ports
from edgeveil_tools.site.provision import Ports, SiteSpec, provision

pytestmark = pytest.mark.drill


@pytest.fixture
def site(tmp_path, start):
    """A provisioned site whose two brokers run."""
    made = provision(SiteSpec(tmp_path / "site", devices=6, ports=Ports(*free_ports(4))))
    pids = {}
    for side, file in made.brokers.items():
        limits = load_site(file)
        broker = start(None, users_file=limits.users_file, port=limits.port, acl=side)
        pids[f"broker-{side}"] = broker.pid
    devices = [RawDevice(one, made.passwords["edge"][one]) for one in made.device_ids]
    return raw_site(tmp_path / "site"), devices, pids


def test_it_stops_where_nothing_arrives(site, monkeypatch):
    accounts, devices, brokers = site
    monkeypatch.setattr("edgeveil_lab.load.raw_relay.STALLED_S", 0.5)
    elsewhere = accounts._replace(onwards=accounts.edge)  # the relay writes to the wrong broker
    with pytest.raises(JobFailed, match="nothing arrives any more"):
        run_raw(elsewhere, devices, LoadOptions(payload_bytes=64), 1, brokers)
