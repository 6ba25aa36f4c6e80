"""Promises beyond single mechanisms; an attack must also detect a planted flaw to count."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeveil.config.edge import EdgeSite
from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey
from edgeveil.jobs.plan import Plan
from edgeveil.protocol.messages import Manifest, RoundId
from edgeveil.protocol.sealed import Plaintext, Terms, seal_broadcast


@dataclass(frozen=True)
class AttackOutcome:
    broke: bool
    figure: str


@dataclass(frozen=True)
class Guard:
    """A promise attacked by `play(flawed, quick)`; one that measures time runs `alone`."""

    mechanism: str
    promise: str
    flaw: str
    play: Callable[[bool, bool], AttackOutcome]
    alone: bool = False


@dataclass(frozen=True)
class GuardFinding:
    mechanism: str
    promise: str
    flaw: str
    stands: AttackOutcome
    flawed: AttackOutcome

    @property
    def verdict(self) -> str:
        """`holds`; `FAILS` if the real code breaks the promise, `BLIND` if the flaw is missed."""
        if self.stands.broke:
            return "FAILS"
        return "holds" if self.flawed.broke else "BLIND"


JOB_ID = bytes(16)


def attacked_site(
    folder: Path, cloud: SigningKey, proxy: SigningKey, data: dict[str, Any], **more: Any
) -> EdgeSite:
    files = {}
    for name, key in (("cloud", cloud), ("proxy", proxy)):
        files[f"{name}_key_file"] = str(folder / f"{name}.pub")
        key.public().save(folder / f"{name}.pub")
    plain = {
        "name": "audited",
        "broker": {"url": "mqtt://127.0.0.1:1883"},
        "state_dir": str(folder / "state"),
        "data": {"name": "audited", **data},
    }
    return EdgeSite.model_validate_json(json.dumps({**plain, **files, **more}))


def announced(
    plan: Plan, package: Plaintext, own: OpeningKey, part_bytes: int
) -> tuple[Manifest, bytes, list[bytes]]:
    keys = [own.public(), *(OpeningKey.generate().public() for _ in range(4))]
    recipients = [key.to_bytes() for key in keys]
    terms = Terms("job", RoundId(JOB_ID, 0, 1), 0, plan.job.digest(), "job")
    sealing = [SealingKey(raw) for raw in recipients]
    manifest, blob, _ = seal_broadcast(terms, package, sealing, part_bytes)
    return manifest, blob, recipients
