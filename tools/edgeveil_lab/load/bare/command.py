"""Plays bare load: each broker is dialled first, two take turns, what was measured is kept."""

from __future__ import annotations

import json
import os
import platform
import secrets
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from edgeveil.errors import INTERRUPTED, UsageError
from edgeveil.sites.addresses import BrokerAddress
from edgeveil.transport.dialling import client_context
from edgeveil.transport.link import LinkSettings
from edgeveil.transport.mqtt_link import read_password
from edgeveil_lab.load.bare.clients import BareCounters, BareLoad
from edgeveil_lab.load.bare.display import BareView, show_bare_result
from edgeveil_lab.load.bare.options import BareOptions
from edgeveil_lab.load.connections import check_files, check_ports, raise_files_limit
from edgeveil_lab.load.endings import ENDING, tell_hang_up, until_stopped
from edgeveil_lab.load.first_dial import dial
from edgeveil_tools.local.run import signals
from edgeveil_tools.result import write_json, writing

_BUSY = 0.9


def run_bare(options: BareOptions, *, as_json: bool) -> int:
    """Play it; 0, 1 where a client failed or a message was lost, 130 after Ctrl-C.

    Raises EdgeVeilError. What was measured until a failure or Ctrl-C is written all the same.
    """
    _check(options)
    password = read_password(options.password_file)
    versions = [
        dial(_settings(options, url, password), options.protocol) for url in options.brokers
    ]
    console, failure = Console(stderr=as_json), None
    counters = [BareCounters() for _ in options.brokers]
    played: list[int] = []
    with signals(signal.SIG_IGN, ENDING):
        with BareView(options, console) as view:
            for at in options.order:
                played.append(at)
                load = _Turn(options, at, versions[at], password, counters[at], view)
                failure = until_stopped(load.run())
                if failure is not None:
                    break
        result = _result(options, counters, versions, played, failure)
        _keep(options, result, console, as_json=as_json)
    if isinstance(failure, KeyboardInterrupt):
        tell_hang_up(failure)
        return INTERRUPTED
    if failure is not None:
        raise failure
    return int(any(one["lost"] or one["failures"] for one in result["brokers"]))


class _Turn:
    """One broker's turn; made on the loop that it runs on."""

    def __init__(
        self,
        options: BareOptions,
        at: int,
        protocol: int,
        password: str | None,
        counters: BareCounters,
        view: BareView,
    ) -> None:
        self._options, self._url, self._protocol = options, options.brokers[at], protocol
        self._password, self._counters, self._view = password, counters, view

    async def run(self) -> None:
        """Play it."""
        options, context = self._options, None
        if BrokerAddress.parse(self._url).tls:
            context = client_context(options.ca, options.cert, options.key)
        show = self._view.of(self._url)
        await BareLoad(
            options, self._url, self._protocol, self._password, context, self._counters, show
        ).run()


def _check(options: BareOptions) -> None:
    """Raise UsageError for what cannot be, before anything starts."""
    check_files(options.connections, raise_files_limit())
    check_ports(options.connections)
    for flag, path in (("--ca", options.ca), ("--cert", options.cert), ("--key", options.key)):
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({error.strerror})",
                where=flag,
                fix="name a file that you may read",
            ) from None
    if options.out is not None:
        with writing(options.out):
            options.out.mkdir(parents=True, exist_ok=True)


def _settings(options: BareOptions, url: str, password: str | None) -> LinkSettings:
    return LinkSettings(
        url,
        f"load-{secrets.token_hex(4)}",
        username=options.user,
        password=password,
        ca_file=options.ca,
        cert_file=options.cert,
        key_file=options.key,
        protocol=options.protocol or 5,
    )


# --- the result, as `load.json` holds it ---


def _result(
    options: BareOptions,
    counters: Sequence[BareCounters],
    versions: Sequence[int],
    played: Sequence[int],
    failure: BaseException | None,
) -> dict[str, Any]:
    """Everything, with plain numbers only; a figure that is not known is None."""
    brokers = [
        broker_result(options, url, version, one)
        for url, version, one in zip(options.brokers, versions, counters, strict=True)
    ]
    return {
        "mode": options.mode,
        "options": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(options).items()},
        "environment": {"cores": os.cpu_count(), "python": platform.python_version()},
        "status": _status(failure),
        "reason": "" if failure is None else str(failure),
        "order": [options.brokers[at] for at in played],
        "brokers": brokers,
    }


def _status(failure: BaseException | None) -> str:
    if isinstance(failure, KeyboardInterrupt):
        return "interrupted"
    return "completed" if failure is None else "failed"


def broker_result(
    options: BareOptions, url: str, version: int, counters: BareCounters
) -> dict[str, Any]:
    """What one broker carried, over all its turns."""
    seconds, busy = counters.seconds, counters.meter.load.busy

    def rate(count: int, over_s: float = seconds) -> float | None:
        return round(count / over_s, 2) if over_s > 0 else None

    notes = []
    if busy > _BUSY:
        notes.append(
            f"the generator itself used or waited for {busy:.0%} of a core: rates and latencies may"
            " be its own, not the broker's"
        )
    if counters.held_back:
        notes.append(
            f"{counters.held_back:,} messages were not sent when due, their client's window was"
            " full: the broker did not keep up, or --inflight is too small"
        )
    if counters.ahead:
        notes.append(
            f"{counters.ahead:,} messages came before they were sent: the clocks of the hosts"
            " differ, end-to-end latency is not to be trusted"
        )
    speaks = options.mode == "pub"
    return {
        "broker": str(BrokerAddress.parse(url)),
        "protocol": version,
        "clients": counters.clients,
        "connects": counters.connects,
        "connects_per_s": rate(counters.connects, counters.connecting_s),
        "connect_s": _without_jitter(counters, "connect_s"),
        "seconds": round(seconds, 3),
        "sent": counters.sent,
        "sent_per_s": rate(counters.sent) if speaks else None,
        "acknowledged": counters.acknowledged,
        "acknowledged_per_s": rate(counters.acknowledged) if speaks and options.qos else None,
        "received": counters.received,
        "received_per_s": rate(counters.received) if _listens(options) else None,
        "mb_per_s": {
            "up": _mb(rate(counters.bytes_up)),
            "down": _mb(rate(counters.bytes_down)),
        },
        "ack_s": _without_jitter(counters, "ack_s"),
        "end_to_end_s": _without_jitter(counters, "end_to_end_s"),
        "lost": counters.lost,
        "held_back": counters.held_back,
        "failures": dict(counters.failures.most_common()),
        "busy_percent": round(100 * busy, 1),
        "notes": notes,
        "series": counters.series,
    }


def _listens(options: BareOptions) -> bool:
    return options.mode == "sub" or options.subscribers > 0


def _without_jitter(counters: BareCounters, name: str) -> dict[str, float | None]:
    summary: dict[str, float | None] = getattr(counters, name).summary()
    del summary["jitter"]
    return summary


def _mb(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else round(bytes_per_s / 1e6, 3)


def _keep(
    options: BareOptions, result: Mapping[str, Any], console: Console, *, as_json: bool
) -> None:
    """Write `load.json` and `load.html`, print the table or the JSON."""
    if options.out is not None:
        from edgeveil_lab.load.bare.report import write_bare_report

        with writing(options.out):
            write_json(options.out / "load.json", result)
            write_bare_report(result, options.out / "load.html")
    if as_json:
        print(json.dumps(result, allow_nan=False), flush=True)
    else:
        show_bare_result(console, result)
