"""`python -m edgeveil_lab.bench.page`: what the cloud's page costs the cloud, and a browser.

A cloud's HTTP with a store of 100 jobs, one of them with 10,000 events that goes on running, in a
process of its own. Ten watchers follow the list, and the page of that job. With selenium and
Chromium also how long a browser takes to show and to refresh it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp

from edgeveil.jobs import parse_plan
from edgeveil.jobs.plan import Plan
from edgeveil_cloud.http import ControlDesk, HttpThread, make_app
from edgeveil_cloud.http_guard import Scope
from edgeveil_cloud.pages.files import text
from edgeveil_cloud.round_report import exchange_event, summary_of
from edgeveil_cloud.store import Store
from edgeveil_cloud.store_tables import ExchangeRecord

TOKENS: Mapping[Scope, str] = {scope: scope.label[0] * 43 for scope in Scope}
EVENTS, JOBS, WATCHERS = 10_000, 100, 10
EVERY_S = 0.5  # an event of the job that runs
_WATCHED_S = 30.0
_EVENTS_A_ROUND = 3
_TIMELINE = {"seal_s": 0.02, "broadcast_s": 0.05, "wait_s": 0.6, "absorb_s": 0.03}


class IdleControl:
    """What the pages ask of a control, where nothing is submitted."""

    def __init__(self, running: int = 1) -> None:
        self._running = running

    def quote(self, _job_yaml: str) -> Mapping[str, Any]:
        """Nothing is submitted here."""
        raise NotImplementedError

    def status(self) -> Mapping[str, Any]:
        """As the cloud's."""
        job = {"job": "", "state": "broadcasting", "round": 1, "attempt": 1}
        counts = {"enrolled": 20, "queued": 0, "paused": 0, "refused": {}}
        return {"jobs": [job] * self._running, "most_running": 4, **counts}


def played(store: Store, name: str, plan: Plan, rounds: int, *, end: bool = False) -> str:
    """A job with so many committed exchanges, as a cloud would have stored it; its id."""
    entry = store.submit_job(name, plan.job.canonical(), plan.job.digest(), queue_limit=10**6)
    store.set_status(entry.id, "running")
    for index in range(1, rounds + 1):
        commit(store, entry.id, plan, index)
    if end:
        done = min(rounds, len(plan.exchanges))
        store.set_status(entry.id, "completed", "", summary_of(plan, done, 0.95))
    return entry.id


def commit(store: Store, job: str, plan: Plan, index: int) -> None:
    """One exchange, `_EVENTS_A_ROUND` events; past the job's last one as many as wanted follow."""
    exchange, whole = plan.exchange(1 + (index - 1) % len(plan.exchanges)), len(plan.exchanges)
    phase, number = (exchange.phase, exchange.number) if index <= whole else ("train", index)
    label = exchange.label if index <= whole else f"round {index}"
    store.announce(job, {"kind": "round", "selected": 20, "round": label})
    store.append_event(job, "batch", {"round": index, "uploads": 20})
    accuracy = 0.95 - 0.5 / (1 + 0.2 * number) if number else None
    moved = {"cloud_out": 14344, "cloud_in": 52160}
    record = ExchangeRecord(index, phase, number, 1, 20, accuracy, None, 0.7, moved)
    priced = exchange_event(ExchangeRecord(exchange.index, "train", 0, 1, 20), plan, _TIMELINE)
    told = {**exchange_event(record, plan, _TIMELINE), "epsilon": priced["epsilon"]}
    told |= {"declined": 0, "accepted": 20, "refused": {}, "clusters": None, "mean_softmax": None}
    store.commit_exchange(job, record, b"", [("exchange_committed", told)])


def serve(folder: Path, jobs: int, events: int, pipe: Connection) -> None:
    """The process that is measured: says its address, and each time it is asked its CPU seconds."""
    asyncio.run(_serve(folder, jobs, events, pipe))


async def _serve(folder: Path, jobs: int, events: int, pipe: Connection) -> None:
    store, plan = Store(f"sqlite:///{folder / 'cloud.sqlite'}"), parse_plan(text("example.yaml"))
    for number in range(1, jobs):
        played(store, f"job-{number:03d}", plan, 17, end=True)
    rounds = events // _EVENTS_A_ROUND
    job = played(store, "large", plan, rounds)
    desk = ControlDesk(asyncio.get_running_loop(), lambda: store.away)
    control: Any = IdleControl()
    http = HttpThread()
    await http.start(make_app(store, control, lambda: TOKENS, ask=desk), "127.0.0.1", 0)
    pipe.send((http.url, job))
    goes_on = False
    while True:
        await asyncio.sleep(EVERY_S)
        if goes_on:
            rounds += 1
            commit(store, job, plan, rounds)
        while pipe.poll():
            asked = pipe.recv()
            if asked == "end":
                await http.stop()
                store.close()
                return
            goes_on = asked == "go on"
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send(used.ru_utime + used.ru_stime)


