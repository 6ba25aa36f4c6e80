"""One load test: connect a fleet, hold it idle, play rounds, and measure meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from edgeveil.errors import BrokerError, EdgeVeilError, JobFailed
from edgeveil_lab.load.leader import Leader
from edgeveil_lab.load.processes import ProcessWatch, page
from edgeveil_lab.load.run_log import LoadRunLog, RunMeasurements, SampleSeries, outcome
from edgeveil_lab.load.scenario import LoadOptions, job_yaml
from edgeveil_lab.load.sites import LoadFleet, LocalSite, TargetSite
from edgeveil_tools.cloud_client import Cloud, get_json

_JOIN_S = 60.0
_CONNECT_S = 60.0
_SLOWEST_CONNECTS_PER_S = 100
_ROSTER_S = 60.0
_SETTLE_S = 5.0
_LEAVE_S = 10.0
_LOOK_S = 0.2
_EVENTS_S = 1.0  # waited for the next event

Show = Callable[[dict[str, Any]], None]


class LoadSession:
    """Plays the devices against `target`; `site` is the one started for the test, if any."""

    def __init__(
        self,
        options: LoadOptions,
        fleet: LoadFleet,
        target: TargetSite,
        site: LocalSite | None,
        show: Show,
    ) -> None:
        self._options, self._target, self._site = options, target, site
        self._show = show
        self._leader = Leader(options, fleet, target.cells)
        self._watch = ProcessWatch()
        if site is not None:
            self._watch.add(site.pids())
        else:
            self._watch.add_read("cloud", partial(page, target.cloud, target.token_file))
            self._watch.add_read("proxy", partial(page, target.first.proxy_http))
        self._samples = SampleSeries(self._leader, self._watch)
        self._run_log = LoadRunLog()
        self._phase = "start"
        broker = next(iter(site.brokers.values())).name if site else target.first.broker
        self.measured = RunMeasurements(options, broker)

    @property
    def _cloud(self) -> Cloud:
        # A site loaded over a network is one that was set up for load tests.
        return Cloud(self._target.cloud, self._target.token_file, insecure_http=True)

    async def run(self) -> None:
        """Run all phases; `result` has the measurements so far, however it ends."""
        self._leader.begin()
        sampling = asyncio.create_task(self._sample())
        try:
            ready = ("ready", "connecting")
            await self._until(lambda: self._leader.all_in(*ready), _JOIN_S, "generators hang")
            await self._connect()
            if self._options.hold_s:
                await self._hold(self._options.hold_s)
            if self._options.rounds or self._options.minutes is not None:
                await self._play()
        finally:
            sampling.cancel()
            for cell in self._target.cells:
                self.measured.connected[cell] = self._leader.totals(cell).counts["connected"]
            self._leader.command("stop")
            with suppress(EdgeVeilError):  # of a site that has ended
                await self._pause(_LEAVE_S, lambda: self._leader.all_in("done"))
            self._leader.end()

    def result(self) -> dict[str, Any]:
        with suppress(Exception):
            self._watch.look()
        totals = self._leader.totals()
        by_cell = {cell: self._leader.totals(cell) for cell in self._target.cells}
        return outcome(self.measured, totals, self._run_log, self._samples, self._watch, by_cell)

    async def _connect(self) -> None:
        options, self._phase = self._options, "connecting"
        self._leader.command("connect")
        slowest_s = options.devices / _SLOWEST_CONNECTS_PER_S
        paced_s = options.devices / (options.rate_per_s or 1e9)
        await self._until(
            lambda: self._leader.all_in("connected"),
            _CONNECT_S + paced_s + slowest_s,
            "devices did not connect",
        )
        totals = self._leader.totals()
        self.measured.connecting_s = totals.connecting_s()
        self.measured.connects = totals.counts["connects"]
        self._phase = "greeting"
        problem = "not all devices are enrolled at the cloud"
        await self._until(self._all_known, _ROSTER_S + slowest_s, problem)

    def _all_known(self) -> bool:
        wanted = self._options.devices
        proxies = [one.proxy_http for one in self._target.cells.values() if one.proxy_http]
        with suppress(OSError, EdgeVeilError):
            asked_s = time.time()
            status = self._cloud.status()
            if "time_s" in status and self._site is None:  # else both use one clock
                self._run_log.ahead_s = float(status["time_s"]) - (asked_s + time.time()) / 2
            self.measured.enrolled = int(status.get("enrolled", 0))
            if self.measured.enrolled < wanted:
                return False
            online = sum(get_json(url, "/status").get("online", 0) for url in proxies)
            return not proxies or online >= wanted
        return False

    async def _hold(self, hold_s: float) -> None:
        self._phase = "holding"
        await self._look()
        began_s, cpu, before = time.monotonic(), self._watch.cpu_s(), self._leader.totals().counts
        await self._pause(hold_s)
        await self._look()
        elapsed_s, after = time.monotonic() - began_s, self._leader.totals().counts
        moved = sum(after[n] - before[n] for n in ("bytes_up", "bytes_down"))
        self.measured.idle = {
            "seconds": round(elapsed_s, 2),
            "connected": after["connected"],
            "cpu_percent": {
                name: round(100 * (now_s - cpu[name]) / elapsed_s, 2)
                for name, now_s in self._watch.cpu_s().items()
                if name in cpu
            },
            "rss_bytes": self._watch.rss_bytes(),
            "bytes_per_s": round(moved / elapsed_s, 1),
        }

    async def _play(self) -> None:
        options, client = self._options, self._cloud
        self._phase = "announcing the job"
        await self._mark()
        job_text = job_yaml(options, self.measured.enrolled)
        job = await asyncio.to_thread(client.submit_yaml, job_text)
        end_s = time.monotonic() + 60 * options.minutes if options.minutes is not None else None
        try:
            await self._follow(job, end_s)
        finally:
            if self._run_log.ended in ("", "paused"):
                with suppress(EdgeVeilError):
                    await asyncio.to_thread(client.cancel, job)
        await asyncio.sleep(2 * _LOOK_S)
        await self._pause(_SETTLE_S, lambda: not self._leader.totals().counts["waiting"])
        await asyncio.sleep(1.0)  # the report after the last commit record
        if (ended := self._run_log.ended) not in ("", "completed"):
            reason = self._run_log.reason or f"the job {ended}"
            raise JobFailed(reason, where=job, fix="see the logs of cloud and proxy")

    async def _follow(self, job: str, end_s: float | None) -> None:
        after = 0
        while not self._run_log.ended:
            done = len(self._run_log.committed)
            for event in await asyncio.to_thread(self._cloud.events, job, after, _EVENTS_S):
                after = int(event["seq"])
                self._run_log.take(event)
                self._phase = self._run_log.phase or self._phase
            if len(self._run_log.committed) > done:
                await self._mark()
                if end_s is not None and time.monotonic() > end_s:
                    await self._pause(_SETTLE_S, self._recorded)
                    return
            self._check()

    def _recorded(self) -> bool:
        # A cancelled job sends no commit record, so the last one must have reached the devices.
        last = self._run_log.committed[-1]
        row = self._leader.totals().rounds.get((last["round"], last["attempt"]))
        return row is not None and row["counted"] >= last["uploads"]

    async def _look(self) -> None:
        self._watch.add(self._leader.pids)
        await asyncio.to_thread(self._watch.look)

    async def _mark(self) -> None:
        await self._look()
        down, done = self._leader.totals().counts["bytes_down"], len(self._run_log.committed)
        self.measured.marks.append((self._watch.cpu_s(), down, done, time.monotonic()))

    async def _sample(self) -> None:
        while True:
            await self._look()
            self._show(self._samples.take(self._phase, len(self._run_log.committed)))
            await asyncio.sleep(1.0)

    async def _pause(self, seconds: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Wait until `done` or for so long; return whether it is done."""
        end_s = time.monotonic() + seconds
        while not await asyncio.to_thread(done):
            self._check()
            if time.monotonic() >= end_s:
                return False
            await asyncio.sleep(min(_LOOK_S, max(0.01, end_s - time.monotonic())))
        return True

    async def _until(self, done: Callable[[], bool], limit_s: float, problem: str) -> None:
        if not await self._pause(limit_s, done):
            totals = self._leader.totals()
            refused = "; ".join(f"{k}: {n}" for k, n in totals.refused.most_common(3))
            raise BrokerError(
                f"after {limit_s:.0f} s: {problem}"
                f" ({totals.counts['connected']} of {self._options.devices} are connected)",
                where=self._target.first.broker,
                fix=refused or "see the logs of broker and proxy",
            )

    def _check(self) -> None:
        if self._site is not None:
            self._site.check()
        self._leader.check()
