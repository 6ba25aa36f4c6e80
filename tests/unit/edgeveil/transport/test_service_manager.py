"""What a service manager hears, over a real socket."""

import asyncio
import os
import socket
import subprocess
import sys

import pytest

from edgeveil.transport.process import tell, watchdog_s


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(20)
        yield heard


def test_nobody_is_told_where_nobody_asked():
    assert not tell("READY=1", environ={})
    assert not tell("READY=1", environ={"NOTIFY_SOCKET": "relative"})
    assert not tell("READY=1", environ={"NOTIFY_SOCKET": "/nowhere/at/all"})


def test_lines_are_one_datagram(manager):
    assert tell("READY=1", "STATUS=well", environ={"NOTIFY_SOCKET": manager.getsockname()})
    assert manager.recv(100) == b"READY=1\nSTATUS=well"


def test_an_abstract_socket_serves_as_well():
    name = f"edgeveil-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")
        assert tell("READY=1", environ={"NOTIFY_SOCKET": f"@{name}"})
        assert heard.recv(100) == b"READY=1"


@pytest.mark.parametrize(
    ("environ", "limit_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_the_watchdog_is_this_processs_own(environ, limit_s):
    assert watchdog_s(environ) == limit_s


PROCESS = """
import asyncio
from edgeveil.transport.process import run_until_stopped
from edgeveil.transport.process import tell

async def main(stop):
    tell("READY=1")
    await stop.wait()
    return 0

raise SystemExit(run_until_stopped(main))
"""


def test_a_process_is_ready_alive_and_says_that_it_stops(manager):
    environ = {**os.environ, "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "100000"}
    running = subprocess.Popen([sys.executable, "-c", PROCESS], env=environ)
    heard = [manager.recv(100) for _ in range(4)]
    assert heard.count(b"READY=1") == 1 and heard.count(b"WATCHDOG=1") == 3
    running.terminate()
    while (said := manager.recv(100)) == b"WATCHDOG=1":
        pass
    assert said == b"STOPPING=1"
    assert running.wait(10) == 0


HANGING = PROCESS.replace('tell("READY=1")', 'tell("READY=1")\n    import time; time.sleep(600)')


def test_a_loop_that_hangs_falls_silent(manager):
    environ = {**os.environ, "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "100000"}
    running = subprocess.Popen([sys.executable, "-c", HANGING], env=environ)
    try:
        assert manager.recv(100) == b"READY=1"
        manager.settimeout(1)
        with pytest.raises(TimeoutError):
            manager.recv(100)
    finally:
        running.kill()
        running.wait()


def test_without_a_watchdog_nothing_runs():
    from edgeveil.transport.process import keep_alive

    asyncio.run(keep_alive())