@contextmanager
def measured(jobs: int, events: int) -> Iterator[tuple[Connection, str, str]]:
    """(where to ask, address, the large job) of a process as `serve` is."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    # In memory where there is such a place: only filling the store asks the disk for much.
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
    with tempfile.TemporaryDirectory(dir=where) as folder:
        process = context.Process(target=serve, args=(Path(folder), jobs, events, other))
        process.start()
        try:
            url, job = pipe.recv()
            yield pipe, url, job
            pipe.send("end")
            process.join(20)
        finally:
            process.kill()
            process.join()


def cpu_s(pipe: Connection, how: str) -> float:
    """CPU seconds of that process so far; from now on its job goes on (`go on`) or not (`rest`)."""
    pipe.send(how)
    return float(pipe.recv())


async def watch(url: str, job: str, seconds: float, view: bool) -> int:
    """One watcher; how many changes it was sent. With `view` it looks at the job's page too."""
    count, headers = 0, {"Authorization": f"Bearer {TOKENS[Scope.READ]}"}
    async with aiohttp.ClientSession(url, headers=headers, read_bufsize=1 << 22) as session:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), session.get("/v1/page/stream") as stream:
                async for line in stream.content:
                    if not line.startswith(b"data:"):
                        continue
                    count += 1
                    if view:
                        async with session.get(f"/v1/page/jobs/{job}") as answer:
                            await answer.read()
    return count


async def watched(url: str, job: str, seconds: float) -> int:
    """Ten watchers, half of them on the job's page."""
    tasks = [watch(url, job, seconds, view=bool(k % 2)) for k in range(WATCHERS)]
    return sum(await asyncio.gather(*tasks))


async def answers(url: str, job: str) -> dict[str, tuple[float, int]]:
    """Seconds and bytes of what a page asks first, each asked anew and then again."""
    found, headers = {}, {"Authorization": f"Bearer {TOKENS[Scope.READ]}"}
    async with aiohttp.ClientSession(url, headers=headers, read_bufsize=1 << 22) as session:
        for name in ("first", "again"):
            begun_s = time.perf_counter()
            async with session.get("/v1/page/stream") as stream:
                line = await stream.content.readline()
            found[f"the list, {name}"] = time.perf_counter() - begun_s, len(line)
            begun_s = time.perf_counter()
            async with session.get(f"/v1/page/jobs/{job}") as answer:
                content = await answer.read()
            found[f"the large job, {name}"] = time.perf_counter() - begun_s, len(content)
    return found


# --- in a browser ---


def in_browser(url: str, job: str, pipe: Connection, seconds: float) -> dict[str, float]:
    """Milliseconds until the pages stand, and of the browser's main thread for a refresh."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(url)
        driver.find_element("id", "token").send_keys(TOKENS[Scope.READ])
        driver.find_element("tag name", "button").click()
        found = {}
        for name, view, there in (
            ("the list of jobs", "#/jobs", ".job"),
            ("the large job", f"#/job/{job}", ".view .chart canvas"),
        ):
            found[f"{name} stands after, ms"] = _stands(driver, f"{url}/{view}", there)
            paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
            found[f"first paint of {name}, ms"] = float(driver.execute_script(paint))
        count = (
            "window.__n = 0; new MutationObserver(() => { window.__n += 1; })"
            ".observe(document.querySelector('.view'), {childList: true, subtree: true})"
        )
        driver.execute_script(count)
        driver.execute_cdp_cmd("Performance.enable", {})
        cpu_s(pipe, "go on")
        before, times = _busy_s(driver), driver.execute_script("return window.__n")
        time.sleep(seconds)
        spent, refreshes = _busy_s(driver) - before, driver.execute_script("return window.__n")
        cpu_s(pipe, "rest")
        found["main thread for one refresh, ms"] = 1000 * spent / max(1, refreshes - times)
        return found
    finally:
        driver.quit()


def _stands(driver: Any, address: str, there: str) -> float:
    """From the start of the navigation until what is looked for is on the page."""
    driver.get("about:blank")
    driver.get(address)
    wait = (
        "const [what, done] = arguments; const look = () => document.querySelector(what)"
        " ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 5); look();"
    )
    return float(driver.execute_async_script(wait, there))


def _busy_s(driver: Any) -> float:
    told = driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(one["value"] for one in told if one["name"] == "TaskDuration"))


def main() -> None:
    """Print the figures, one line each."""
    parser = argparse.ArgumentParser(prog="python -m edgeveil_lab.bench.page", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--seconds", type=float, default=_WATCHED_S, help="of each measurement")
    parser.add_argument("--no-browser", action="store_true", help="the cloud's side alone")
    args = parser.parse_args()
    with measured(args.jobs, args.events) as (pipe, url, job):
        for what, (took_s, size) in asyncio.run(answers(url, job)).items():
            print(f"{what}: {took_s * 1000:.0f} ms, {size:,} bytes")
        before = cpu_s(pipe, "go on")
        time.sleep(args.seconds)
        alone = cpu_s(pipe, "go on")
        sent = asyncio.run(watched(url, job, args.seconds))
        with_them = cpu_s(pipe, "rest")
        shares = [100 * s / args.seconds for s in (alone - before, with_them - alone)]
        told = {"without watchers": round(shares[0], 2), "with ten": round(shares[1], 2)}
        print(f"CPU of the cloud, % of one processor: {json.dumps(told)}; {sent} changes sent")
        if not args.no_browser:
            for what, value in in_browser(url, job, pipe, args.seconds).items():
                print(f"{what}: {value:.0f}")


if __name__ == "__main__":
    main()
