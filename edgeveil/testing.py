"""Simulation helpers: devices' site files, seeded randomness, packages without encryption."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from edgeveil.config.data import DataSource, Partition
from edgeveil.config.edge import EdgeSite
from edgeveil.config.policy import Policy
from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Group, Manifest, RoundId
from edgeveil.protocol.sealed import Plaintext, Terms, filled
from edgeveil.selection import uniform

DIGITS = DataSource(name="digits", source="digits")
NOWHERE = {"url": "mqtt://127.0.0.1:1"}  # a placeholder, never connected to


def device_sites(
    devices: int,
    source: DataSource = DIGITS,
    *,
    infer_only: int = 0,
    partition: Partition | None = None,
    classes: int | None = None,
    policy: Policy | None = None,
    seed: int = 7,
) -> list[EdgeSite]:
    """Return site files of devices, the last `infer_only` without training, each with a shard."""
    keys = {"cloud_key_file": Path("cloud.pub"), "proxy_key_file": Path("proxy.pub")}
    share: dict[str, Any] = {"devices": devices, "seed": seed, "classes": classes}
    share["partition"] = partition or Partition()
    data = source.model_dump(exclude_none=True)
    return [
        EdgeSite.model_validate(
            {
                **keys,
                "broker": NOWHERE,
                "name": f"box-{number}",
                "policy": (policy or Policy()).model_copy(),  # each owner's own
                "role": "infer" if number > devices - infer_only else "train",
                "data": {**data, "shard": {**share, "index": number - 1}},
                "limits": {},
            }
        )
        for number in range(1, devices + 1)
    ]


class SimulationSeeds:
    """All randomness of a simulation, derived from one seed; nothing of it is private."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._selection = Random(self._number("selection"))  # noqa: S311 - seeded on purpose
        self.shuffle = Random(self._number("shuffle")).shuffle  # noqa: S311

    def noise(self, device: int) -> SeededRandom:
        """Return the noise stream of `device` (from 1), which continues from round to round."""
        return SeededRandom(self._number(f"noise/{device}"))

    def draws(self) -> SeededRandom:
        return SeededRandom(self._number("aggregation"))

    def canary(self, device: int, round: int = 0) -> SeededRandom:
        """Return the stream of a canary's direction in a round; in round 0 of its coin."""
        return SeededRandom(self._number(f"canary/{device}/{round}"))

    def split_key(self, device: int) -> bytes:
        return self._digest(f"split/{device}")

    def choose(self, devices: Sequence[bytes], count: int) -> list[bytes]:
        """Select `count` devices; the result depends on their order."""
        return uniform(devices, count, self._selection)

    def _number(self, what: str) -> int:
        return int.from_bytes(self._digest(what)[:16], "big")

    def _digest(self, what: str) -> bytes:
        return hashlib.sha256(f"edgeveil/v1/simulation/{self._seed}/{what}".encode()).digest()


KEY_BYTES = 32
_TAG = b"edgeveil/v1/simulation/not-encrypted"


class PlainSealing:
    """Unencrypted stand-in for `protocol.sealed.Sealing`, which no configuration can select."""

    def seal_broadcast(
        self,
        terms: Terms,
        package: Plaintext,
        recipients: Sequence[SealingKey],
        part_bytes: int,
        *,
        bucketed: bool = False,
    ) -> tuple[Manifest, bytes, bytes]:
        """Return manifest, recipients with package, and membership tag; one bucket."""
        front = self.front(recipients)
        data = b"".join((front, package))
        manifest = terms.manifest(
            package,
            data,
            selected=len(recipients),
            stanza_bytes=len(front),
            commitment=bytes(32),
            part_bytes=part_bytes,
        )
        return manifest, data, self.membership(manifest)

    def front(self, recipients: Sequence[SealingKey]) -> bytes:
        return b"".join(key.to_bytes() for key in recipients)

    def open_broadcast(
        self, key: OpeningKey, manifest: Manifest, data: bytes
    ) -> tuple[bytes, bytes] | None:
        """Return (package, membership tag) for a listed key, else None."""
        if not self.is_listed(key, manifest, data):
            return None
        return data[manifest.stanza_bytes :], self.membership(manifest)

    def membership(self, manifest: Manifest) -> bytes:
        return hashlib.sha256(_TAG + manifest.cloud_key + manifest.package_digest).digest()

    def is_listed(self, key: OpeningKey, manifest: Manifest, stanzas: bytes) -> bool:
        own = key.public().to_bytes()
        starts = range(0, manifest.stanza_bytes, KEY_BYTES)
        return any(stanzas[start : start + KEY_BYTES] == own for start in starts)

    def seal_segment(
        self, manifest: Manifest, group: Group, membership: bytes, tensor: Plaintext
    ) -> bytes:
        """Return tag, random bytes (equal tensors differ) and tensor in a sealed segment's size."""
        tag = _segment_tag(manifest.at, manifest.job_digest, group, membership)
        head = tag + os.urandom(SEAL_OVERHEAD_BYTES - len(tag))
        return b"".join((head, filled(tensor, group.padded_bytes)))

    def open_segment(
        self,
        key: OpeningKey,
        at: RoundId,
        job_digest: bytes,
        group: Group,
        membership: bytes,
        sealed: bytes,
    ) -> bytes | None:
        """Return the padded tensor; None if it was not made for this round."""
        tag = _segment_tag(at, job_digest, group, membership)
        fits = len(sealed) == SEAL_OVERHEAD_BYTES + group.padded_bytes
        return sealed[SEAL_OVERHEAD_BYTES:] if fits and sealed.startswith(tag) else None


def _segment_tag(at: RoundId, job_digest: bytes, group: Group, membership: bytes) -> bytes:
    bound = at.job_id + at.numbers + job_digest + membership + group.name.encode()
    return hashlib.sha256(_TAG + bound).digest()
