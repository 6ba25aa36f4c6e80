"""The leader of a test: hands out shares, takes reports, says when to begin and to end.

It and its generators speak msgpack over HTTP.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgeveil.errors import JobFailed, UsageError
from edgeveil.transport.http import Request, Response, Route
from edgeveil.transport.http_server import HttpServer
from edgeveil_lab.load.counters import HISTOGRAMS, DurationHistogram, GeneratorLoad
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_lab.load.sites import FleetMember, LoadFleet
from edgeveil_tools.site.brokers import write_private

# --- what they say to each other ---

Command = Literal["wait", "connect", "stop"]


class JoinRequest(msgspec.Struct, frozen=True):
    """A generator asks for its share. `time_s` is its clock, seconds since 1970."""

    time_s: float
    pid: int
    local: bool


class FleetShare(msgspec.Struct, frozen=True):
    """What one generator plays. `time_s` is the leader's clock."""

    number: int
    of: int
    time_s: float
    options: bytes
    """`LoadOptions` as JSON, made for this count of devices."""
    members: list[FleetMember]
    cell: str
    broker: str
    cloud_key: bytes
    proxy_key: bytes
    password: str | None


class GeneratorReport(msgspec.Struct, frozen=True):
    """Once a second: everything counted so far."""

    number: int
    state: Literal["ready", "connecting", "connected", "done"]
    counters: dict[str, Any]
    load: GeneratorLoad


class LeaderReply(msgspec.Struct, frozen=True):
    """What the leader wants next."""

    command: Command


# --- the leader ---

Rows = dict[tuple[int, int], dict[str, Any]]  # by round and attempt

