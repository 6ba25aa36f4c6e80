"""What a simulated device does for its machine: it opens, packs, seals for real, of noise."""

from __future__ import annotations

import os

import numpy as np

from edgeveil.crypto.keys import OpeningKey
from edgeveil.errors import EdgeVeilError, ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import sealed as sealing
from edgeveil.protocol.device_tasks import (
    ComputeAnswer,
    Installation,
    InstallJob,
    InstallRelease,
    OpenedPackage,
    OpenPackage,
    SealDummies,
    SealedAnswer,
)
from edgeveil.protocol.messages import Manifest
from edgeveil.protocol.sealed import decode_package
from edgeveil_lab.load.shared import Shared


class Worker:
    """One device's opening key and the membership of its newest round.

    `total` is the sum of the newest upload's values.
    """

    __slots__ = ("_membership", "_opening", "_shared", "total")

    def __init__(self, shared: Shared, opening: OpeningKey) -> None:
        self._shared, self._opening = shared, opening
        self._membership, self.total = b"", 0.0

    def perform(self, task: object) -> object:
        """The outcome of one task; `Failed` where it cannot be done."""
        try:
            match task:
                case OpenPackage(manifest=manifest, blob=blob):
                    return self._open(manifest, blob)
                case InstallJob(manifest=manifest, package=package):
                    self._shared.learn(manifest.at.job_id, package.job, manifest.job_digest)
                    return Installation()
                case ComputeAnswer(manifest=manifest):
                    return self._seal(manifest, self._membership, dummy=False)
                case SealDummies(manifest=manifest):
                    return self._seal(manifest, os.urandom(32), dummy=True)
                case InstallRelease():
                    return Installation()
        except ProtocolError as error:
            return fx.WorkFailed(error.reason)
        except EdgeVeilError as error:
            return fx.WorkFailed(str(error))
        return fx.WorkFailed("unknown_task")

    def _open(self, manifest: Manifest, blob: bytes) -> OpenedPackage:
        opened = sealing.open_broadcast(self._opening, manifest, blob)
        chance = self._shared.chance.random()
        if opened is None:
            return OpenedPackage(None, chance)
        package, membership = opened
        if manifest.kind == "round":
            self._membership = membership
        return OpenedPackage(decode_package(package), chance)

    def _seal(self, manifest: Manifest, membership: bytes, *, dummy: bool) -> SealedAnswer:
        plan = self._shared.plan(manifest)
        exchange = plan.exchange(manifest.at.exchange)
        if manifest.groups != plan.groups(exchange):
            raise ProtocolError("wrong_groups")
        specs = plan.segments(exchange)
        noise = [self._shared.noise(spec.byte_count) for spec in specs]
        self.total = sum(float(np.frombuffer(n, "<f4").sum(dtype=np.float64)) for n in noise)
        sealed = [
            sealing.seal_segment(manifest, group, membership, one)
            for one, group in zip(noise, manifest.groups, strict=True)
        ]
        groups, sizes = tuple(range(len(sealed))), tuple(map(len, sealed))
        marks = tuple(sealing.segment_mark(membership, segment) for segment in sealed)
        return SealedAnswer(groups, sizes, b"".join(sealed), marks, dummy)
