"""What bare load is asked for, by flags that users of emqtt-bench and MQTTX know.

Where the two differ, emqtt-bench's letter stands: `-I` is the pause between messages (MQTTX: `-im`,
its `-I` is the client id), `-s` the payload's size (MQTTX: `-S`, which is TLS at emqtt-bench, whose
`conn -s` shortens ids). `docs/operations.md` has the whole table.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from edgeveil.errors import ConfigError, UsageError

Mode = Literal["pub", "sub", "conn"]
_TOPIC_BYTES = 65535
_PLACEHOLDER = re.compile(r"%(.?)", re.DOTALL)
_KNOWN = "%i (number), %c (client id) and %u (user)"


@dataclass(frozen=True)
class BareOptions:
    """One bare load. Of a mode that lacks an option, it keeps its default.

    `conn_rate_per_s` and `connect_interval_ms` None: connections as fast as the broker takes them.
    `message_interval_ms` 0: messages as fast as `inflight` lets them. `limit` 0: no limit;
    `duration_s` 0: until the limit, or Ctrl-C. `protocol` None: 5, or 4 (3.1.1) where the broker
    speaks that alone. `turns`: how often each of two brokers is loaded.
    """

    mode: Mode
    broker: str = "mqtt://127.0.0.1:1883"
    versus: str | None = None
    turns: int = 2
    count: int = 200
    startnumber: int = 0
    conn_rate_per_s: float | None = None
    connect_interval_ms: float | None = None
    duration_s: float = 10.0
    message_interval_ms: float = 1000.0
    size_bytes: int = 256
    qos: int = 0
    topic: str = "load/%i"
    limit: int = 0
    inflight: int = 1
    subscribers: int = 0
    keepalive_s: int = 60
    protocol: int | None = None
    user: str | None = None
    password_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    out: Path | None = None

    @property
    def brokers(self) -> tuple[str, ...]:
        """The brokers to load, one or two."""
        return (self.broker,) if self.versus is None else (self.broker, self.versus)

    @property
    def order(self) -> tuple[int, ...]:
        """Which broker has its turn when: two change places, so that no one is always first."""
        if self.versus is None:
            return (0,)
        return tuple(at for turn in range(self.turns) for at in ((0, 1), (1, 0))[turn % 2])

    @property
    def rate_per_s(self) -> float | None:
        """Connections opened a second; None: as fast as the broker takes them."""
        if self.connect_interval_ms:
            return 1000 / self.connect_interval_ms
        return self.conn_rate_per_s

    @property
    def connections(self) -> int:
        """Connections to one broker."""
        return self.count + self.subscribers


def topic_of(pattern: str, number: int, client_id: str, user: str | None) -> str:
    """The topic of one client."""
    values = {"i": str(number), "c": client_id, "u": user or ""}
    return _PLACEHOLDER.sub(lambda found: values[found[1]], pattern)


# --- the command line ---


def add_arguments(parser: argparse.ArgumentParser, mode: Mode) -> None:
    """Add this mode's options, each with its own `dest`; one that is not given leaves no trace."""
    for flags, modes, key, kind, text in _FLAGS:
        if mode in modes:
            default = next(f.default for f in fields(BareOptions) if f.name == key)
            shown = "" if default is None else f" (default {default:g})" if kind is not str else ""
            parser.add_argument(
                *flags,
                dest=_DEST + key,
                default=argparse.SUPPRESS,
                type=kind,
                metavar=_METAVARS.get(key, "N" if kind is int else "X"),
                help=text + shown,
            )
    parser.set_defaults(**{_DEST + "mode": mode})


def chosen(args: argparse.Namespace) -> BareOptions | None:
    """What was asked for; None where no mode was named. Raises ConfigError with all problems."""
    given = {k.removeprefix(_DEST): v for k, v in vars(args).items() if k.startswith(_DEST)}
    if not given:
        return None
    options = BareOptions(**given)
    command = f"edgeveil loadtest {options.mode}"
    problems = [f"{command}: {flag}: {text}" for flag, text in _problems(options, given)]
    if problems:
        raise ConfigError(problems)
    return options


_DEST = "bare_"
_ALL: tuple[Mode, ...] = ("pub", "sub", "conn")
_TOPICS: tuple[Mode, ...] = ("pub", "sub")
_PUB: tuple[Mode, ...] = ("pub",)
_Flag = tuple[tuple[str, ...], tuple[Mode, ...], str, Callable[[str], Any], str]


def _version(text: str) -> int:
    return {"3.1.1": 4, "5.0": 5}.get(text) or int(text)


_version.__name__ = "MQTT version"  # argparse says `invalid MQTT version value`

