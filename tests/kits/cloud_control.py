"""A cloud's control without its machine and broker: its answers to submitted jobs."""

import asyncio
import threading
from contextlib import contextmanager

from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job
from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.http import make_app
from edgeveil_cloud.http_guard import TokenFolder
from edgeveil_cloud.rollouts import shown_rollout
from edgeveil_cloud.store import Store


def idle_control(store, *, python_models=False):
    host = CloudHost(store, None, BroadcastLimits(4096))
    return Control(store, host, None, None, python_models=python_models)


class StoreControl:
    def __init__(self, store):
        self.store, self.cancel, self.resume = store, store.cancel, store.resume

    def check(self, job_yaml):
        parse_job(job_yaml, "submitted.yaml")

    def submit(self, job_yaml):
        job = parse_job(job_yaml, "submitted.yaml")
        return self.store.submit_job(job.job, job.canonical(), job.digest()).id

    def releases(self, job=None):
        return [shown_rollout(one) for one in self.store.rollouts.all() if job in (None, one.job)]

    def withdraw(self, job):
        self.store.rollouts.move(self.store.job(job).id, "withdrawn", "withdrawn by the operator")

    def promote(self, job):
        self.store.rollouts.move(self.store.job(job).id, "all", "promoted by the operator")

    def status(self):
        return {"enrolled": 3}


class PlainControl(StoreControl):
    """A control that queues any text beginning with `job:`, and runs nothing."""

    def check(self, job_yaml):
        if not job_yaml.startswith("job:"):
            raise ConfigError(["job.yaml:1 job: missing", "job.yaml:2 x: unknown key"])

    def submit(self, job_yaml):
        self.check(job_yaml)
        return self.store.submit_job("quickstart", b"{}", bytes(32)).id


@contextmanager
def served(state_dir, at=None, clients=None):
    """Yield (url, store) of a control served by a thread; its tokens are in `state_dir`."""
    store, ready = Store(), threading.Event()
    found = {}

    async def run():
        app = make_app(store, StoreControl(store), TokenFolder(state_dir), clients=clients)
        server = await (app.start(at) if at else app.start())
        found.update(url=server.url, loop=asyncio.get_running_loop(), end=asyncio.Event())
        ready.set()
        await found["end"].wait()
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(20)
    try:
        yield found["url"], store
    finally:
        found["loop"].call_soon_threadsafe(found["end"].set)
        thread.join()
        store.close()
