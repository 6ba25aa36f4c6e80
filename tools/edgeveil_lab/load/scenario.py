"""Options of a load test: the keys of a scenario file and of the command line."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field

from edgeveil.config.base import Block, Mix, Seconds, SitePath, key_texts
from edgeveil.config.explain import SchemaWalk
from edgeveil.config.file import judged, only_block, parsed, problems_error, read
from edgeveil.config.links import BrokerUrl, PacketBytes
from edgeveil.config.site_files import kind_of
from edgeveil.config.yaml_tree import Problem, Tree
from edgeveil.errors import ConfigError

_RUNNING = ("cloud", "token_file", "fleet", "keys")  # required with `broker`, of a running site
MIN_BATCH = 3
VALUE_BYTES = 4  # uploads and packages are float32


def _whole_values(count: int) -> int:
    if count % VALUE_BYTES:
        raise ValueError(f"must be a multiple of {VALUE_BYTES}, got {count}")
    return count


Fraction = Annotated[float, Field(ge=0, le=1)]
FloatBytes = Annotated[int, Field(ge=4, le=1 << 26), AfterValidator(_whole_values)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class LoadOptions(Block):
    """Options of one load test, which define its job."""

    devices: Count = 200
    """Simulated devices, each with its own keys and connection."""
    selected: Count | None = Field(default=None, examples=[50])
    """Devices selected in each round; none: all."""
    rounds: int = Field(default=3, ge=0, le=1000)
    """Rounds to play; 0: the devices connect and are held."""
    minutes: float | None = Field(default=None, gt=0, le=10080, examples=[30])
    """Play rounds for so many minutes, instead of `rounds`."""
    payload_bytes: FloatBytes = 65536
    """Bytes of noise that one device uploads in a round, a multiple of 4."""
    package_bytes: FloatBytes = 4096
    """Bytes of the model that the cloud broadcasts each round, a multiple of 4."""
    rate_per_s: float | None = Field(default=None, gt=0, le=1_000_000, examples=[500])
    """Connections opened per second; none: as fast as the broker accepts them."""
    interval_s: float = Field(default=0, ge=0, le=86400)
    """Seconds from the start of one round to the start of the next, at least; 0: at once."""
    hold_s: float = Field(default=0, ge=0, le=86400)
    """Seconds for which all are held connected and idle before the rounds, and measured."""
    deadline_s: Seconds = 120.0
    """A round's deadline."""
    quorum: float = Field(default=1.0, gt=0, le=1)
    """Share of the devices whose uploads close a round early."""
    grace_s: float = Field(default=2.0, ge=0, le=3600)
    """Seconds that a round waits for late uploads after the quorum."""
    drop: Fraction = 0.0
    """Share of the devices that disconnect during each round and reconnect."""
    reconnect_storm: bool = False
    """Cut all connections at once in the middle of each round."""
    qos: Literal[0, 1] = 1
    """MQTT quality of service of the devices' messages."""
    protocol: Literal[5, 4] = 5
    """MQTT version: 5, or 4 for 3.1.1."""
    packet_bytes: PacketBytes = 65536
    """Largest MQTT packet, at every party."""
    processes: int = Field(default=1, ge=1, le=256)
    """Generator processes on this machine, of each cell."""
    cells: int = Field(default=1, ge=1, le=64)
    """Cells under the one cloud, each with an edge broker, a proxy and its share of the devices;
    all are started here."""
    broker: BrokerUrl | None = Field(default=None, examples=["mqtt://127.0.0.1:1883"])
    """The running site's edge broker."""
    cloud: str | None = Field(default=None, max_length=300, examples=["http://127.0.0.1:8701"])
    """Address of the running cloud's control page."""
    token_file: SitePath | None = None
    """The running cloud's `http.token`."""
    proxy_http: str | None = Field(default=None, max_length=300, examples=["http://127.0.0.1:8702"])
    """Address of the running proxy's status page, for its processor time and memory."""
    fleet: SitePath | None = None
    """Keys of the devices that the running site's proxy has admitted, from `--make-fleet`."""
    keys: SitePath | None = None
    """Folder with the running site's `cloud.pub` and `proxy.pub`."""
    site: SitePath | None = None
    """Folder of a running site of `edgeveil site init --local` on this machine."""
    user: str | None = Field(default=None, min_length=1, max_length=128)
    """One broker account for all devices, if they have no own accounts."""
    password_file: SitePath | None = None
    """File whose first line is the password of `user`."""
    tls: bool = False
    """Devices speak TLS with the edge broker."""
    ca: SitePath | None = None
    """PEM file of the authorities that may vouch for the broker."""
    cert: SitePath | None = None
    """PEM file of a certificate that every device shows."""
    key: SitePath | None = None
    """PEM file of that certificate's private key."""
    secure: bool = False
    """Secure sums: devices mask their uploads, the cloud sees only the sum of each round."""
    compare: Literal["raw"] | None = None
    """`raw`: afterwards carry the same bytes through a bare relay, and print the ratio."""
    out: SitePath | None = None
    """Folder for load.json and load.html."""

    def _mixes(self) -> Iterator[Mix]:
        given = {name for name in ("broker", "site", "user") if getattr(self, name) is not None}
        if not self.starts_site:
            default = {"selected": None, "cells": 1, "compare": None}
            for key in (key for key, value in default.items() if getattr(self, key) != value):
                text = "is only for a site that the test starts itself; leave broker and site out"
                yield Mix((key, "broker", "site"), text)
        if self.asked > self.devices:
            yield Mix(("selected", "devices"), "must not exceed devices; select fewer")
        if self.rounds == 0 and self.minutes is None and not self.hold_s:
            text = "without rounds only held connections are measured; set hold_s"
            yield Mix(("rounds", "hold_s"), text)
        if self.cells > 1 and self.devices < MIN_BATCH * self.cells:
            text = f"each cell needs {MIN_BATCH} devices; play more devices or fewer cells"
            yield Mix(("cells", "devices"), text)
        unlike = {"cells": self.cells > 1, "qos": self.qos == 0}
        unlike |= {key: bool(getattr(self, key)) for key in ("drop", "reconnect_storm")}
        if self.compare is not None and (odd := [key for key, there in unlike.items() if there]):
            text = "the bare relay has one cell, a steady load and QoS 1, which loses no message"
            yield Mix(("compare", *odd), f"{text}; leave out {', '.join(odd)}")
        if {"broker", "site"} <= given:
            yield Mix(("broker", "site"), "both name the site to load; leave one out")
        missing = [name for name in _RUNNING if getattr(self, name) is None]
        if "broker" in given and missing:
            text = f"a running site also needs {', '.join(missing)}; or name its folder with site"
            yield Mix(("broker", *missing), text)
        if self.broker is not None and self.broker.startswith("ws"):
            text = "a load test opens plain MQTT connections; name an mqtt:// listener"
            yield Mix(("broker",), text)
        if (self.cert is None) != (self.key is None):
            yield Mix(("cert", "key"), "a certificate requires its key and the reverse; set both")
        if "user" in given and self.starts_site:
            text = "a broker that the test starts gives each device its account; leave user out"
            yield Mix(("user", "broker", "site"), text)
        if self.password_file is not None and "user" not in given:
            yield Mix(("password_file", "user"), "is used only with a user; set user")

    @property
    def values(self) -> int:
        return self.payload_bytes // VALUE_BYTES

    @property
    def asked(self) -> int:
        return self.devices if self.selected is None else self.selected

    @property
    def cell_names(self) -> tuple[str, ...]:
        if self.cells == 1:
            return ("",)
        return tuple(f"cell-{number}" for number in range(1, self.cells + 1))

    @property
    def starts_site(self) -> bool:
        return self.site is None and self.broker is None