_FLAGS: tuple[_Flag, ...] = (
    (("--broker",), _ALL, "broker", str,
     "mqtt://, mqtts://, ws:// or wss:// with HOST:PORT, in place of -h, -p, -S and -l"
     " (default mqtt://127.0.0.1:1883)"),
    (("--versus",), _ALL, "versus", str,
     "another broker to compare with: the same load goes to both"),
    (("--turns",), _ALL, "turns", int,
     "with --versus: how often each is loaded, in changing order"),
    (("-c", "--count"), _ALL, "count", int, "clients"),
    (("-n", "--startnumber"), _ALL, "startnumber", int, "%%i begins behind this number"),
    (("-R", "--conn-rate", "--conn_rate"), _ALL, "conn_rate_per_s", float,
     "connections a second; neither -R nor -i: as fast as the broker takes them"),
    (("-i", "--interval"), _ALL, "connect_interval_ms", float,
     "milliseconds from one connection to the next"),
    (("-d", "--duration"), _ALL, "duration_s", float,
     "seconds of load once all are connected; 0: until --limit or Ctrl-C"),
    (("-I", "--interval_of_msg", "--message-interval"), _PUB, "message_interval_ms", float,
     "milliseconds from one message of a client to its next; 0: as fast as --inflight lets it"),
    (("-s", "--size", "--payload-size"), _PUB, "size_bytes", int,
     "bytes of a payload; from 16 on it holds the time, for whoever receives it"),
    (("-q", "--qos"), _TOPICS, "qos", int, "0 or 1"),
    (("-t", "--topic"), _TOPICS, "topic", str,
     f"with {_KNOWN.replace('%', '%%')}, default load/%%i"),
    (("-L", "--limit"), _PUB, "limit", int, "messages of all clients together; 0: no limit"),
    (("-F", "--inflight"), _PUB, "inflight", int,
     "messages of QoS 1 that a client sends before they are acknowledged"),
    (("--subscribers",), _PUB, "subscribers", int,
     "clients beside the others that subscribe to their topics: end-to-end latency, and losses"),
    (("-k", "--keepalive"), _ALL, "keepalive_s", int, "seconds"),
    (("-V", "--protocol"), _ALL, "protocol", _version,
     "MQTT version: 5, or 4 for 3.1.1; default: 5, or 4 where a broker speaks that alone"),
    (("-u", "--user", "--username"), _ALL, "user", str, "one account for all clients"),
    (("--password-file",), _ALL, "password_file", Path,
     "its first line is the password, in place of -P"),
    (("--ca",), _ALL, "ca", Path, "PEM file of the authorities that may vouch for the broker"),
    (("--cert", "--certfile"), _ALL, "cert", Path, "PEM file of a certificate that clients show"),
    (("--key", "--keyfile"), _ALL, "key", Path, "PEM file of that certificate's private key"),
    (("--out",), _ALL, "out", Path, "folder for load.json and load.html"),
)  # fmt: skip
_FLAG_OF = {key: next(f for f in flags if f[:2] == "--") for flags, _, key, _, _ in _FLAGS}
_METAVARS = {
    **dict.fromkeys(("broker", "versus"), "URL"),
    **dict.fromkeys(("password_file", "ca", "cert", "key"), "FILE"),
    "out": "DIR",
    "user": "USER",
    "topic": "TOPIC",
    "message_interval_ms": "MS",
    "connect_interval_ms": "MS",
    "duration_s": "S",
    "keepalive_s": "S",
    "protocol": "V",
    "size_bytes": "BYTES",
}


# --- what cannot be ---

_RANGES: dict[str, tuple[float, float]] = {
    "turns": (1, 100),
    "count": (1, 1_000_000),
    "startnumber": (0, 1_000_000_000),
    "conn_rate_per_s": (0.001, 1_000_000),
    "connect_interval_ms": (0.001, 1_000_000),
    "duration_s": (0, 604_800),
    "message_interval_ms": (0, 86_400_000),
    "size_bytes": (0, 1 << 26),
    "limit": (0, 1 << 40),
    "inflight": (1, 65535),
    "subscribers": (0, 1_000_000),
    "keepalive_s": (1, 65535),
}


def _problems(options: BareOptions, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(flag, what is wrong and the fix)."""
    for key, (least, most) in _RANGES.items():
        value = getattr(options, key)
        if value is not None and not least <= value <= most:
            yield _FLAG_OF[key], f"must be {least:g} to {most:,.0f}, got {value:g}"
    if options.qos not in (0, 1):
        yield "--qos", f"must be 0 or 1, got {options.qos}; QoS 2 is not spoken here"
    if options.protocol not in (None, 4, 5):
        yield "--protocol", f"must be 5, or 4 for MQTT 3.1.1, got {options.protocol}"
    for key in ("broker", "versus"):
        yield from ((_FLAG_OF[key], text) for text in _address_problems(getattr(options, key)))
    if options.mode != "conn":
        yield from (("--topic", text) for text in _topic_problems(options))
    if options.conn_rate_per_s is not None and options.connect_interval_ms is not None:
        yield "--interval", "says the same as --conn-rate; leave one out"
    if "turns" in given and options.versus is None:
        yield "--turns", "is for two brokers; add --versus URL"
    if options.versus is not None and not options.duration_s and not options.limit:
        yield "--duration", "must end, so that the other broker has its turn; set it, or --limit"
    if options.password_file is not None and options.user is None:
        yield "--password-file", "is the password of no user; add --user"
    if (options.cert is None) != (options.key is None):
        yield "--cert", "a certificate and its key go together; give both or none"


def _address_problems(url: str | None) -> Iterator[str]:
    from edgeveil.sites.addresses import BrokerAddress

    try:
        if url is not None:
            BrokerAddress.parse(url)
    except UsageError as error:
        yield str(error)


def _topic_problems(options: BareOptions) -> Iterator[str]:
    topic = options.topic
    for found in _PLACEHOLDER.findall(topic):
        if found not in ("i", "c", "u"):
            yield f"unknown placeholder %{found}; there are {_KNOWN}"
        elif found == "u" and options.user is None:
            yield "%u is the user, and there is none; add --user"
    if not topic or "\0" in topic or len(topic.encode("utf-8", "replace")) > _TOPIC_BYTES // 2:
        yield f"must have 1 to {_TOPIC_BYTES // 2} bytes and no NUL"
    if options.mode == "pub" and set(topic) & {"+", "#"}:
        yield "nobody can publish to a wildcard (+, #); leave it out"


def seconds_or_forever(duration_s: float) -> float:
    """0 stands for no end."""
    return duration_s or math.inf
