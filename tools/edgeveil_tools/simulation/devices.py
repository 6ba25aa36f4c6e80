"""Seeded devices of one job in one worker, which compute as real ones but seal nothing."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, cast

import numpy as np

from edgeveil.config.edge import EdgeSite
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.errors import DataError, EdgeVeilError, PrivacyError, UsageError
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.artifacts import carried_digests
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.aggregation.mean import ExactSum, Grids, largest
from edgeveil.parts.features import match_artifacts
from edgeveil.parts.own_records import dealt_records, halves, origin_of
from edgeveil.parts.round import TRAIN, Array, Tensors
from edgeveil.parts.update import UpdateDevice
from edgeveil.privacy.policy import check_job
from edgeveil.privacy.sampler import SeededRandom
from edgeveil.protocol.sealed import RoundPackage
from edgeveil.protocol.tensors import pack_tensors, unpack_tensors
from edgeveil.subnormals import flushed
from edgeveil.testing import SimulationSeeds, device_sites
from edgeveil_cloud.open_segments import norm
from edgeveil_edge.compute import Computation, Computer, LoadRecords, SharedSession, TaughtJob
from edgeveil_edge.consent import decline_cause, judge, limits_of
from edgeveil_edge.round_work import (
    check_price,
    kept_of,
    kept_tensors,
    nothing_to_give,
    own_answers,
    too_large,
)
from edgeveil_edge.sealing import wire_arrays
from edgeveil_tools.simulation.canaries import Canaries
from edgeveil_tools.site.provision import SiteSpec

Role = Literal["train", "infer"]


@dataclass(frozen=True)
class SimulatedFleet:
    site: SiteSpec
    canonical: bytes
    backbones: tuple[bytes, ...]
    canaries: int = 0  # devices, from the first, that audit the run


@dataclass(frozen=True)
class DeviceAnswer:
    """The outcome of one device's round.

    `groups` has the largest absolute value and the norm by answered group; `notes` are for its
    owner."""

    number: int
    groups: dict[int, tuple[float, float]] = field(default_factory=dict)
    declined: str = ""
    cause: str = ""  # of a decline, one of `DECLINE_CAUSES`
    notes: tuple[str, ...] = ()


@dataclass
class _Device:
    role: Role
    job: TaughtJob
    noise: SeededRandom
    computer: Computer
    answered: list[int] = field(default_factory=list)
    released: dict[int, bytes] = field(default_factory=dict)  # of rounds that later ones build on
    kept: Tensors = field(default_factory=dict)


class SimulatedDevices:
    """The devices of one worker, made on demand; numbers count from 1."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self._plan_of_site, site = fleet.site, fleet.site
        bare = compile_canonical(fleet.canonical)
        carried = match_artifacts(carried_digests(bare.job), fleet.backbones)
        self._plan = bare.with_artifacts(carried)
        self._job = TaughtJob(self._plan, fleet.canonical, self._plan.graph())
        sites = device_sites(2, site.source, infer_only=1, policy=site.policy, seed=site.seed)
        self._sites: dict[Role, EdgeSite] = {one.role: one for one in sites}
        self._seeds, self._inference = SimulationSeeds(site.seed), SharedSession()
        self._canaries = Canaries(self._plan, self._seeds, fleet.canaries)
        self._devices: dict[int, _Device] = {}
        rounds = self._plan.all_rounds
        recalled = (self._plan.recalled(round) for round in rounds)
        self._built_on = {earlier.index for some in recalled for earlier in some}
        self._shelf = _Shelf()
        self._round: tuple[RoundContext, RoundPackage, int]
        self._refused = lru_cache(maxsize=64)(self._refused_of)  # all devices of a role are alike
        name, request = self._plan.job.job, self._plan.request
        self._requests = {r: request(name, trains=r == "train") for r in self._sites}
        self._price = lru_cache(maxsize=1024)(
            lambda role, round: RoundContext.of(self._plan, round).price(trains=role == "train")
        )

    def begin(self, round: int, package: RoundPackage, selected: int) -> None:
        """Begin a round with `selected` devices, and discard the one before."""
        self._shelf.clear()
        self._round = RoundContext.of(self._plan, round), package, selected

    def answer(self, numbers: Sequence[int]) -> list[DeviceAnswer]:
        refused = {number: self._refusal(self._device(number)) for number in numbers}
        self._train_ahead([self._device(number) for number in numbers if not refused[number]])
        return [self._answer(number, refused[number]) for number in numbers]

    def _train_ahead(self, devices: Sequence[_Device]) -> None:
        (context, package, _), plan = self._round, self._plan.device
        if context.round.phase != TRAIN or not isinstance(plan, UpdateDevice):
            return
        alike = [one for one in devices if one.role == "train" and one.job is self._job]
        with suppress(EdgeVeilError), flushed():  # each device's own answer shows an error
            records = (one.computer.halves(self._plan)[0][0] for one in alike)
            tensors = unpack_tensors(package.tensors)
            own = ({**tensors, **self._own(one, context)} for one in alike)
            given = zip(own, records, (one.noise for one in alike), strict=True)
            plan.train_ahead(context.round, given, self._sites["train"].device)

    def _own(self, device: _Device, context: RoundContext) -> dict[str, Array]:
        return {**own_answers(context, device.released.get), **kept_tensors(device.kept)}

    def arrays(self, group: int, numbers: Sequence[int]) -> list[Array]:
        return list(self._shelf.all(group, numbers))

    def added(self, group: int, numbers: Sequence[int], grids: Grids | None) -> ExactSum:
        """Return the exact sum of these devices' arrays in one group."""
        size = self._round[0].segments[group].count
        return ExactSum(size, grids).add(self._shelf.all(group, numbers))

    def _answer(self, number: int, refused: EdgeVeilError | None) -> DeviceAnswer:
        context, package, _ = self._round
        device = self._device(number)
        index = context.round.index
        try:
            if refused is not None:
                raise refused
            trains = device.role == "train"
            own = self._own(device, context)
            asked = context.round, package, own if trains else {}, trains, device.noise
            found = device.computer.answer(Computation(device.job, *asked))
            check_price(context.price(trains=trains), found.parts)
            kept = kept_of(found.parts, self._sites[device.role].limits.memory_bytes)
        except (PrivacyError, DataError, UsageError) as error:
            return DeviceAnswer(number, declined=str(error), cause=decline_cause(error))
        segments = {name: array for part in found.parts for name, array in part.segments.items()}
        device.answered.append(index)
        if not context.round.evaluates:
            device.kept = kept
        if index in self._built_on:
            device.released[index] = pack_tensors(segments)
        arrays = wire_arrays(context, segments)
        for group, array in arrays.items():
            self._shelf.put(group, number, array)
        measured = {group: (largest(array), norm(array)) for group, array in arrays.items()}
        notes = (f"round {index} is answered without records: {found.without}",)
        return DeviceAnswer(number, measured, notes=notes if found.without else ())

    def _device(self, number: int) -> _Device:
        site = self._plan_of_site

        def load(
            _site: EdgeSite, key: bytes, share: float, schema: DataSchema | None
        ) -> tuple[Records, Records]:
            of = (site.partition, site.seed, site.classes)
            origin = origin_of(site.source, schema)
            pool, shares = dealt_records(site.source.source, origin, site.devices, *of)
            return halves(pool.at(shares[number - 1]), key, share)

        def load_canary(*how: Any) -> tuple[Records, Records]:
            held, schema = self._canaries.records(number), how[-1]
            none = held.at(np.zeros(0, np.int64))
            return (none, none) if schema is not None and schema.raw else (held, none)

        if number not in self._devices:
            job, held = self._job, cast("LoadRecords", load)
            if number <= self._canaries.count:
                job, held = replace(job, plan=self._canaries.plan_of(number)), load_canary
            role: Role = "infer" if number > site.devices - site.infer_only else "train"
            key = self._seeds.split_key(number)
            # Keep the records: values that a method derives from them are cached with them.
            computer = Computer(self._sites[role], key, held, self._inference)
            self._devices[number] = _Device(role, job, self._seeds.noise(number), computer)
        return self._devices[number]

    def _refusal(self, device: _Device) -> EdgeVeilError | None:
        """Return why the device declines this round, or None."""
        (context, _, selected), site = self._round, self._sites[device.role]
        why = nothing_to_give(site, context) or too_large(site, context.plan.upload_bytes)
        if why or (refused := self._refused(device.role, selected)):
            return UsageError(why) if why else refused
        spent = [event for index in device.answered for event in self._price(device.role, index)]
        try:
            self._requests[device.role].admit(spent, self._price(device.role, context.round.index))
        except PrivacyError as error:
            return error
        return None

    def _refused_of(self, role: Role, selected: int) -> PrivacyError | None:
        site = self._sites[role]
        try:
            judge(site, self._plan, selected)
            check_job(self._requests[role], limits_of(site.policy), ())
        except PrivacyError as error:
            return error
        return None


class _Shelf:
    """One round's arrays by group and device, in an unnamed temporary file."""

    def __init__(self) -> None:
        self._places = dict[tuple[int, int], tuple[int, np.dtype[Any], tuple[int, ...]]]()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        weakref.finalize(self, self._file.close)

    def clear(self) -> None:
        self._places.clear()
        self._file.seek(0)
        self._file.truncate()

    def put(self, group: int, number: int, array: Array) -> None:
        place = self._file.seek(0, os.SEEK_END)
        self._places[group, number] = place, array.dtype, array.shape
        self._file.write(array.tobytes())

    def all(self, group: int, numbers: Sequence[int]) -> Iterator[Array]:
        for number in numbers:
            place, dtype, shape = self._places[group, number]
            self._file.seek(place)
            raw = self._file.read(int(np.prod(shape)) * dtype.itemsize)
            yield np.frombuffer(raw, dtype).reshape(shape)
