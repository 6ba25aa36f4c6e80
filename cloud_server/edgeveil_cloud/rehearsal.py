"""Rehearsal of a whole job on made-up records, so that errors appear before it is queued.

Plays each kind of round once, then exports, loads and runs the final model. No device, ledger or
real record is involved, so it costs no budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np

from edgeveil.crypto.chunked import chunked_bytes
from edgeveil.crypto.sealing import stanza_area_bytes
from edgeveil.errors import DataError, EdgeVeilError
from edgeveil.evaluation.figures import METRIC, own_metric
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import BATCH_RECORDS, MAX_GRAPH_BYTES, OnnxModel
from edgeveil.jobs import compile_canonical
from edgeveil.jobs.artifacts import carried_digests, kept_digests
from edgeveil.jobs.federated_evaluation import COUNTS
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.rehearsal import (
    MadeUpDevice,
    brief,
    evaluation_kinds,
    rehearsed_evaluation,
    rehearsed_softmax,
    synthetic_records,
    training_kinds,
)
from edgeveil.jobs.round_context import RoundContext
from edgeveil.own_process import is_own, run_apart
from edgeveil.parts.features import match_artifacts
from edgeveil.parts.method_context import network_of
from edgeveil.parts.methods.own_code import check_own_code
from edgeveil.parts.models import runs_python
from edgeveil.parts.models.heads import bake
from edgeveil.parts.round import ASK, EVALUATE, TRAIN, Array, PlannedRound, SegmentSpec
from edgeveil.privacy.sampler import os_random
from edgeveil.protocol.sealed import JobPackage, Package, ReleasePackage, encode_package
from edgeveil.protocol.tensors import pack_tensors, tensor_views
from edgeveil_cloud.broadcasts import BroadcastLimits, round_package
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.evaluation import (
    Evaluation,
    answers_of,
    cluster_figures,
    clusters,
    federated_figures,
    mean_softmax,
)
from edgeveil_cloud.round_report import model_card, weights_file
from edgeveil_cloud.validate_batch import ValidatedBatch

REHEARSAL_S = 300.0  # timeout: imports on a slow machine, and every kind of round
RECORDS = 16  # per made-up device
_FAR = 1e-3  # tolerance for a probability, above rounding differences
_KEYS = (
    *("aggregation", "data", "features", "federated_evaluation", "model"),
    *("privacy", "round", "selection", "train"),
)


class RefusedJobError(DataError):
    """A job that cannot run; `where` is a key of the job file."""


def rehearse_job(plan: Plan, limits: BroadcastLimits, *, devices: bool = True) -> None:
    """Raise RefusedJobError unless a cloud with these `limits` can run the job.

    Without `devices` uploads are made up and need no torch; a user's own model always runs, apart.
    """
    metric = plan.job.test_metric
    if metric is not None and isinstance(why := own_metric(metric), str):
        raise RefusedJobError(why, where=METRIC, fix="install its module, or correct the name")
    if not plan.job.functions or is_own():
        _Rehearsal(plan, limits, devices).play()
        return
    key, artifacts = _code_key(plan), list(plan.artifacts.values())
    asked = msgspec.msgpack.encode((plan.job.canonical(), artifacts, limits))
    try:
        run_apart(f"{__name__}:play_apart", asked, REHEARSAL_S, key)
    except DataError as error:
        known = error.where.split(".")[0] in _KEYS
        raise RefusedJobError(
            error.what, where=error.where if known else key, fix=error.fix or "correct the function"
        ) from error


def _code_key(plan: Plan) -> str:
    if runs_python(plan.job.model):
        return "model.function"
    return "train.function" if hasattr(plan.job.train, "function") else "train.loss"


_Asked = tuple[bytes, list[bytes], BroadcastLimits]


def play_apart(request: bytes) -> bytes:
    canonical, artifacts, limits = msgspec.msgpack.decode(request, type=_Asked)
    plan = compile_canonical(canonical)
    plan = plan.with_artifacts(match_artifacts(kept_digests(plan.job), artifacts))
    _Rehearsal(plan, limits, True).play()
    return b""


class _Rehearsal:
    def __init__(self, plan: Plan, limits: BroadcastLimits, devices: bool) -> None:
        plan = brief(plan)
        self._plan, self._limits = plan, limits
        self._own = runs_python(plan.job.model)
        self._devices = devices or bool(plan.job.functions)
        named = "model.function" if self._own else "model"
        self._network = named if plan.job.model else "features"
        self._test = synthetic_records(plan, BATCH_RECORDS + plan.rule.validation_records)
        self._evaluation = Evaluation(self._test)
        self._state: dict[str, Array] = {}
        self._federated: Mapping[str, Any] | None = None

    def play(self) -> None:
        plan = self._plan
        with _stage("the model", self._network):
            plan.check_artifacts()
            if self._own:
                check_own_code(network_of(plan.context), plan.job.train)
            graph = plan.graph()
            check_graph(graph)
            OnnxModel(graph)
        with _stage("the first state", "train"):
            self._state = plan.cloud.initial_state()
        self._broadcast_job(graph)
        self._rounds(graph)
        with _stage("the final model", self._network):
            self._release(graph)

    def _rounds(self, graph: bytes) -> None:
        plan, records = self._plan, synthetic_records(self._plan, RECORDS)
        device = MadeUpDevice(plan, records, "cpu")
        for round in training_kinds(plan):
            with _stage(f"{round.label} on a device", "train"):
                if self._devices:
                    upload = device.answer(round, plan.cloud.package(self._state, round))
                else:
                    upload = _made_up(plan.cloud.segments(round))
            self._absorb(round, graph, upload)
        for round in [one for one in plan.all_rounds if one.infer][:1]:
            with _stage("inference on a device", self._network):
                model, x = plan.cloud.model(self._state), self._test.x[:RECORDS]
                vector = rehearsed_softmax(plan, graph, model, x)
            with _stage("evaluation of inferences", "unsupervised"):
                context = RoundContext.of(plan, round.index)
                clusters(context, [vector])
                mean_softmax(context, [vector], 1)
        for round in evaluation_kinds(plan):
            context = RoundContext.of(plan, round.index)
            self._check_sizes(context)
            with _stage("evaluation on a device", self._network):
                counts = rehearsed_evaluation(plan, round, graph, self._state, records)
            key = {EVALUATE: "federated_evaluation", ASK: "statistics"}.get(round.phase)
            with _stage("the figures of devices", key or "unsupervised"):
                mean = {COUNTS: counts.astype(np.float64)}
                after = plan.next_state(self._state, round, mean, 1)
                cluster_figures(context, after, [counts], 1)
                self._federated = federated_figures(context, [counts], 1) or self._federated
                answers_of(context, [counts], 1)

    def _absorb(self, round: PlannedRound, graph: bytes, upload: dict[str, Array]) -> None:
        """Aggregate copies of one upload, as many as the rule needs."""
        rule, context = self._plan.rule, RoundContext.of(self._plan, round.index)
        self._check_sizes(context)
        with _stage(f"aggregation of {round.label}", "aggregation"):
            ruled = rule.sums or round.phase == TRAIN
            least = max(context.min_batch, rule.least if ruled else 1)
            batch = ValidatedBatch({name: [array] * least for name, array in upload.items()})
            score = self._evaluation.score(context, graph, self._state)
            state, _ = aggregate(context, self._state, batch, os_random, score)
            self._state = tensor_views(pack_tensors(state))
        with _stage("the test of a model", self._network):
            self._evaluation.tested(context, graph, self._state)

    def _release(self, graph: bytes) -> None:
        plan, x = self._plan, self._test.x[:RECORDS]
        weights = self._evaluation.weights(plan, self._state)
        onnx = bake(graph, weights, model_card(plan, self._federated))
        weights_file(plan, weights)
        _check_graph_size(onnx)
        self._check_blob("the final model", ReleasePackage(plan.job.job, onnx))
        wanted = OnnxModel(graph).answers(x, weights)
        weights = self._state = {}  # opening a session holds three copies of a model
        model = OnnxModel(onnx)
        if model.weight_names:
            raise DataError(f"lacks the weights {sorted(model.weight_names)}")
        found = model.answers(x, {})
        far = _FAR * (1.0 if plan.job.data.target is None else plan.job.data.target.half)
        if not np.allclose(found, wanted, rtol=0, atol=far, equal_nan=True):
            raise DataError("gives other values than the model that was learned")

    def _broadcast_job(self, graph: bytes) -> None:
        with _stage("the job's graph", self._network):
            _check_graph_size(graph)
            digests = carried_digests(self._plan.job)
            backbones = tuple(self._plan.artifacts[one] for one in digests)
            self._check_blob("the job", JobPackage(self._plan.job.canonical(), graph, backbones))

    def _check_sizes(self, context: RoundContext) -> None:
        package = round_package(context, self._state)
        with _stage(context.round.label, self._network):
            self._check_blob("its broadcast", package)
            if self._recipients * context.upload_bytes > self._limits.batch_bytes:
                raise DataError(
                    f"{self._recipients} uploads of {context.upload_bytes} bytes pass the cloud's"
                    f" limit of {self._limits.batch_bytes} bytes a batch",
                    fix="raise limits.spool_bytes at cloud and proxy, or learn a smaller model",
                )

    def _check_blob(self, what: str, package: Package) -> None:
        plain, limit = len(encode_package(package)), self._limits.blob_bytes
        size = stanza_area_bytes(self._recipients) + chunked_bytes(plain)
        if size > limit:
            raise DataError(
                f"{what} has {size} bytes when it is sealed, the limit is {limit}",
                fix="learn a smaller model, or raise limits.blob_bytes at all parties",
            )

    @property
    def _recipients(self) -> int:
        return max(self._plan.job.selection.min_devices, self._plan.job.round.min_batch)


def _check_graph_size(graph: bytes) -> None:
    if len(graph) > MAX_GRAPH_BYTES:
        what = f"has {len(graph)} bytes, a device accepts {MAX_GRAPH_BYTES}"
        raise DataError(what, fix="learn a smaller model")


def _made_up(specs: tuple[SegmentSpec, ...]) -> dict[str, Array]:
    chance, result = np.random.default_rng(0), dict[str, Array]()
    for spec in specs:
        values = chance.standard_normal(spec.shape, np.float32)
        values *= np.float32(1e-3)
        result[spec.name] = values.astype(spec.dtype, copy=False)
    return result


@contextmanager
def _stage(what: str, key: str) -> Iterator[None]:
    """Convert errors to RefusedJobError with a key of the job."""
    try:
        yield
    except (RefusedJobError, ImportError):  # a missing library is not the job's fault
        raise
    except EdgeVeilError as error:
        place = f"{error.where}: " if error.where and error.where != key else ""
        known = error.where.split(".")[0] in _KEYS
        raise RefusedJobError(
            error.what if known else f"{what} cannot be created: {place}{error.what}",
            where=error.where if known else key,
            fix=error.fix,
        ) from error
    except Exception as error:  # a user's own model, onnx and ONNX Runtime may raise anything
        first = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise RefusedJobError(
            f"{what} cannot be created: {type(error).__name__}: {first}",
            where=key,
            fix=f"change {key} of the job",
        ) from error
