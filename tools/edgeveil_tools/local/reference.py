"""The noise-free reference of a local run on pooled records; nothing of it is private."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edgeveil.data.records import Records
from edgeveil.data.split import SPLIT_KEY_FILE, load_split_key
from edgeveil.data.target import TargetRange
from edgeveil.evaluation.figures import anomaly_figures, regression_figures
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.artifacts import read_artifacts
from edgeveil.parts.method_context import MethodContext
from edgeveil.parts.methods import METHODS
from edgeveil.parts.methods.fm import FmDevice
from edgeveil.parts.methods.fm_sums import FmParameters
from edgeveil.parts.methods.pca_residual import (
    PcaResidualCloud,
    PcaResidualDevice,
    PcaResidualParameters,
)
from edgeveil.parts.models.heads import (
    head_probabilities,
    head_values,
    no_threshold,
    residual_scores,
)
from edgeveil.parts.own_records import halves
from edgeveil.parts.round import TRAIN, PlannedRound
from edgeveil.testing import SimulationSeeds
from edgeveil_tools.local.data import dealt, held
from edgeveil_tools.local.local_run import LocalRun
from edgeveil_tools.site.provision import SiteSpec

RIDGE_SHARE = 1 / 30  # the ridge is for noise; without any, little is needed


def has_reference(job: Job) -> bool:
    return isinstance(job.train, FmParameters | PcaResidualParameters)


def train(
    job: Job, run: LocalRun, plan: SiteSpec, before: Callable[[PlannedRound], object]
) -> list[float]:
    """Return the leading test figure after each noise-free round; empty without a reference."""
    test, parameters = held(job, run), job.train
    if not isinstance(parameters, FmParameters | PcaResidualParameters) or not len(test):
        return []
    whole = compile_job(job).with_artifacts(read_artifacts(job))
    context = replace(whole.context, devices=run.devices - run.infer_only)
    if isinstance(parameters, FmParameters):
        parameters = parameters.model_copy(update={"ridge": parameters.ridge * RIDGE_SHARE})
    records, target = pooled(job, run, plan), job.data.target
    return noise_free_reference(parameters, context, records, test, before, target)[: whole.rounds]


def noise_free_reference(
    parameters: FmParameters | PcaResidualParameters,
    context: MethodContext,
    train: Records,
    test: Records,
    before: Callable[[PlannedRound], object] = lambda _round: None,
    target: TargetRange | None = None,
) -> list[float]:
    """Return the test figure after each training round without noise.

    The figure is accuracy, RMSE with a `target`, or AUC of anomalies. `train` pools all devices'
    records; `before` is called ahead of each round.

    The mean over `context.devices` devices of exact sums is the pooled sum over that number, and
    local steps are linear in the sums, so no device is played alone. PCA is always of the pooled
    records."""
    if context.projection is not None:
        common = {"name": "ldp_fpca", "noise": "gaussian"}
        context = replace(context, projection=context.projection.model_copy(update=common))
    context = replace(context, summed=0, unit="record")
    part = METHODS[parameters.method]
    device, cloud = part.device(parameters, context), part.cloud(parameters, context)
    if not isinstance(device, FmDevice | PcaResidualDevice):
        return []
    if isinstance(cloud, PcaResidualCloud):
        cloud.ridge *= RIDGE_SHARE
    state = cloud.initial_state()
    phi = context.features(test.x)
    found: list[float] = []
    for round in cloud.plan():
        before(round)
        tensors = cloud.package(state, round)
        mean = device.sums(round, tensors, train) / context.devices
        segments = device.finish(round, tensors, mean)
        state = cloud.absorb(state, round, segments, context.devices)
        if round.phase == TRAIN:
            found.append(_figure(phi, cloud.model(state), test.y, target, context.anomaly))
    return found


def _figure(
    phi: Any, model: Mapping[str, Any], y: Any, target: TargetRange | None, anomaly: bool
) -> float:
    if anomaly:
        scores = residual_scores(phi, {**no_threshold(), **model})
        area = anomaly_figures(scores, y, alarms=False).get("auc")
        return math.nan if area is None else area
    if target is not None:
        return float(regression_figures(head_values(phi, model, target), y, target)["rmse"])
    return float((head_probabilities(phi, model).argmax(axis=1) == y).mean())


def pooled(job: Job, run: LocalRun, plan: SiteSpec) -> Records:
    """Return the training halves of all training devices, split as by those devices."""
    records, shares = dealt(job, run)
    seeds, parts = SimulationSeeds(run.seed), []
    for number, share in enumerate(shares[: run.devices - run.infer_only], start=1):
        file = plan.edge_state(number) / SPLIT_KEY_FILE
        key = seeds.split_key(number) if run.simulate else load_split_key(file)
        parts.append(halves(records.at(share), key, job.data.evaluation_share)[0])
    return Records(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))
