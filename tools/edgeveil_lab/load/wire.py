"""What a load test's leader and its generators say to each other: msgpack over HTTP."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from edgeveil_lab.load.fleet import Member
from edgeveil_lab.load.strain import Strain

Command = Literal["wait", "connect", "stop"]


class Joining(msgspec.Struct, frozen=True):
    """A generator asks for its share. `time_s` is its clock, seconds since 1970."""

    time_s: float
    pid: int
    local: bool
    files_limit: int
    """Descriptors that the process may open."""


class Share(msgspec.Struct, frozen=True):
    """What one generator plays. `time_s` is the leader's clock."""

    number: int
    of: int
    time_s: float
    options: bytes
    """`LoadOptions` as JSON, made for this count of devices."""
    members: list[Member]
    broker: str
    cloud_key: bytes
    proxy_key: bytes
    password: str | None


class Report(msgspec.Struct, frozen=True):
    """Once a second: everything counted so far."""

    number: int
    state: Literal["ready", "connecting", "connected", "done"]
    tally: dict[str, Any]
    strain: Strain


class Answer(msgspec.Struct, frozen=True):
    """What the leader wants next."""

    command: Command
