"""Jobs over two cells, each with an edge broker and a proxy of its own, as real processes."""

import signal

import pytest

from tests.kits.live_site import LiveSite, wait_for

NORTH, SOUTH = "cell-1", "cell-2"
DEVICES = 12  # half of them in each cell; a batch needs five


@pytest.fixture
def live(tmp_path):
    with LiveSite(tmp_path, DEVICES, cells=2) as found:
        yield found


def rounds(live, job):
    return live.client.job(job)["exchanges"]


@pytest.mark.drill
def test_a_lost_cell_costs_its_own_devices_until_it_is_back(live):
    live.start_all()
    job = live.submit(rounds=40, every=0, deadline_s=10, min_devices=5)
    wait_for(lambda: len(rounds(live, job)) >= 3, "rounds of both cells")
    assert [one["uploads"] for one in rounds(live, job)][:3] == [DEVICES] * 3
    live.stop(f"proxy-{SOUTH}", signal.SIGKILL)
    before = len(rounds(live, job))
    wait_for(lambda: len(rounds(live, job)) >= before + 3, "rounds of one cell", 120)
    assert rounds(live, job)[-1]["uploads"] == DEVICES // 2
    assert f"cell={SOUTH}" in live.log("cloud")
    live.start_proxy(SOUTH)
    wait_for(lambda: rounds(live, job)[-1]["uploads"] == DEVICES, "rounds of both again", 120)
    wait_for(lambda: live.client.job(job)["ended_at"], "the job's end", 240)
    done = live.client.job(job)
    assert done["status"] == "completed", done["reason"]
    gone = [line for line in live.log("cloud").splitlines() if "cell_gone" in line]
    assert gone and all(f"cell={SOUTH}" in line for line in gone)
    wait_for(lambda: all(_in_use(live, n) for n in range(1, DEVICES + 1)), "all releases")


def _in_use(live, number):
    return f"box-{number}: the job's final model is in use" in live.log("edge")


def test_the_brokers_of_a_cell_may_be_away_when_the_cloud_starts(live):
    """And a release reaches its devices once its proxy is there."""
    live.start("cloud", live.site.cloud)
    live.start_proxy(NORTH)
    live.start("edge", *live.site.edges)
    wait_for(live.answers, "the cloud's start")
    wait_for(lambda: live.online(NORTH) == DEVICES // 2, "the hellos of one cell")
    job = live.submit(rounds=2, every=0, min_devices=5)
    done = live.completed(job)
    assert {one["uploads"] for one in done["exchanges"]} == {DEVICES // 2}
    live.start_proxy(SOUTH)
    wait_for(lambda: all(_in_use(live, n) for n in range(1, DEVICES + 1)), "all releases", 120)