def load_scenario(path: Path) -> LoadOptions:
    """Read a scenario file with the top-level key `load`; raises ConfigError."""
    tree = parsed(read(path), str(path))
    if kind_of(tree.value) != "load":
        text = "not a load test's scenario, its top-level key must be load"
        raise problems_error(str(path), [Problem((), tree.line(()), text)])
    return only_block(LoadOptions, "load", tree, path)


MANY_ROUNDS = 10_000
_RETRIES = 2


_ROUNDING = 1e-6  # keeps a share that means six devices from being rounded up to seven


def job_yaml(options: LoadOptions, enrolled: int) -> bytes:
    """Return a `noise_only` job with the options' rounds; with `minutes`, until cancelled.

    The quorum is scaled to the test's share of `enrolled`, since only these devices answer."""
    least = options.asked if options.cells == 1 else math.ceil(options.quorum * options.asked)
    quorum = options.quorum
    if enrolled > options.devices:
        quorum = max(_ROUNDING, quorum * options.devices / enrolled - _ROUNDING / enrolled)
    rounds = MANY_ROUNDS if options.minutes is not None else options.rounds
    job: dict[str, Any] = {
        "job": "loadtest",
        "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 1},
        "features": [{"name": "identity"}],
        "train": {
            "method": "noise_only",
            "rounds": rounds,
            "values": options.values,
            "package_values": options.package_bytes // VALUE_BYTES,
        },
        "privacy": {"epsilon": 1.0},
        "selection": {"devices": options.selected or "all", "min_devices": least},
        "round": {
            "deadline_s": float(options.deadline_s),
            "quorum": quorum,
            "grace_s": float(options.grace_s),
            "min_batch": min(MIN_BATCH, options.asked),
            "retries": _RETRIES,
        },
        "aggregation": {"name": "fedavg", "secure": options.secure},
        "unsupervised": {"every_rounds": 0, "eval_type": "NOT_EVAL"},
    }
    text: str = yaml.safe_dump(job, sort_keys=False)
    return text.encode()


