"""Releases over real brokers: a canary first, then the rest, or back to the release before."""

import json

from edgeveil_edge.releases import ReleaseStore
from tests.kits.live_site import LiveSite, site_job, wait_for

DEVICES = 6
CANARY = 4
# What passes at the cloud fails on devices whose trial accepts smaller records alone.
LOWER_LIMIT = """import edgeveil_edge.release_trial as trial
trial._RECORD_NUMBERS = 1
"""


def submit(live, **release):
    text = site_job(live.spec.devices, rounds=1)
    lines = "".join(f"  {name}: {value}\n" for name, value in release.items())
    return live.client.submit_yaml(f"{text}\nrelease:\n{lines}".encode())


def stores(live):
    folder = live.spec.folder / "state"
    return [ReleaseStore(folder / f"edge-{n}" / "releases") for n in range(1, DEVICES + 1)]


def jobs_in_use(live):
    """The digest in use on each device, "" before the first."""
    return [found.digest if (found := store.current()) else "" for store in stores(live)]


def withdrawn(store):
    """Digests of the models that a device had in use and left."""
    return json.loads((store.folder / "current.json").read_text())["withdrawn"]


def stage(live, job):
    return live.client.release(job)["stage"]


def test_a_release_that_fails_on_some_devices_is_stopped_at_its_canary(tmp_path):
    with LiveSite(tmp_path, devices=DEVICES) as live:
        strict = tmp_path / "strict"
        strict.mkdir()
        live.start_all()
        good = submit(live, canary_share=0.5, canary_floor=CANARY, soak_s=4)
        live.finish(good)
        assert live.client.release(good)["canary"] == CANARY
        wait_for(lambda: stage(live, good) == "all", "the good release goes on to all")
        wait_for(lambda: len(set(jobs_in_use(live))) == 1 and all(jobs_in_use(live)), "it is there")
        first = jobs_in_use(live)

        live.stop("edge")
        live.start("edge-strict", *live.site.edges[:3], blocked=strict, begins_with=LOWER_LIMIT)
        live.start("edge-usual", *live.site.edges[3:])
        wait_for(lambda: live.proxy_status().get("online") == DEVICES, "all hellos")
        bad = submit(live, canary_share=0.5, canary_floor=CANARY, soak_s=4)
        live.finish(bad)
        wait_for(lambda: stage(live, bad) == "withdrawn", "the bad release is withdrawn")
        shown = live.client.job(bad)["release"]
        counts = shown["reports"]["canary"]
        assert counts["failed_trial"] >= 1
        assert sum(counts.values()) <= CANARY
        assert "could not use it" in shown["reason"]
        assert "all" not in shown["reports"]

        failed = live.log("edge-strict").count("is not put in use")
        wait_for(lambda: jobs_in_use(live) == first, "every device is back at the release before")
        # Nobody but the canary ever had it, and of that nobody whose trial failed.
        assert sum(map(bool, map(withdrawn, stores(live)))) <= CANARY - failed
        assert {len(store.history()) for store in stores(live)} == {1}
