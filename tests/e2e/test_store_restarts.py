"""A cloud whose store is on PostgreSQL, and a server that goes away in every phase of a job."""

import json
import time
from contextlib import suppress

import pytest
import sqlalchemy as sa

from edgeveil_cloud.role import STORE_FILE
from edgeveil_cloud.store import Store
from tests.chaos import checks
from tests.chaos.evidence import collect, tap_site
from tests.kits.commands import changed
from tests.kits.live_site import LiveSite, page, wait_for
from tests.kits.postgres_server import postgres_server

pytestmark = pytest.mark.slow
DEVICES = 5
END_S = 120.0
RESTART_S = 20.0  # of a server whose processes have yet to see that the first one is gone


class StoredElsewhere(LiveSite):
    def __init__(self, folder, server):
        super().__init__(folder, devices=DEVICES)
        self.server = server
        with changed(self.site.cloud) as settings:
            settings["cloud"]["store_url"] = server.url

    def begin(self):
        self.start_all()
        tap_site(self.spec)
        return self.submit(rounds=3, every=0)

    def wait_said(self, *words):
        def said():
            lines = self.log("cloud").splitlines()
            return any(all(word in line for word in words) for line in lines)

        wait_for(said, f"the cloud's line with {words}", every_s=0.002)

    def health(self):
        return json.loads(page(f"{self.spec.url}/healthz")[1] or "{}")

    def copy_store(self):
        """To the file in which a cloud without a server has it."""
        path = self.spec.folder / "state" / "cloud" / STORE_FILE
        Store(f"sqlite:///{path}").close()
        copy, metadata = sa.create_engine(f"sqlite:///{path}"), sa.MetaData()
        there = sa.create_engine(self.server.url.replace("postgresql", "postgresql+psycopg"))
        metadata.reflect(copy)
        with there.connect() as source, copy.begin() as target:
            for table in metadata.sorted_tables:
                target.execute(table.delete())
                if rows := [dict(row._mapping) for row in source.execute(table.select())]:
                    target.execute(table.insert(), rows)
        for engine in (there, copy):
            engine.dispose()


def away_and_back(live, stop):
    stop()
    wait_for(lambda: live.health().get("parts") == ["store"], "the store's absence on /healthz")
    end_s = time.monotonic() + RESTART_S
    while True:
        with suppress(Exception):
            live.server.start()
            break
        assert time.monotonic() < end_s, "the server does not start again"
        time.sleep(0.2)
    wait_for(lambda: live.health() == {"status": "ok"}, "a sound cloud again")


def held_commit(live):
    """Hold the next commit of a round up inside its transaction, until the server is gone."""
    engine = sa.create_engine(
        live.server.url.replace("postgresql", "postgresql+psycopg"), poolclass=sa.pool.NullPool
    )
    with engine.connect() as holder:
        holder.execute(sa.text("LOCK TABLE exchanges IN SHARE MODE"))
        waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        yield
        wait_for(lambda: holder.execute(waiting).scalar(), "a commit under way", every_s=0.01)
        yield
        holder.invalidate()


@pytest.mark.drill
def test_a_job_ends_whenever_the_server_goes_away(tmp_path):
    with postgres_server() as server, StoredElsewhere(tmp_path, server) as live:
        job = live.begin()
        away_and_back(live, server.stop)  # while the job is sealed
        live.wait_said("held", "round=1")
        away_and_back(live, server.kill)  # while its answers are waited for
        live.wait_said("batch", "round=2")
        server.restart()  # while they are taken in
        commit = held_commit(live)
        next(commit)
        next(commit)
        away_and_back(live, server.kill)  # in the midst of a commit
        next(commit, None)
        live.wait_said("kind=release")
        away_and_back(live, server.stop)  # while the model goes out
        wait_for(lambda: live.client.job(job)["ended_at"], "the job's end", END_S)
        live.wait_released()
        live.stop_all()
        live.copy_store()
        found, log = collect(live.site, live.logs), live.log("cloud")
    assert [one.status for one in found.jobs] == ["completed"]
    checks.all_hold(found, *checks.KEPT)
    told = [line for line in log.splitlines() if "store_away" in line or "store_back" in line]
    assert ["store_away" in line for line in told] == [True, False] * (len(told) // 2)
    assert 4 <= len(told) // 2 <= 5  # once for each time, of which a restart may pass unseen
    assert "Traceback" not in log
