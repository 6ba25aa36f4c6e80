"""`edgeveil loadtest`: checks, plays one test or a sweep, keeps what was measured."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from edgeveil.errors import INTERRUPTED, EdgeVeilError, UsageError
from edgeveil.sites.addresses import place
from edgeveil_lab.load.display import LoadView, show_result
from edgeveil_lab.load.mqtt import on_fast_loop, raise_files_limit
from edgeveil_lab.load.raw_relay import RawDevice, RawSite, ratio, run_raw
from edgeveil_lab.load.report import write_load_report
from edgeveil_lab.load.run_log import faults
from edgeveil_lab.load.scenario import LoadOptions, option_of
from edgeveil_lab.load.session import LOOPBACK, LoadSession
from edgeveil_lab.load.sites import LoadFleet, LocalSite, dial_site, dismiss, running_target
from edgeveil_tools.local.children import Children, scratch
from edgeveil_tools.local.run import signals
from edgeveil_tools.result import write_json, writing

_RAW_ROUNDS = 5


@dataclass(frozen=True)
class RemoteGenerators:
    """Generators of other hosts: where they find the leader, and how many there will be."""

    listen: tuple[str, int] = (LOOPBACK, 0)
    remote: int = 0
    token_file: Path | None = None


# --- Ctrl-C, SIGTERM, a closed terminal ---

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
    """Run it on a loop of its own until it is done or a signal cancels it.

    Returns what ended it early, an EdgeVeilError or KeyboardInterrupt. Signals are ignored then.
    """
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
            await task
        except asyncio.CancelledError:
            pass
        except EdgeVeilError as error:
            failure.append(error)
        return 0

    try:
        on_fast_loop(body())
    except KeyboardInterrupt as stop:  # once more, while the loop was closing
        failure.append(stop)
    for number in ENDING:  # the loop left them at their defaults
        signal.signal(number, signal.SIG_IGN)
    return failure[0] if failure else None


# --- the test ---


def run(options: LoadOptions, sharing: RemoteGenerators, *, as_json: bool) -> int:
    """Play it; 0, 1 for a loss, a wrong sum or growing memory, 130 after Ctrl-C.

    Raises EdgeVeilError.
    What was measured until a failure or Ctrl-C is written all the same.
    """
    _check(options, sharing)
    console = Console(stderr=as_json)
    results: list[dict[str, Any]] = []
    failure: BaseException | None = None
    try:
        for one in options.tests:
            result, failure = _play(one, sharing, console, spans=bool(options.sweep))
            results.append(result)
            if failure is not None:
                break
    except KeyboardInterrupt as stop:
        failure = stop
    if results:
        with signals(signal.SIG_IGN, ENDING):
            _keep(options, results, console, as_json=as_json)
    if isinstance(failure, KeyboardInterrupt):
        return INTERRUPTED
    if failure is not None:
        raise failure
    return int(any(True for result in results for _ in faults(result)))


def _check(options: LoadOptions, sharing: RemoteGenerators) -> None:
    """Raise UsageError for what cannot be, before anything starts."""
    most = -(-max(options.counts) // options.cells)  # at one broker
    generators = options.processes + sharing.remote  # of a cell
    check_files(-(-most // generators), raise_files_limit())
    check_ports(most)
    if options.starts_site and sharing.remote:
        raise UsageError(
            "a site that is started here is reached from this machine alone",
            where="--remote",
            fix="name a running site with --broker, --cloud, --token-file and --fleet",
        )
    for key in ("ca", "cert", "key", "password_file", "fleet"):
        path: Path | None = getattr(options, key)
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({error.strerror})",
                where=option_of(key),
                fix="name a file that you may read",
            ) from None
    host, port = sharing.listen
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UsageError(
            f"cannot be listened at ({os.strerror(error.errno or 0)})",
            where=f"--listen {place(host, port)}",
            fix="name an address of this machine and a free port",
        ) from None
    if options.out is not None:
        with writing(options.out):
            options.out.mkdir(parents=True, exist_ok=True)


_SPARE_FILES = 100
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def check_files(connections: int, limit: int) -> None:
    """Raise UsageError unless a process may hold so many connections."""
    needed = connections + _SPARE_FILES
    if resource.RLIM_INFINITY != limit < needed:
        raise UsageError(
            f"{connections} connections need {needed} open files, {limit} are allowed",
            where="ulimit -n",
            fix=f"raise the hard limit (ulimit -Hn {needed}), or play fewer devices",
        )


def check_ports(connections: int) -> None:
    """Raise UsageError unless the system has a port for each connection to one broker."""
    try:
        low, high = (int(word) for word in _PORT_RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        return
    if connections > high - low + 1:
        raise UsageError(
            f"{connections} connections to one broker need as many ports, there are"
            f" {high - low + 1}",
            where=str(_PORT_RANGE),
            fix="widen it (sysctl net.ipv4.ip_local_port_range='1024 65535'),"
            " or play the rest from another host",
        )


def _play(
    options: LoadOptions, sharing: RemoteGenerators, console: Console, *, spans: bool
) -> tuple[dict[str, Any], BaseException | None]:
    """One count of devices: its result, and what ended it early."""
    # A second Ctrl-C must not leave children behind; stopping takes a few seconds at most.
    with signals(signal.SIG_IGN, ENDING), ExitStack() as stack:
        folder = stack.enter_context(scratch(keep=False))
        logs = (options.out or folder) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        generators = Children(logs)
        stack.callback(generators.stop)
        site, target, fleet, password = None, None, None, None
        with signals(interrupt, ENDING):
            if options.starts_site:
                fleet = LoadFleet.make(options.devices)
                site = LocalSite(options, fleet, folder, logs)
                stack.callback(site.stop)
                target = site.start()
            else:
                before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # what is admitted goes
                try:
                    target, fleet, password = running_target(options)
                    stack.callback(dismiss, options, fleet)
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, before)
            if len(target.cells) == 1 and target.first.ca is not None and options.ca is None:
                options = options.model_copy(update={"ca": target.first.ca})
            if not options.starts_site:
                dial_site(options, target, fleet, password)
            view = stack.enter_context(LoadView(options, console))
            session = LoadSession(
                options,
                fleet,
                target,
                site,
                generators,
                view.update,
                listen=sharing.listen,
                remote=sharing.remote,
                token_file=sharing.token_file or folder / "join.token",
                password=password,
                spans=spans,
            )
            failure = until_stopped(session.run())
        if failure is not None:
            session.measured.reason = str(failure)
            session.measured.interrupted = isinstance(failure, KeyboardInterrupt)
        result = session.result()
        if failure is None and site is not None and options.compare == "raw":
            view.note("the same bytes through a bare relay")
            generators.stop()
            site.children.stop()
            try:
                with signals(interrupt, ENDING):
                    _compare(options, site, result)
            except (EdgeVeilError, KeyboardInterrupt) as stop:
                failure = stop
        return result, failure


def _compare(options: LoadOptions, site: LocalSite, result: dict[str, Any]) -> None:
    """The same uploads over the same brokers by a bare relay; fills `raw` and `raw_ratio`."""
    rounds = min(_RAW_ROUNDS, len(result["rounds"]))
    if rounds:
        devices = [RawDevice(*account) for account in site.accounts.items()][: options.asked]
        raw = run_raw(RawSite.load(site.folder), devices, options, rounds, site.broker_pids())
        result["raw"], result["raw_ratio"] = raw, ratio(result, raw)


def _keep(
    options: LoadOptions, results: list[dict[str, Any]], console: Console, *, as_json: bool
) -> None:
    """Write `load.json` and `load.html`, print the table or the JSON."""
    result = results[-1]
    if options.sweep:
        result = {**result, "sweep": results}
    if options.out is not None:
        with writing(options.out):
            write_json(options.out / "load.json", result)
            write_load_report(result, options.out / "load.html")
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
    else:
        show_result(console, result)
