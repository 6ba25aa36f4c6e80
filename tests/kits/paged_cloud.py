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
_ROUNDS = {"queued": 0, "running": 9, "paused": 5, "failed": 7}


def played(store, name, plan, rounds, *, end=False):
    """Store a job with so many committed rounds as a cloud does; return its id."""
    entry = store.submit_job(name, plan.job.canonical(), plan.job.digest(), queue_limit=10**6)
    store.set_status(entry.id, "running")
    for index in range(1, rounds + 1):
        commit(store, entry.id, plan, index)
    if end:
        done = min(rounds, len(plan.all_rounds))
        store.set_status(entry.id, "completed", "", summary_of(plan, done, 0.95))
    return entry.id


def commit(store, job, plan, index):
    """Store one round with its three events; `number` may exceed the job's rounds."""
    round, whole = plan.round(1 + (index - 1) % len(plan.all_rounds)), len(plan.all_rounds)
    phase, number = (round.phase, round.number) if index <= whole else ("train", index)
    label = round.label if index <= whole else f"round {index}"
    store.announce(job, {"kind": "round", "selected": 20, "round": label})
    store.append_event(job, "batch", {"round": index, "uploads": 20})
    accuracy = 0.95 - 0.5 / (1 + 0.2 * number) if number else None
    moved = {"cloud_out": 14344, "cloud_in": 52160}
    record = RoundRecord(index, phase, number, 1, 20, accuracy, None, 0.7, moved)
    priced = round_event(RoundRecord(round.index, "train", 0, 1, 20), plan, _TIMELINE)
    told = {**round_event(record, plan, _TIMELINE), "epsilon": priced["epsilon"]}
    told |= {"declined": 0, "accepted": 20, "refused": {}, "clusters": None, "mean_softmax": None}
    store.commit_round(job, record, b"", [("exchange_committed", told)])


class PagedCloud:
    """A context manager; its store may be read and changed."""

    def __init__(self, facts=None):
        self.store, self._facts = Store(), facts
        self._loop, self._http = asyncio.new_event_loop(), HttpThread()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        control = idle_control(self.store)
        control.status = self._status
        control.cancel = self.store.cancel  # there is no machine to be told of it
        app = make_app(
            self.store,
            control,
            lambda: TOKENS,
            ask=ControlDesk(self._loop, lambda: self.store.away),
            facts=self._facts,
        )
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
        if status == "completed":
            return played(self.store, name, _PLAN, 17, end=True)
        if status == "queued":
            entry = self.store.submit_job(name, _PLAN.job.canonical(), _PLAN.job.digest())
            told = {"enrolled": 3, "wanted": 5}
            self.store.append_event(entry.id, "job_waiting", told)
            return entry.id
        job = played(self.store, name, _PLAN, _ROUNDS[status])
        if status != "running":
            self.store.set_status(job, status, reason)
        return job

    def resumes_by_itself(self, job):
        commit(self.store, job, _PLAN, len(self.store.rounds(job)) + 1)

    @staticmethod
    def quoted(job):
        return quote(job, safe="")

    def _status(self):
        running = [{"job": one.id} for one in self.store.jobs() if one.status == "running"]
        counts = self.store.counts()
        return {
            "jobs": running,
            "most_running": 4,
            "enrolled": counts.enrolled,
            "queued": counts.jobs.get("queued", 0),
            "paused": counts.jobs.get("paused", 0),
            "refused": {},
        }