_BROKEN = (msgspec.DecodeError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
_BODY_BYTES = 8 << 20
SILENT_S = 60.0
_MSGPACK = "application/vnd.msgpack"
_ADDED = (
    *("connected", "connects", "failed", "reconnects", "bytes_up", "bytes_down"),
    *("offered", "acknowledged", "counted", "missing", "contradicted", "waiting"),
)
_ROUND_ADDED = (
    *("offered", "acknowledged", "counted", "counted_sum", "upload_bytes", "upload_messages"),
    *("unconfirmed", "unanswered", "missing"),
)
_ROUND_TIMES: dict[str, Any] = {"began_s": min, "first_offer_s": min, "last_ack_s": max}


@dataclass(frozen=True)
class SiteAccess:
    """What a generator needs to reach a cell of the site."""

    broker: str
    cloud_key: bytes
    proxy_key: bytes
    password: str | None = field(repr=False)
    ca: Path | None = None


class Leader:
    """Serves `generators` generators, as many for each cell; `fleet` is dealt to the cells by
    turns, and in each to its generators."""

    def __init__(
        self,
        options: LoadOptions,
        fleet: LoadFleet,
        generators: int,
        where: Mapping[str, SiteAccess],
        token: str,
    ) -> None:
        self._options, self._fleet, self._where = options, fleet, where
        self._generators, self._token = generators, token
        self.command: Command = "wait"
        self.pids: dict[str, int] = {}
        self.reports: dict[int, GeneratorReport] = {}
        self._cells = list(where)
        self._joined = 0
        self._rounds: dict[int, Rows] = {}  # of each generator, whose reports hold the newest
        self._heard_s: dict[int, float] = {}

    async def serve(self, host: str, port: int) -> HttpServer:
        """Listen for generators. Raises UsageError if the port cannot be had."""
        routes = [
            Route("POST", "/join", self._join, _BODY_BYTES),
            Route("POST", "/report", self._report, _BODY_BYTES),
        ]
        return await HttpServer(routes, self._refused).start(host, port)

    @property
    def all_joined(self) -> bool:
        """Whether every generator has its share and has reported."""
        return len(self.reports) == self._generators

    def all_in(self, state: str) -> bool:
        """Whether every generator is in this state."""
        return self.all_joined and all(r.state == state for r in self.reports.values())

    def check(self) -> None:
        """Raise JobFailed if a generator stopped reporting."""
        for number, heard_s in self._heard_s.items():
            if time.monotonic() - heard_s > SILENT_S:
                raise JobFailed(
                    f"generator {number} has not reported for {SILENT_S:.0f} s",
                    fix="see whether its process and host still run; start it under nohup",
                )

    def totals(self, cell: str | None = None) -> FleetTotals:
        """All generators' counts together, or those of a cell's."""
        mine = [n for n in self.reports if cell in (None, self._cell_of(n))]
        counted = [self.reports[number].counters for number in mine]
        return FleetTotals(counted, [self._rounds.get(number, {}) for number in mine])

    def fleet_of(self, cell: str) -> Sequence[FleetMember]:
        """The devices of a cell."""
        return self._fleet.dealt(self._cells.index(cell), len(self._cells)).members

    def _cell_of(self, number: int) -> str:
        return self._cells[(number - 1) % len(self._cells)]

    async def _join(self, request: Request) -> Response:
        if self._joined >= self._generators:
            return Response(b"all generators of this test are there", status=409)
        try:
            joining = msgspec.msgpack.decode(request.content, type=JoinRequest)
        except _BROKEN:
            return _not_understood()
        self._joined += 1
        number, cells = self._joined, len(self._cells)
        cell, name = self._cell_of(number), f"generator-{number}"
        where, of_it = self._where[cell], LoadFleet(self.fleet_of(cell))
        mine = of_it.dealt((number - 1) // cells, self._generators // cells)
        options = self._options
        if where.ca is not None and options.ca is None:
            options = options.model_copy(update={"ca": where.ca})
        if joining.local:
            self.pids[name] = joining.pid
        share = FleetShare(
            number=number,
            of=self._generators,
            time_s=time.time(),
            options=options.model_dump_json().encode(),
            members=list(mine.members),
            cell=cell,
            broker=where.broker,
            cloud_key=where.cloud_key,
            proxy_key=where.proxy_key,
            password=where.password,
        )
        return Response(msgspec.msgpack.encode(share), _MSGPACK)

    async def _report(self, request: Request) -> Response:
        try:
            report = msgspec.msgpack.decode(request.content, type=GeneratorReport)
            rows = {(row["round"], row["attempt"]): row for row in report.counters["rounds"]}
            totals = FleetTotals([report.counters], [rows])
            for name in HISTOGRAMS:
                totals.histogram(name)
        except _BROKEN:
            return _not_understood()
        self.reports[report.number] = report
        self._heard_s[report.number] = time.monotonic()
        self._rounds.setdefault(report.number, {}).update(rows)
        return Response(msgspec.msgpack.encode(LeaderReply(self.command)), _MSGPACK)

    def _refused(self, request: Request) -> Response | None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            return None
        return Response(b"wrong token", status=401)


def _not_understood() -> Response:
    return Response(b"not of this version of edgeveil loadtest", status=400)


def join_token(path: Path) -> str:
    """The token of generators; made (mode 0600) where the file is not there yet.

    Raises UsageError when the file cannot be used.
    """
    try:
        if not path.exists():
            write_private(path, secrets.token_urlsafe(24) + "\n")
        word = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        word = ""
    if not word:
        raise UsageError("holds no token", where=str(path), fix="copy the leader's file here")
    return word


class FleetTotals:
    """Several generators' counted in one."""

    def __init__(self, counted: list[dict[str, Any]], rounds: list[Rows]) -> None:
        self._counted = counted
        self.counts = {name: sum(int(t[name]) for t in counted) for name in _ADDED}
        # Every generator reads the same commit records.
        repeated = max((int(t["repeated"]) for t in counted), default=0)
        self.counts["duplicated"] = self.counts["contradicted"] + repeated
        self.refused: Counter[str] = Counter()
        for counters in counted:
            self.refused.update(counters["refused"])
        self.rounds = _merged_rounds(rounds)

    def histogram(self, name: str) -> DurationHistogram:
        """`connect_s`, `ack_s` or `counted_s` of all."""
        return DurationHistogram.merged(counters[name] for counters in self._counted)

    def connecting_s(self) -> float:
        """From the first dial to the last new connection."""
        first = [t["first_dial_s"] for t in self._counted if t["first_dial_s"] is not None]
        last = [t["last_up_s"] for t in self._counted if t["last_up_s"] is not None]
        return max(last) - min(first) if first and last else 0.0


def _merged_rounds(generators: list[Rows]) -> Rows:
    merged: Rows = {}
    for key in dict.fromkeys(key for rows in generators for key in rows):
        found = [rows[key] for rows in generators if key in rows]
        merged[key] = {name: sum(row[name] for row in found) for name in _ROUND_ADDED}
        for name, pick in _ROUND_TIMES.items():
            merged[key][name] = pick((r[name] for r in found if r[name] is not None), default=None)
    return merged
