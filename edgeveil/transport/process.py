"""Lifecycle of a process: its folder and keys, tasks until the first ends, signals, stop."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil.crypto.keys import SigningKey, VerifyKey
from edgeveil.errors import EdgeVeilError, SystemFault, UsageError, of_environment
from edgeveil.heap import keep_heap
from edgeveil.transport.listener import raise_file_limit

if TYPE_CHECKING:
    from edgeveil.audit_log import OwnAuditLog

EXIT_S = 3.0
FOLDER_LOOK_S = 5.0
LOCK_FILE = "process.lock"
_LOG = logging.getLogger("edgeveil.process")


class OwnFolder:
    """State folder locked by this process (mode 0700). Raises UsageError."""

    def __init__(self, state_dir: Path) -> None:
        try:
            state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            found = state_dir.stat()
            if found.st_uid == os.geteuid() and found.st_mode & 0o077:
                state_dir.chmod(found.st_mode & 0o700)
            # Not the folder itself, which is locked by commands during a process's life.
            descriptor = os.open(state_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
            self._lock = os.fdopen(descriptor, "rb")  # the kernel unlocks it when this is closed
            self._path = state_dir / LOCK_FILE
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            what = "another process uses this state folder"
            fix = "end that process, or give this one a state_dir of its own"
            raise UsageError(what, where=str(state_dir), fix=fix) from None
        except OSError as error:
            what = f"the state folder cannot be used: {error.strerror}"
            fix = "check state_dir in the site file, and that the folder is this user's"
            raise UsageError(what, where=str(state_dir), fix=fix) from None

    async def gone(self) -> None:
        """Wait until the folder is moved or replaced, then raise SystemFault."""
        while True:
            try:
                in_place = await asyncio.to_thread(self._is_in_place)
            except RuntimeError:  # no thread available: retry
                in_place = True
            if not in_place:
                what = f"the state folder was moved or unmounted, or lost its {LOCK_FILE}"
                fix = "put it back, or mount its disk; then start again"
                raise SystemFault(what, where=str(self._path.parent), fix=fix)
            await asyncio.sleep(FOLDER_LOOK_S)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._lock.fileno()), self._path.stat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a failing disk is reported by health
            return True

    def release(self) -> None:
        self._lock.close()

    def __enter__(self) -> OwnFolder:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


def key_gone(key: Path, make: str = "") -> SystemFault:
    """Return the error of a party with a lost key; `make`: the command for a new party."""
    new = f"; for a new party: {make}" if make else ""
    what = "the key under which the fleet knows this party is missing and not created again"
    fix = f"mount the disk of its state folder, or put the key back from a backup{new}"
    return SystemFault(what, where=str(key), fix=fix)


def refuse_lost_state(key: Path, known: Path | None = None) -> None:
    """Raise SystemFault if a key is missing that a bundle, or the file `known`, proves existed."""
    if key.exists():
        return
    place = key.parent.parent
    try:
        given = json.loads((place / "inventory.json").read_bytes())["given"]
    except (OSError, ValueError, KeyError, TypeError):
        given = None  # no bundle was installed here
    installed = isinstance(given, dict) and key.relative_to(place).as_posix() in given
    if installed or (known is not None and known.exists()):
        raise key_gone(key)


def make_signing_key(state_dir: Path, role: str) -> SigningKey:
    """Load `<role>.key`, or generate it; for set-up only. Raises SystemFault."""
    state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = state_dir / f"{role}.key"
    if not path.exists():
        refuse_lost_state(path)
        SigningKey.generate().save(path)
    return own_signing_key(state_dir, role)


def own_signing_key(state_dir: Path, role: str) -> SigningKey:
    """Load `<role>.key` and write its public half if missing. Raises SystemFault if lost."""
    path = state_dir / f"{role}.key"
    if not path.exists():
        raise key_gone(path, f"edgeveil {'proxy' if role == 'proxy' else 'cloud'} keys")
    key = SigningKey.load(path)
    if not path.with_suffix(".pub").exists():
        key.public().save(path.with_suffix(".pub"))
    return key


def own_audit_log(state_dir: Path, role: str) -> OwnAuditLog:
    from edgeveil.audit_log import OwnAuditLog  # the cloud has one

    return OwnAuditLog(state_dir, lambda: own_signing_key(state_dir, role))


def peer_key(path: Path, party: str) -> VerifyKey:
    """Load the pinned public key of another party. Raises SystemFault if missing."""
    if not path.is_file():
        what = f"the public key of {party} is missing"
        fix = f"copy {party}'s .pub file to this place"
        raise SystemFault(what, where=str(path), fix=fix)
    return VerifyKey.load(path)


def stop_signals() -> list[signal.Signals]:
    """Return SIGINT, SIGTERM, and SIGHUP unless it is ignored (nohup)."""
    found = [signal.SIGINT, signal.SIGTERM]
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return found if ignored else [*found, signal.SIGHUP]


def run_until_stopped(main: Callable[[asyncio.Event], Coroutine[object, object, int]]) -> int:
    """Run `main(stop)`; each of `stop_signals` sets `stop`, a second one kills the process.

    An unhandled error of a task ends the process too. Raises UsageError if the limit of open files
    is too low. An error of the environment has exit code 1 (`of_environment`).
    """
    mask = os.umask(0o077)  # keep state private, whatever the inherited mask
    raise_file_limit()
    keep_heap()
    numbers = stop_signals()

    async def body() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[int] = loop.create_future()

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            error = context.get("exception")
            if error is None or not isinstance(context.get("future"), asyncio.Task):
                # no task: concerns one connection only
                loop.default_exception_handler(context)
            elif not lost.done():
                lost.set_exception(error)

        def asked() -> None:
            # From now on the default action, which a blocked loop cannot delay.
            for number in numbers:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)
            notify_systemd("STOPPING=1")
            stop.set()

        for number in numbers:
            loop.add_signal_handler(number, asked)
        loop.set_exception_handler(handle)
        running = asyncio.ensure_future(main(stop))
        alive = asyncio.ensure_future(keep_alive())
        try:
            await asyncio.wait([running, lost], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                _LOG.error("task_failed", extra={"error": type(lost.exception()).__name__})
                running.cancel()
                await asyncio.wait([running])
                return await lost
            return await running
        finally:
            alive.cancel()
            running.cancel()
            lost.cancel()

    try:
        return asyncio.run(body())
    except EdgeVeilError as error:
        if error.exit_code == UsageError.exit_code and of_environment(error):
            error.exit_code = SystemFault.exit_code
        raise
    finally:
        os.umask(mask)


async def first_of(stop: asyncio.Event, *work: Awaitable[object]) -> None:
    """Wait for the stop or the first task to end, and raise its error, if any."""
    waiting = asyncio.ensure_future(stop.wait())
    tasks = [asyncio.ensure_future(item) for item in work]
    done, _ = await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in (waiting, *tasks):
        if task not in done:
            task.cancel()
    ended, _ = await asyncio.wait([waiting, *tasks], timeout=EXIT_S)
    # Retrieve all errors: asyncio would log a traceback of one that is not retrieved.
    errors = {task: task.exception() for task in ended if not task.cancelled()}
    for task in tasks:
        if task in done and (error := errors.get(task)) is not None:
            raise error


def notify_systemd(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send `KEY=value` lines to systemd (sd_notify(3)); return whether a socket was found."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract socket of Linux
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.connect(address)
        notify.sendall("\n".join(lines).encode())
        return True
    return False


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return systemd's watchdog time in seconds, or None."""
    of_process = environ.get("WATCHDOG_PID", str(os.getpid()))
    text = environ.get("WATCHDOG_USEC", "")
    if of_process != str(os.getpid()) or not text.isdecimal() or int(text) == 0:
        return None
    return int(text) / 1e6


async def keep_alive() -> None:
    """Notify systemd's watchdog from the event loop twice per period, for ever."""
    limit_s = watchdog_s()
    while limit_s is not None:
        notify_systemd("WATCHDOG=1")
        await asyncio.sleep(limit_s / 2)
