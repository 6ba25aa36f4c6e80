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


@pytest.mark.drill
def test_a_lost_cell_costs_its_own_devices_until_it_is_back(live):
    live.start_all()
    job = live.submit(rounds=40, every=0, deadline_s=10, min_devices=5)

    def uploads():
        return [one["uploads"] for one in live.client.job(job)["exchanges"]]

    wait_for(lambda: live.committed(job) >= 3, "rounds of both cells")
    assert uploads()[:3] == [DEVICES] * 3
    live.stop(f"proxy-{SOUTH}", signal.SIGKILL)
    before = live.committed(job)
    wait_for(lambda: live.committed(job) >= before + 3, "rounds of one cell", 120)
    assert uploads()[-1] == DEVICES // 2
    assert f"cell={SOUTH}" in live.log("cloud")
    live.start_proxy(SOUTH)
    wait_for(lambda: uploads()[-1] == DEVICES, "rounds of both again", 120)
    wait_for(lambda: live.client.job(job)["ended_at"], "the job's end", 240)
    done = live.client.job(job)
    assert done["status"] == "completed", done["reason"]
    gone = [line for line in live.log("cloud").splitlines() if "cell_gone" in line]
    assert gone and all(f"cell={SOUTH}" in line for line in gone)
    released(live)


def released(live):
    """Wait for the release on every device."""
    said = [f"box-{n}: the job's final model is in use" for n in range(1, DEVICES + 1)]
    wait_for(lambda: all(line in live.log("edge") for line in said), "all releases", 120)


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
    released(live)
