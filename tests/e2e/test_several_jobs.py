"""Two jobs at once over a real broker; the cloud is killed in between, and both end."""

import signal

import pytest

from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.slow


def test_two_jobs_run_at_once_and_go_on_after_a_kill(tmp_path):
    with LiveSite(tmp_path, devices=5) as live:
        live.start_all()
        jobs = [live.submit(rounds=4, every=0) for _ in range(2)]
        running = [{"job": job} for job in jobs]
        wait_for(
            lambda: [{"job": one["job"]} for one in live.client.status()["jobs"]] == running,
            "both jobs' start",
        )
        wait_for(lambda: all(live.client.job(job)["exchanges"] for job in jobs), "both's rounds")
        live.stop("cloud", signal.SIGKILL)
        live.start("cloud", live.site.cloud)
        wait_for(live.answers, "the cloud's second start")
        ended = [live.finish(job) for job in jobs]
        assert [one["status"] for one in ended] == ["completed"] * 2
        for one in ended:
            indices = [round["index"] for round in one["exchanges"]]
            assert indices == list(range(1, len(indices) + 1))
