"""A cloud's pages without its machine: a store with jobs as a cloud leaves them."""

import asyncio
import threading
from pathlib import Path
from urllib.parse import quote

from edgeveil.jobs import parse_plan
from edgeveil_cloud.http import ControlDesk, HttpThread, make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.round_report import round_event, summary_of
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import RoundRecord
from tests.kits.cloud_control import idle_control

TOKENS = {scope: scope.label[0] * 43 for scope in Scope}
_TIMELINE = {"seal_s": 0.02, "broadcast_s": 0.05, "wait_s": 0.6, "absorb_s": 0.03}
HOSTILE = "<img src=x onerror=alert(1)>"
_PLAN = parse_plan(Path(__file__).with_name("example.yaml").read_text("utf-8"))


class PagedCloud:
    """A context manager; its store may be read and changed."""

    def __init__(self):
        self.store = Store()
        self._loop, self._http = asyncio.new_event_loop(), HttpThread()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        control = idle_control(self.store)
        control.status = lambda: {"jobs": [], "enrolled": 0, "queued": 0, "refused": {}}
        control.cancel = self.store.cancel  # there is no machine to be told of it
        desk = ControlDesk(self._loop, lambda: self.store.away)
        app = make_app(self.store, control, lambda: TOKENS, ask=desk)
        self._there(self._http.start(app, "127.0.0.1", 0))
        return self

    def __exit__(self, *_):
        self._there(self._http.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.store.close()

    def _there(self, what):
        asyncio.run_coroutine_threadsafe(what, self._loop).result(30)

    @property
    def url(self):
        return self._http.url

    def job(self, name, status, reason=""):
        """Store a job with five committed rounds, which then completed or paused."""
        job = self.store.submit_job(name, _PLAN.job.canonical(), _PLAN.job.digest()).id
        self.store.set_status(job, "running")
        for index in range(1, 6):
            round = _PLAN.round(index)
            self.store.announce(job, {"kind": "round", "selected": 20, "round": round.label})
            self.store.append_event(job, "batch", {"round": index, "uploads": 20})
            moved = {"cloud_out": 14344, "cloud_in": 52160}
            scored = 0.9 if round.number else None
            record = RoundRecord(index, round.phase, round.number, 1, 20, scored, None, 0.7, moved)
            event = {**round_event(record, _PLAN, _TIMELINE), "declined": 0, "accepted": 20}
            event |= {"refused": {}, "clusters": None, "mean_softmax": None}
            self.store.commit_round(job, record, b"", [("exchange_committed", event)])
        end = {"data": summary_of(_PLAN, 5, 0.95)} if status == "completed" else {}
        self.store.set_status(job, status, reason, *end.values())
        return job

    @staticmethod
    def quoted(job):
        return quote(job, safe="")