_SECONDS = re.compile(r"(_per)?_s$")


def option_of(key: str) -> str:
    """Return the option's name: `payload_bytes` is `--payload-bytes`, `rate_per_s` is `--rate`."""
    return "--" + _SECONDS.sub("", key).replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add an option for each key, without a default."""
    walk = SchemaWalk(LoadOptions.model_json_schema())
    for key, field in LoadOptions.model_fields.items():
        node = walk.variants(walk.property(walk.root, key) or {})[0]
        kind, text = node.get("type"), key_texts(LoadOptions).get(key, "").removesuffix(".")
        if field.default is not None and field.default is not False:
            text += f" (default {field.default})"
        option: dict[str, Any] = {"dest": key, "default": argparse.SUPPRESS}
        if kind == "boolean":
            option["action"] = argparse.BooleanOptionalAction
        elif choices := node.get("enum", [node["const"]] if "const" in node else []):
            option |= {"type": type(choices[0]), "choices": choices}
        elif kind in ("integer", "number"):
            metavar = "S" if key.endswith("_s") and not key.endswith("_per_s") else "N"
            option |= {"type": int if kind == "integer" else float, "metavar": metavar}
        else:
            option["metavar"] = "DIR" if key in ("out", "site") else key.upper()
        parser.add_argument(option_of(key), help=text.replace("%", "%%"), **option)


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    return {key: getattr(args, key) for key in LoadOptions.model_fields if hasattr(args, key)}


def resolve(scenario: Path | None, given: Mapping[str, Any]) -> LoadOptions:
    """Apply options to the scenario; raises ConfigError with all problems.

    Option `rounds` replaces the file's `minutes`; paths are relative to the working directory."""
    base = LoadOptions() if scenario is None else load_scenario(scenario)
    plain = {**({"minutes": None} if "rounds" in given else {}), **given}
    where = "edgeveil loadtest"
    value = base.model_dump(mode="json", exclude_unset=True) | plain
    try:
        return judged(LoadOptions, lambda made: made, Tree(value), where, folder=Path.cwd())
    except ConfigError as error:  # there is no file whose lines could be named
        lines = (line.removeprefix(f"{where}:1 ").split(": ", 1) for line in error.problems)
        raise ConfigError([f"{where}: {option_of(key)}: {text}" for key, text in lines]) from None
