"""What broker to start, and the configuration that makes mosquitto fit for it."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Engine = Literal["auto", "amqtt", "mosquitto"]

_MAX_INFLIGHT = 200
_MAX_QUEUED = 100_000


@dataclass(frozen=True)
class ListenerTls:
    """PEM files of the listener. With `ca_file`, clients must show a certificate of that CA."""

    cert_file: Path
    key_file: Path
    ca_file: Path | None = None


@dataclass(frozen=True)
class BrokerPlan:
    """What to start. `port` None: a free one. `acl` `edge` or `cloud`; None: no access list.

    `wiretap` adds a user of that name who may read everything: for tests alone.
    """

    engine: Engine = "auto"
    host: str = "127.0.0.1"
    port: int | None = None
    acl: Literal["edge", "cloud"] | None = None
    tls: ListenerTls | None = None
    packet_bytes: int = 65536
    max_queued_bytes: int = 1 << 26
    max_connections: int = 20_000
    wiretap: bool = False


def mosquitto_lines(plan: BrokerPlan, port: int, *, open_to_all: bool) -> list[str]:
    """mosquitto's configuration, users and access list aside."""
    certificates = plan.tls is not None and plan.tls.ca_file is not None
    lines = [
        f"listener {port} {plan.host}",
        f"allow_anonymous {'true' if open_to_all and not certificates else 'false'}",
        f"user {pwd.getpwuid(os.getuid()).pw_name}",
        "persistence false",
        "retain_available false",
        "sys_interval 0",
        "set_tcp_nodelay true",
        f"max_inflight_messages {_MAX_INFLIGHT}",
        f"max_queued_messages {_MAX_QUEUED}",
        f"max_queued_bytes {plan.max_queued_bytes}",
        f"max_packet_size {plan.packet_bytes}",
        f"max_connections {plan.max_connections}",
        "log_dest stderr",
        "log_type error",
        "connection_messages false",
    ]
    if plan.tls is not None:
        lines += [f"certfile {plan.tls.cert_file}", f"keyfile {plan.tls.key_file}"]
        if certificates:
            lines += [f"cafile {plan.tls.ca_file}", "require_certificate true"]
            lines += ["use_identity_as_username true"] if open_to_all else []
    return lines


def write_private(path: Path, text: str) -> None:
    """Write whole and 0600: a broker may read it at any moment."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.unlink(missing_ok=True)
    with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    scratch.replace(path)
