"""The bare relay: the packets of real uploads over real brokers, every byte counted at the end."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from fl_core.config import load_site
from fl_core.errors import JobFailed
from fl_core.protocol.codec import decode
from fl_core.protocol.messages import Offer, Part
from tools.broker_plan import BrokerPlan
from tools.brokers import BrokerProcess, free_ports
from tools.load.options import LoadOptions
from tools.load.raw import RawSite, ratio, run_raw, upload_frames
from tools.load.raw_parts import RawDevice
from tools.provision import provision
from tools.site_plan import Ports, SitePlan

PACKET_BYTES = 65536


def test_a_small_upload_is_one_packet():
    (frame,) = upload_frames(4096, PACKET_BYTES)
    message = decode(frame, PACKET_BYTES)
    assert isinstance(message, Offer)
    assert len(message.data) > 4096


def test_a_large_one_is_an_offer_and_parts_that_fit():
    frames = upload_frames(200_000, PACKET_BYTES)
    first, *rest = (decode(frame, PACKET_BYTES) for frame in frames)
    assert isinstance(first, Offer) and not first.data
    assert all(isinstance(part, Part) for part in rest)
    assert 200_000 <= sum(len(part.data) for part in rest) < 200_300
    assert len(rest) == 4


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A provisioned site whose two brokers run."""
    folder = tmp_path_factory.mktemp("raw")
    plan = SitePlan(folder / "site", devices=6, ports=Ports(*free_ports(4)))
    made = provision(plan)
    with ExitStack() as stack:
        pids = {}
        for side, file in made.brokers.items():
            limits = load_site(file)
            broker = BrokerProcess(
                BrokerPlan(port=limits.port, acl=side),
                folder / f"broker-{side}",
                users_file=limits.users_file,
            )
            broker.start()
            stack.callback(broker.stop)
            pids[f"broker-{side}"] = broker.pid
        devices = [RawDevice(one, made.passwords["edge"][one]) for one in made.device_ids]
        yield RawSite.load(plan.folder), devices, pids


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
    monkeypatch.setattr("tools.load.raw.STALLED_S", 0.5)
    elsewhere = replace(accounts, onwards=accounts.edge)  # the relay writes to the wrong broker
    with pytest.raises(JobFailed, match="nothing arrives any more, 0 of"):
        run_raw(elsewhere, devices, LoadOptions(payload_bytes=64), rounds=1, brokers=brokers)


def test_a_device_with_a_wrong_password_is_named_as_the_reason(site):
    accounts, devices, brokers = site
    foreign = [RawDevice(devices[0].id, "wrong")]
    with pytest.raises(JobFailed, match="generator-1: a device was turned away"):
        run_raw(accounts, foreign, LoadOptions(payload_bytes=64), rounds=1, brokers=brokers)


def test_passwords_are_not_shown(site):
    accounts, devices, _ = site
    shown = repr(devices) + repr(accounts)
    assert devices[0].password not in shown and accounts.edge.password not in shown


def test_the_ratio_is_of_uploads_a_second_over_all_rounds():
    rounds = [
        {"uploads": 100, "uploads_per_s": 50.0},  # 2 s
        {"uploads": 100, "uploads_per_s": 100.0},  # 1 s
        {"uploads": 0, "uploads_per_s": None},
    ]
    assert ratio({"rounds": rounds}, {"uploads_per_s": 200.0}) == pytest.approx(1 / 3)
    assert ratio({"rounds": []}, {"uploads_per_s": 200.0}) is None


def test_a_site_without_its_files_is_refused(tmp_path: Path):
    with pytest.raises(Exception, match="no such file"):
        RawSite.load(tmp_path)
