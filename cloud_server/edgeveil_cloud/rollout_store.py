"""Stored rollouts of releases, and the outcomes that devices reported.

Each sealed broadcast has its own secret for reports. Of a report only its hash, to count it once,
and its outcome are stored; the device is unknown.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa

from edgeveil_cloud import store_tables as tables
from edgeveil_cloud.database import Database, transaction
from edgeveil_cloud.store_tables import StoreError

Db = sa.Connection
Stage = Literal["canary", "all", "withdrawn"]


@dataclass(frozen=True)
class Rollout:
    """One job's release; `reports` are counts by stage (`canary`, `all`) and outcome."""

    job: str
    data_set: str
    stage: Stage
    reason: str
    canary: int  # devices in the canary; 0: all at once
    started_at: float
    expires_s: float  # expiry in the package
    sequences: tuple[int, ...] = ()
    held: bool = False  # a proxy confirmed a broadcast of this stage
    cells: tuple[str, ...] = ()  # cells of these proxies
    sent_at: float = 0.0  # when the newest broadcast of this stage was sealed
    reports: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class RolloutStore:
    def __init__(self, database: Database, now_s: Callable[[], float]) -> None:
        self._database, self._now_s = database, now_s

    @transaction
    def begin(
        self, db: Db, job: str, data_set: str, canary: Collection[bytes], expires_s: float
    ) -> None:
        """Start a job's rollout with these canary keys (none: all devices); idempotent."""
        table = tables.rollouts
        if db.scalar(sa.select(table.c.job).where(table.c.job == job)) is None:
            row = {"job": job, "data_set": data_set, "reason": "", "canary": b"".join(canary)}
            ends = {"expires_s": expires_s, "started_at": self._now_s()}
            db.execute(table.insert(), {**row, **ends, "stage": "canary" if canary else "all"})

    @transaction
    def canary(self, db: Db, job: str) -> list[bytes]:
        """Return the canary's keys; empty once the release goes to all."""
        table = tables.rollouts
        query = sa.select(table.c.canary).where(table.c.job == job, table.c.stage == "canary")
        keys = bytes(db.scalar(query) or b"")
        return [keys[i : i + 32] for i in range(0, len(keys), 32)]

    @transaction
    def sent(
        self, db: Db, job: str, sequence: int, stage: Stage, selected: int, secret: bytes
    ) -> None:
        """Record a sealed broadcast to `selected` devices; `secret` opens its reports."""
        values = {"job": job, "sequence": sequence, "stage": stage, "selected": selected}
        values |= {"secret": secret, "sent_at": self._now_s(), "held": False, "cells": []}
        db.execute(tables.release_broadcasts.insert(), values)

    @transaction
    def held(self, db: Db, sequence: int, cell: str = "") -> None:
        table = tables.release_broadcasts
        of_it = table.c.sequence == sequence
        cells = set(db.scalar(sa.select(table.c.cells).where(of_it)) or ()) | {cell}
        db.execute(table.update().where(of_it).values(held=True, cells=sorted(cells)))

    @transaction
    def move(self, db: Db, job: str, stage: Stage, reason: str) -> None:
        """Change the stage; raises StoreError if the release was withdrawn or never made."""
        table = tables.rollouts
        row = db.execute(sa.select(table).where(table.c.job == job)).mappings().first()
        if row is None:
            raise StoreError(f"job '{job}' has no release on its way", fix="see releases list")
        if row["stage"] == stage:
            return
        if row["stage"] == "withdrawn":
            what = f"the release of job '{job}' was withdrawn, and devices have left it"
            raise StoreError(what, fix="submit the job again")
        change = table.update().where(table.c.job == job)
        db.execute(change.values(stage=stage, reason=reason, canary=b""))

    @transaction
    def secret(self, db: Db, job: str, attempt: int) -> tuple[int, bytes] | None:
        """Return (sequence, secret) of the broadcast with wire number `attempt`, or None."""
        table = tables.release_broadcasts
        rows = db.execute(sa.select(table).where(table.c.job == job)).mappings()
        found = [row for row in rows if row["sequence"] % 2**31 == attempt]
        return (found[0]["sequence"], bytes(found[0]["secret"])) if found else None

    @transaction
    def count(self, db: Db, sequence: int, reports: Mapping[bytes, str]) -> None:
        table, sent = tables.release_reports, tables.release_broadcasts
        at = db.execute(sa.select(sent).where(sent.c.sequence == sequence)).mappings().one()
        of_it = sa.select(table.c.digest).where(table.c.sequence == sequence)
        known = {bytes(digest) for digest in db.scalars(of_it)}
        rows = [
            {"sequence": sequence, "digest": digest, "job": at["job"], "stage": at["stage"]}
            | {"outcome": outcome}
            for digest, outcome in reports.items()
            if digest not in known
        ]
        room = at["selected"] - len(known)  # at most one report per selected device
        if rows[:room]:
            db.execute(table.insert(), rows[:room])

    @transaction
    def all(self, db: Db) -> tuple[Rollout, ...]:
        table, sent, reports = tables.rollouts, tables.release_broadcasts, tables.release_reports
        broadcasts = defaultdict[str, list[sa.RowMapping]](list)
        for row in db.execute(sa.select(sent).order_by(sent.c.sequence)).mappings():
            broadcasts[row["job"]].append(row)
        counts = defaultdict[str, dict[str, dict[str, int]]](dict)
        group = (reports.c.job, reports.c.stage, reports.c.outcome)
        counted = sa.select(*group, sa.func.count()).group_by(*group)
        for job, stage, outcome, number in db.execute(counted):
            counts[job].setdefault(stage, {})[outcome] = number
        rows = db.execute(sa.select(table).order_by(table.c.started_at, table.c.job)).mappings()
        return tuple(_rollout(row, broadcasts[row["job"]], counts[row["job"]]) for row in rows)

    @transaction
    def newest_key_at(self, db: Db) -> float:
        return float(db.scalar(sa.select(sa.func.max(tables.enrolled_keys.c.added_at))) or 0.0)


def _rollout(
    row: sa.RowMapping, sent: list[sa.RowMapping], counts: Mapping[str, Mapping[str, int]]
) -> Rollout:
    of_stage = [one for one in sent if one["stage"] == row["stage"]]
    names = ("job", "data_set", "stage", "reason", "started_at", "expires_s")
    same: dict[str, Any] = {name: row[name] for name in names}
    return Rollout(
        **same,
        canary=next((one["selected"] for one in sent if one["stage"] == "canary"), 0),
        sequences=tuple(one["sequence"] for one in sent),
        held=any(one["held"] for one in of_stage),
        cells=tuple(sorted({cell for one in of_stage for cell in one["cells"]})),
        sent_at=max((one["sent_at"] for one in of_stage), default=0.0),
        reports=counts,
    )


def report_digest(sealed: bytes) -> bytes:
    return hashlib.sha256(sealed).digest()
