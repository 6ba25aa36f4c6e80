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
from contextlib import nullcontext

import pytest

from edgeveil.errors import BrokerError, CryptoError, EdgeVeilError, SystemFault, UsageError
from edgeveil.transport import process as process_module
from edgeveil.transport.process import (
    OwnFolder,
    first_of,
    make_signing_key,
    own_signing_key,
    run_until_stopped,
    stop_signals,
    watchdog_s,
)
from edgeveil_edge.identity import DeviceIdentity


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
    """What a command wrote there was not what the process read, and all was told to be well."""
    monkeypatch.setattr(process_module, "FOLDER_LOOK_S", 0.02)
    state = tmp_path / "state"

    async def main(stop):
        with OwnFolder(state) as folder:
            waiting = asyncio.ensure_future(folder.gone())
            done, _ = await asyncio.wait([waiting], timeout=0.2)
            assert not done
            state.rename(tmp_path / "moved")
            if then == "a copy":
                shutil.copytree(tmp_path / "moved", state)
            elif then == "an empty folder":
                state.mkdir()
            await first_of(stop, waiting)
        return 0

    with pytest.raises(SystemFault, match="moved") as caught:
        run_until_stopped(main)
    assert (caught.value.exit_code, caught.value.where) == (1, str(state))


def test_a_damaged_key_is_not_replaced(tmp_path):
    make_signing_key(tmp_path, "cloud")
    (tmp_path / "cloud.key").write_text("nonsense")
    with pytest.raises(CryptoError):
        make_signing_key(tmp_path, "cloud")
    assert (tmp_path / "cloud.key").read_text() == "nonsense"


async def forever(ended, name):
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def fails():
    raise BrokerError("refused")


async def returns():
    return None


@pytest.mark.parametrize("ends", [None, fails, returns])
async def test_the_stop_or_the_end_of_one_task_ends_all(ends):
    stop, ended = asyncio.Event(), []
    if ends is None:
        asyncio.get_running_loop().call_later(0.02, stop.set)
    with pytest.raises(BrokerError, match="refused") if ends is fails else nullcontext():
        await first_of(stop, forever(ended, "a"), ends() if ends else forever(ended, "b"))
    assert sorted(ended) == (["a"] if ends else ["a", "b"])


async def test_a_task_that_does_not_end_cannot_hold_the_process(monkeypatch):
    monkeypatch.setattr("edgeveil.transport.process.EXIT_S", 0.05)
    freed = asyncio.Event()

    async def stubborn():
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue

    stop = asyncio.Event()
    stop.set()
    await first_of(stop, stubborn())
    freed.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_a_clean_stop(number):
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    async def main(stop):
        os.kill(os.getpid(), number)
        await asyncio.wait_for(stop.wait(), 20)
        return 7

    try:
        assert run_until_stopped(main) == 7
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(number):
    command = [sys.executable, "-c", textwrap.dedent(STUBBORN)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
            assert process.stdout.readline() == "stopping\n"
            process.send_signal(number)
            assert process.wait(20) == -number
        finally:
            process.kill()


def code_of(error):
    """With which exit code a process ends that raises this."""

    async def main(_stop):
        raise error

    with pytest.raises(EdgeVeilError) as caught:
        run_until_stopped(main)
    return caught.value.exit_code


def behind(cause, error):
    """The error as it is raised where `cause` was met, and not shown."""
    try:
        try:
            raise cause
        except Exception:
            raise error from None
    except EdgeVeilError as made:
        return made


_OWNERS = [OSError(errno.ENOTDIR, "no"), OSError("AF_UNIX path too long"), ssl.SSLError(1, "no")]


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        *((OSError(one, "no"), 1) for one in (errno.EROFS, errno.ENOSPC, errno.EADDRINUSE, 2)),
        *((one, 2) for one in (*_OWNERS, None)),
    ],
)
def test_what_the_machine_lacks_is_tried_again_and_what_the_owner_wrote_is_not(cause, code):
    error = UsageError("cannot be used")
    assert code_of(error if cause is None else behind(cause, error)) == code


def test_a_task_that_nobody_waits_for_ends_the_process_with_its_error():
    async def main(stop):
        def begin():
            asyncio.ensure_future(fails())  # noqa: RUF006 - forgotten, as in the case

        begin()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        await stop.wait()
        return 0

    with pytest.raises(BrokerError, match="refused"):
        run_until_stopped(main)


@pytest.mark.parametrize("name", ["cloud", "proxy", "identity"])
def test_where_the_fleets_key_is_gone_no_other_is_made(tmp_path, name):
    state, given = tmp_path / "state", {f"state/{name}.key": "0" * 64}
    state.mkdir()
    (tmp_path / "inventory.json").write_text(json.dumps({"given": given}))
    make = DeviceIdentity.load_or_create if name == "identity" else None
    load = DeviceIdentity.load if name == "identity" else None
    for _ in ("installed", "never given one"):
        with pytest.raises(SystemFault, match="mount the disk"):
            load(state) if load else own_signing_key(state, name)
        assert list(state.iterdir()) == []
        if given:
            with pytest.raises(SystemFault, match="mount the disk"):
                make(state) if make else make_signing_key(state, name)
            given = {}
            (tmp_path / "inventory.json").write_text(json.dumps({"given": given}))
    made = make(state) if make else make_signing_key(state, name)
    again = load(state) if load else own_signing_key(state, name)
    assert again == made


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        heard.settimeout(20)
        yield heard


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


def test_who_ignores_the_terminals_end_goes_on_ignoring_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in stop_signals()
