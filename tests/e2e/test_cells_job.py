"""A job over two cells, each with an edge broker and a proxy of its own, as real processes."""

from tests.kits.live_site import LiveSite, wait_for

DEVICES = 12  # half of them in each cell; a batch needs five


def test_the_brokers_of_a_cell_may_be_away_when_the_cloud_starts(tmp_path):
    with LiveSite(tmp_path, DEVICES, cells=2) as live:
        live.start("cloud", live.site.cloud)
        live.start_proxy("cell-1")
        live.start("edge", *live.site.edges)
        wait_for(live.answers, "the cloud's start")
        wait_for(lambda: live.online("cell-1") == DEVICES // 2, "the hellos of one cell")
        done = live.completed(live.submit(rounds=2, every=0, min_devices=5))
        assert {one["uploads"] for one in done["exchanges"]} == {DEVICES // 2}
        live.start_proxy("cell-2")  # a release reaches its devices once its proxy is there
        live.wait_released()
