"""Releases over real brokers: a canary first, then the rest, or back to the release before."""

import json

import pytest

from edgeveil_edge.releases import ReleaseStore
from tests.kits.live_site import LiveSite, site_job, wait_for

pytestmark = pytest.mark.slow
DEVICES = 6
CANARY = 4
# What passes at the cloud fails on devices whose trial accepts smaller records alone.
LOWER_LIMIT = """import edgeveil_edge.release_trial as trial
trial._RECORD_NUMBERS = 1
"""


def stores(live):
    folder = live.spec.folder / "state"
    return [ReleaseStore(folder / f"edge-{n}" / "releases") for n in range(1, DEVICES + 1)]


def in_use(live):
    return [found.digest if (found := store.current()) else "" for store in stores(live)]


def withdrawn(store):
    return json.loads((store.folder / "current.json").read_text())["withdrawn"]


def submit(live, stage):
    text = site_job(live.spec.devices, rounds=1)
    release = f"release: {{canary_share: 0.5, canary_floor: {CANARY}, soak_s: 4}}\n"
    job = live.client.submit_yaml(f"{text}\n{release}".encode())
    live.finish(job)
    wait_for(lambda: live.client.release(job)["stage"] == stage, f"the stage {stage}")
    return live.client.release(job)


def test_a_release_that_fails_on_some_devices_is_stopped_at_its_canary(tmp_path):
    with LiveSite(tmp_path, devices=DEVICES) as live:
        strict = tmp_path / "strict"
        strict.mkdir()
        live.start_all()
        assert submit(live, "all")["canary"] == CANARY
        wait_for(lambda: len(set(in_use(live))) == 1 and all(in_use(live)), "it is there")
        first = in_use(live)

        live.stop("edge")
        live.start("edge-strict", *live.site.edges[:3], blocked=strict, begins_with=LOWER_LIMIT)
        live.start("edge-usual", *live.site.edges[3:])
        wait_for(lambda: live.proxy_status().get("online") == DEVICES, "all hellos")
        shown = submit(live, "withdrawn")
        counts = shown["reports"]["canary"]
        assert counts["failed_trial"] >= 1
        assert sum(counts.values()) <= CANARY
        assert "all" not in shown["reports"]

        failed = live.log("edge-strict").count("is not put in use")
        wait_for(lambda: in_use(live) == first, "every device is back at the release before")
        # Nobody but the canary ever had it, and of that nobody whose trial failed.
        assert sum(map(bool, map(withdrawn, stores(live)))) <= CANARY - failed
        assert {len(store.history()) for store in stores(live)} == {1}
