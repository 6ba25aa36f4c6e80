"""Health: which part fails, a disk that is gone and a disk that hangs."""

import asyncio
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from edgeveil.transport import health
from edgeveil.transport.health import Health, Probe, writable
from edgeveil.transport.http import Request


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


async def test_the_page_names_the_parts_that_fail_and_nothing_else():
    async def later():
        return False

    page = await Health({"broker": lambda: True}).page(Request("GET", "/"))
    assert (page.status, page.body) == (200, b'{"status": "ok"}')
    checks = {"broker": lambda: "link_down", "machine": lambda: True, "store": later}
    page = await Health(checks).page(Request("GET", "/"))
    assert page.status == 503
    assert json.loads(page.body) == {
        "status": "degraded",
        "parts": ["broker", "store"],
        "reasons": {"broker": "link_down", "store": "store_fails"},
        "live": True,
    }
    stuck = await Health({"machine": lambda: "stuck"}).state()
    assert (stuck["reasons"], stuck["live"]) == ({"machine": "stuck"}, False)


async def test_a_disk_that_hangs_is_told_and_asked_once(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "PROBE_TIMEOUT_S", 0.05)
    os.mkfifo(tmp_path / "health.probe")  # opening it to write waits for a reader
    clock, pipe = Clock(), tmp_path / "health.probe"
    check = Probe(lambda: writable(tmp_path), clock)
    assert await check() is not True
    assert await check() is not True  # the first look still waits
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    while check._looking is not None:
        assert await check() is not True  # a pipe cannot be synced
    os.close(reader)
    pipe.unlink()
    clock.now_s += health.PROBE_EVERY_S
    assert await check() is True


async def test_a_disk_that_is_gone_is_named_by_the_systems_word_and_a_missing_thread_as_such(
    tmp_path,
):
    def none_left():
        raise RuntimeError("can't start new thread")

    assert await Probe(lambda: writable(tmp_path / "gone"))() == "enoent"
    clock = Clock()
    check = Probe(none_left, clock)
    assert await check() == "no_thread"
    clock.now_s += health.PROBE_EVERY_S
    assert await check() == "no_thread"  # and it is looked at again, not failed for good


def test_two_loops_share_one_look_and_both_hear_at_once(monkeypatch):
    monkeypatch.setattr(health, "PROBE_TIMEOUT_S", 10.0)
    looks = []
    begun, go_on = threading.Event(), threading.Event()

    def look():
        looks.append(1)
        begun.set()
        return go_on.wait(10)

    check = Probe(look, Clock())

    async def ask():
        return await check()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(asyncio.run, ask())
        assert begun.wait(10)
        second = threads.submit(asyncio.run, ask())
        time.sleep(0.1)  # it waits for the look by now
        go_on.set()
        assert [one.result(5) for one in (first, second)] == [True, True]
    assert len(looks) == 1
