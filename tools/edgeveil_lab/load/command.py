"""`edgeveil loadtest`: checks, plays one test or a sweep, keeps what was measured."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from edgeveil.errors import INTERRUPTED, EdgeVeilError, UsageError
from edgeveil.sites.addresses import place
from edgeveil.transport.mqtt_link import read_password
from edgeveil_lab.load.connections import check_files, check_ports, raise_files_limit
from edgeveil_lab.load.display import LoadMetrics, LoadView, show_result
from edgeveil_lab.load.endings import ENDING, deferred, interrupt, tell_hang_up, until_stopped
from edgeveil_lab.load.first_dial import dial_brokers, dial_site
from edgeveil_lab.load.raw_relay import RawDevice, RawSite, ratio, run_raw
from edgeveil_lab.load.report import write_load_report
from edgeveil_lab.load.run_log import faults
from edgeveil_lab.load.scenario import LoadOptions, option_of
from edgeveil_lab.load.session import LOOPBACK, LoadSession, Show
from edgeveil_lab.load.sites import LoadFleet, LocalSite, dismiss, running_target
from edgeveil_tools.local.children import Children, scratch
from edgeveil_tools.local.run import signals
from edgeveil_tools.result import write_json, writing


def check_address(listen: tuple[str, int]) -> None:
    """Raise UsageError unless generators can be taken at this host and port."""
    host, port = listen
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UsageError(
            f"cannot be listened at ({os.strerror(error.errno or 0)})",
            where=f"--listen {place(host, port)}",
            fix="name an address of this machine and a free port",
        ) from None


def check_readable(options: LoadOptions) -> None:
    """Raise UsageError for a file among the options that cannot be read."""
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


_RAW_ROUNDS = 5


@dataclass(frozen=True)
class RemoteGenerators:
    """Generators of other hosts: where they find the leader, and how many there will be."""

    listen: tuple[str, int] = (LOOPBACK, 0)
    remote: int = 0
    token_file: Path | None = None


def run(options: LoadOptions, sharing: RemoteGenerators, *, as_json: bool) -> int:
    """Play it; 0, 1 for a loss, a wrong sum or growing memory, 130 after Ctrl-C.

    Raises EdgeVeilError.
    What was measured until a failure or Ctrl-C is written all the same.
    """
    _check(options, sharing)
    if options.starts_site:
        dial_brokers(options, read_password(options.password_file))
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
        tell_hang_up(failure)
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
    check_readable(options)
    check_address(sharing.listen)
    if options.out is not None:
        with writing(options.out):
            options.out.mkdir(parents=True, exist_ok=True)


def _play(
    options: LoadOptions, sharing: RemoteGenerators, console: Console, *, spans: bool
) -> tuple[dict[str, Any], BaseException | None]:
    """One count of devices: its result, and what ended it early."""
    # A second Ctrl-C must not leave children behind; stopping takes a few seconds at most.
    with signals(signal.SIG_IGN, ENDING), ExitStack() as stack:
        folder = stack.enter_context(scratch(keep=False, in_memory=False))
        logs = (options.out or folder) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        generators = Children(logs)
        stack.callback(generators.stop)
        site, target, fleet, password = None, None, None, None
        with signals(interrupt, ENDING):
            if options.starts_site:
                fleet = LoadFleet.make(options.devices)
                password = read_password(options.password_file)
                site = LocalSite(options, fleet, folder, logs)
                stack.callback(site.stop)
                target = site.start()
            else:
                with deferred(ENDING):
                    target, fleet, password = running_target(options)
                    stack.callback(dismiss, options, fleet)
            if len(target.cells) == 1 and target.first.ca is not None and options.ca is None:
                options = options.model_copy(update={"ca": target.first.ca})
            if not options.starts_site:
                dial_site(options, target, fleet, password)
            view = stack.enter_context(LoadView(options, console))
            watchers: list[Show] = [view.update]
            if options.prometheus is not None:
                metrics = LoadMetrics(options.prometheus)
                stack.callback(metrics.close)
                watchers.append(metrics.update)
            session = LoadSession(
                options,
                fleet,
                target,
                site,
                generators,
                lambda sample: _tell(watchers, sample),
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


def _tell(watchers: list[Show], sample: dict[str, Any]) -> None:
    for watcher in watchers:
        watcher(sample)


def _compare(options: LoadOptions, site: LocalSite, result: dict[str, Any]) -> None:
    """The same uploads over the same brokers by a bare relay; fills `raw` and `raw_ratio`."""
    rounds = min(_RAW_ROUNDS, len(result["rounds"]))
    if not rounds:
        return
    all_devices = [RawDevice(device, password) for device, password in site.accounts.items()]
    devices = all_devices[: options.asked]
    accounts, brokers = RawSite.load(site.folder), site.broker_pids()
    raw = run_raw(accounts, devices, options, rounds, brokers)
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
