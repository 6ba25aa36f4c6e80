"""A process's life: keys at the first start, the first end wins, signals, a clean stop; systemd."""

import asyncio
import errno
import gc
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
from contextlib import nullcontext, suppress

import pytest

from edgeveil.errors import BrokerError, CryptoError, EdgeVeilError, SystemFault, UsageError
from edgeveil.transport import health
from edgeveil.transport import process as process_module
from edgeveil.transport.health import Health, Probe, writable
from edgeveil.transport.http import Request
from edgeveil.transport.process import (
    OwnFolder,
    first_of,
    make_signing_key,
    run_until_stopped,
    stop_signals,
    watchdog_s,
)


def test_a_folder_has_one_owner_until_its_release(tmp_path):
    state = tmp_path / "deep" / "state"
    with OwnFolder(state):
        assert state.stat().st_mode & 0o077 == 0
        with pytest.raises(UsageError, match="another process") as caught:
            OwnFolder(state)
        assert caught.value.where == str(state)
        OwnFolder(tmp_path / "other").release()
    OwnFolder(state).release()


@pytest.mark.parametrize("then", ["nothing", "an empty folder", "a copy"])
def test_a_process_ends_where_its_folder_is_moved_from_under_it(tmp_path, monkeypatch, then):
    """What a command wrote there was not what the process read, and all was reported well."""
    monkeypatch.setattr(process_module, "FOLDER_LOOK_S", 0.02)
    state = tmp_path / "state"

    async def main(stop):
        with OwnFolder(state) as folder:
            waiting = asyncio.ensure_future(folder.gone())
            await asyncio.sleep(0.2)
            assert not waiting.done()
            state.rename(tmp_path / "moved")
            if then == "a copy":
                shutil.copytree(tmp_path / "moved", state)
            elif then == "an empty folder":
                state.mkdir()
            await first_of(stop, waiting)

    with pytest.raises(SystemFault, match="moved") as caught:
        run_until_stopped(main)
    assert (caught.value.exit_code, caught.value.where) == (1, str(state))


def test_a_damaged_key_is_not_replaced(tmp_path):
    make_signing_key(tmp_path, "cloud")
    (tmp_path / "cloud.key").write_text("nonsense")
    with pytest.raises(CryptoError):
        make_signing_key(tmp_path, "cloud")
    assert (tmp_path / "cloud.key").read_text() == "nonsense"


async def fails():
    raise BrokerError("refused")


async def returns():
    return None


@pytest.mark.parametrize("ends", [None, fails, returns])
async def test_the_stop_or_the_end_of_one_task_ends_all(ends, monkeypatch):
    monkeypatch.setattr(process_module, "EXIT_S", 0.05)
    stop, freed, ended = asyncio.Event(), asyncio.Event(), []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def stubborn():
        while not freed.is_set():
            with suppress(asyncio.CancelledError):
                await freed.wait()

    if ends is None:
        asyncio.get_running_loop().call_later(0.02, stop.set)
    with pytest.raises(BrokerError, match="refused") if ends is fails else nullcontext():
        await first_of(stop, forever(), *([ends()] if ends else [stubborn()]))
    freed.set()
    assert ended == [True]


STUBBORN = """
    import asyncio, time
    from concurrent.futures import ThreadPoolExecutor
    from edgeveil.transport.process import run_until_stopped

    async def main(stop):
        print("ready", flush=True)
        await stop.wait()
        with ThreadPoolExecutor(1) as executor:  # work that holds even the event loop
            executor.submit(time.sleep, 60)
            print("stopping", flush=True)
        return 0

    run_until_stopped(main)
"""


def test_a_second_signal_ends_at_once():
    command = [sys.executable, "-c", textwrap.dedent(STUBBORN)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "stopping\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == -signal.SIGTERM
        finally:
            process.kill()


OWNERS = [OSError(errno.ENOTDIR, "no"), OSError("AF_UNIX path too long"), ssl.SSLError(1, "no")]


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        *((OSError(one, "no"), 1) for one in (errno.EROFS, errno.ENOSPC, errno.EADDRINUSE, 2)),
        *((one, 2) for one in (*OWNERS, None)),
    ],
)
def test_what_the_machine_lacks_is_tried_again_and_what_the_owner_wrote_is_not(cause, code):
    async def main(_stop):
        try:
            if cause:
                raise cause
        except Exception:
            raise UsageError("cannot be used") from None
        raise UsageError("cannot be used")

    with pytest.raises(EdgeVeilError) as caught:
        run_until_stopped(main)
    assert caught.value.exit_code == code


def test_a_task_that_nobody_waits_for_ends_the_process_with_its_error():
    async def main(stop):
        asyncio.ensure_future(fails())  # noqa: RUF006 - forgotten, as in the case
        await asyncio.sleep(0.01)
        gc.collect()
        await stop.wait()
        return 0

    with pytest.raises(BrokerError, match="refused"):
        run_until_stopped(main)


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(tmp_path / "notify"))
        notified.settimeout(20)
        yield notified


PROCESS = """
import asyncio, sys, time
from edgeveil.transport.process import notify_systemd, run_until_stopped

async def main(stop):
    notify_systemd("READY=1")
    if "hang" in sys.argv:
        time.sleep(600)
    await stop.wait()
    return 0

raise SystemExit(run_until_stopped(main))
"""


def test_a_process_notifies_that_it_is_ready_alive_and_stops_and_not_while_it_hangs(manager):
    environ = {**os.environ, "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "100000"}
    command = [sys.executable, "-c", PROCESS]
    with subprocess.Popen(command, env=environ) as running:
        received = [manager.recv(100) for _ in range(4)]
        assert received.count(b"READY=1") == 1 and received.count(b"WATCHDOG=1") == 3
        running.terminate()
        while (line := manager.recv(100)) == b"WATCHDOG=1":
            pass
        assert line == b"STOPPING=1"
        assert running.wait(10) == 0
    with subprocess.Popen([*command, "hang"], env=environ) as running:
        assert manager.recv(100) == b"READY=1"
        manager.settimeout(0.5)
        with pytest.raises(TimeoutError):
            manager.recv(100)
        running.kill()


def test_the_watchdog_is_this_processs_own():
    for changes, limit_s in (
        ({"WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ):
        assert watchdog_s({"WATCHDOG_USEC": "3000000", **changes}) == limit_s


def test_who_ignores_the_terminals_end_goes_on_ignoring_it(monkeypatch):
    for handler, ends in ((signal.SIG_IGN, False), (signal.SIG_DFL, True)):
        monkeypatch.setattr(signal, "getsignal", lambda _number, handler=handler: handler)
        assert (signal.SIGHUP in stop_signals()) is ends


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
    found = json.loads(page.body)
    assert (page.status, found["parts"], found["live"]) == (503, ["broker", "store"], True)
    assert found["reasons"] == {"broker": "link_down", "store": "store_fails"}
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
