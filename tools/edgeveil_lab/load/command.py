"""`edgeveil loadtest`: check the options, play the test, save the result."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from edgeveil.errors import INTERRUPTED, EdgeVeilError, UsageError
from edgeveil_lab.load.display import LoadView, show_result
from edgeveil_lab.load.mqtt import on_fast_loop, raise_files_limit
from edgeveil_lab.load.raw_relay import RawDevice, ratio, raw_site, run_raw
from edgeveil_lab.load.report import write_load_report
from edgeveil_lab.load.run_log import faults
from edgeveil_lab.load.scenario import LoadOptions, option_of
from edgeveil_lab.load.session import LoadSession
from edgeveil_lab.load.sites import LoadFleet, LocalSite, dial_site, dismiss, running_target
from edgeveil_tools.local.children import scratch
from edgeveil_tools.local.run import signals
from edgeveil_tools.result import write_json, writing

_RAW_ROUNDS = 5

ENDING = [signal.SIGINT, signal.SIGTERM]
if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
    ENDING.append(signal.SIGHUP)
_TERMINALS = [fd for fd in (1, 2) if os.isatty(fd)]


def interrupt(number: int, _frame: object = None) -> None:
    """Handle a signal: raise KeyboardInterrupt, and write no more to a terminal that is gone."""
    if number == signal.SIGHUP:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for fd in _TERMINALS:
            os.dup2(nowhere, fd)
        os.close(nowhere)
    raise KeyboardInterrupt("interrupted")


def until_stopped(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Run `work` on a new event loop until it is done or a signal cancels it.

    Returns the EdgeVeilError or KeyboardInterrupt that ended it early; signals are ignored then."""
    failure: list[BaseException] = []

    async def body() -> int:
        task = asyncio.ensure_future(work)

        def end(number: int) -> None:
            task.cancel()
            try:
                interrupt(number)
            except KeyboardInterrupt as stop:
                failure[:] = [stop]

        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            with suppress(asyncio.CancelledError):
                await task
        except EdgeVeilError as error:
            failure.append(error)
        return 0

    try:
        on_fast_loop(body())
    except KeyboardInterrupt as stop:  # a second signal, while the loop was closing
        failure.append(stop)
    for number in ENDING:  # the loop left them at their defaults
        signal.signal(number, signal.SIG_IGN)
    return failure[0] if failure else None


def run(options: LoadOptions, *, as_json: bool) -> int:
    """Play the test and write its result; return 0, 130 after Ctrl-C, or 1 for a fault.

    Faults are a loss, a wrong sum and growing memory. Raises EdgeVeilError."""
    _check(options)
    console = Console(stderr=as_json)
    try:
        result, failure = _play(options, console)
    except KeyboardInterrupt:
        return INTERRUPTED
    with signals(signal.SIG_IGN, ENDING):
        if options.out is not None:
            with writing(options.out):
                write_json(options.out / "load.json", result)
                write_load_report(result, options.out / "load.html")
        if as_json:
            print(json.dumps(result, allow_nan=False), flush=True)
        else:
            show_result(console, result)
    if isinstance(failure, KeyboardInterrupt):
        return INTERRUPTED
    if failure is not None:
        raise failure
    return int(any(True for _ in faults(result)))


_SPARE_FILES = 100


def _check(options: LoadOptions) -> None:
    most = -(-options.devices // options.cells)  # at one broker
    check_files(-(-most // options.processes), raise_files_limit())
    for key in ("ca", "cert", "key", "password_file", "fleet"):
        path: Path | None = getattr(options, key)
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            what, fix = f"{path} cannot be read ({error.strerror})", "name a file that you may read"
            raise UsageError(what, where=option_of(key), fix=fix) from None
    if options.out is not None:
        with writing(options.out):
            options.out.mkdir(parents=True, exist_ok=True)


def check_files(connections: int, limit: int) -> None:
    needed = connections + _SPARE_FILES
    if resource.RLIM_INFINITY != limit < needed:
        what = f"{connections} connections need {needed} open files, {limit} are allowed"
        fix = f"raise the hard limit (ulimit -Hn {needed}), or play fewer devices"
        raise UsageError(what, where="ulimit -n", fix=fix)


def _play(options: LoadOptions, console: Console) -> tuple[dict[str, Any], BaseException | None]:
    # A second Ctrl-C must not leave children behind; stopping takes a few seconds at most.
    with signals(signal.SIG_IGN, ENDING), ExitStack() as stack:
        folder = stack.enter_context(scratch(keep=False))
        logs = (options.out or folder) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        site = None
        with signals(interrupt, ENDING):
            if options.starts_site:
                fleet = LoadFleet.make(options.devices)
                site = LocalSite(options, fleet, folder, logs)
                stack.callback(site.stop)
                target = site.start()
            else:
                # Admitted devices must be dismissed, and a thread pool interrupted at its start
                # never ends: a signal waits until both are safe.
                received: list[int] = []
                with signals(lambda number, _frame: received.append(number), ENDING):
                    target, fleet = running_target(options)
                    stack.callback(dismiss, options, fleet)
                    dial_site(options, target.first, fleet)
                if received:
                    interrupt(received[0])
            view = stack.enter_context(LoadView(options, console))
            session = LoadSession(options, fleet, target, site, view.update)
            failure = until_stopped(session.run())
        if failure is not None:
            session.measured.reason = str(failure)
            session.measured.interrupted = isinstance(failure, KeyboardInterrupt)
        result = session.result()
        rounds = min(_RAW_ROUNDS, len(result["rounds"]))
        if failure is None and site is not None and options.compare == "raw" and rounds:
            view.note("the same bytes through a bare relay")
            site.children.stop()
            devices = [RawDevice(*account) for account in site.accounts.items()][: options.asked]
            relayed = raw_site(site.folder)
            try:
                with signals(interrupt, ENDING):
                    raw = run_raw(relayed, devices, options, rounds, site.broker_pids())
                result["raw"], result["raw_ratio"] = raw, ratio(result, raw)
            except (EdgeVeilError, KeyboardInterrupt) as stop:
                failure = stop
        return result, failure
