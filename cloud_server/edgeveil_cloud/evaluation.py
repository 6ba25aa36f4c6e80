"""Evaluation of a round's model and of the devices' uploads by the cloud."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from edgeveil.config.data import DataSource
from edgeveil.data.encoding import NO_CLASS
from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.data.target import TargetRange
from edgeveil.errors import DataError, JobFailed
from edgeveil.evaluation.accuracy import HeldOutTest, ModelScore
from edgeveil.evaluation.cluster_sums import HIDDEN
from edgeveil.evaluation.clustering import MEAN, ClusterScores, cluster_scores
from edgeveil.evaluation.figures import ACCURACY
from edgeveil.jobs.federated_evaluation import ABOUT, CENTROIDS
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.aggregation.rule import Score
from edgeveil.parts.methods.fm_sums import own_weights
from edgeveil.parts.models.heads import THRESHOLD
from edgeveil.parts.own_records import local_records
from edgeveil.parts.round import ASK, CLUSTER, EVALUATE, Array
from edgeveil.parts.sources import source_part
from edgeveil.privacy.events import LaplaceEvent
from edgeveil.privacy.laplace_mechanism import SOFTMAX_BITS, noise_law

LOG = logging.getLogger("edgeveil.cloud")
_TESTS_KEPT = 8  # for concurrent jobs


class HeldTests:
    """The cloud's labelled records by data set; raises DataError if files cannot be read."""

    def __init__(self, blocks: Sequence[DataSource]) -> None:
        self._blocks = tuple(blocks)
        self.names = [block.name for block in blocks]
        self._plain = {at: _plainly_read(block) for at, block in enumerate(blocks)}

    def of(
        self, source: str, schema: DataSchema | None, shape: tuple[int, ...], classes: int | None
    ) -> Records | None:
        """Return a job's first non-empty test set, or None; raises DataError if none fits."""
        misfit: DataError | None = None
        for at, block in enumerate(self._blocks):
            if block.name != source:
                continue
            plain = self._plain[at] if schema is None else None
            try:
                read = local_records(block, schema) if plain is None else plain
                if schema is not None and classes is not None:
                    read = _labelled(read)
                found = in_form(read, shape, classes)
                if len(found):
                    return found
            except DataError as error:
                misfit = misfit or error
        if misfit is not None:
            raise misfit
        return None


def _plainly_read(block: DataSource) -> Records | None:
    try:
        return local_records(block)
    except DataError as error:
        part = source_part(block.source)
        if not part.by_schema or block.path is None or not block.path.exists():
            raise
        LOG.warning("test_data_needs_a_schema", extra={"reason": str(error)})
        return None


def _labelled(records: Records) -> Records:
    return records.at(records.y != NO_CLASS)


def in_form(records: Records, shape: tuple[int, ...], classes: int | None) -> Records:
    """Reshape records; raises DataError for another size or a label beyond `classes`."""
    if not len(records) or math.prod(records.x.shape[1:]) == math.prod(shape):
        if classes is not None:
            others = records.y[(records.y < 0) | (records.y >= classes)]
            if len(others):
                what = f"have the label {others[0]}, the job's classes are 0 to {classes - 1}"
                fix = "correct the job's classes, or the labels in the file"
                raise DataError(what, where="cloud.test_data", fix=fix)
        return Records(records.x.reshape(len(records), *shape), records.y)
    what = f"are of shape {list(records.x.shape[1:])}, the job learns from {list(shape)}"
    fix = "correct the job's input_shape or schema, or the file"
    raise DataError(what, where="cloud.test_data", fix=fix)


class Evaluation:
    """Tests models on the cloud's records; a rule that scores uploads uses the first of them.

    `test` is one set for all jobs of its form, or sets by data set."""

    def __init__(self, test: Records | HeldTests | None) -> None:
        self._test = test
        self._read_of = lru_cache(_TESTS_KEPT)(self._read)
        self._held: dict[object, HeldOutTest] = {}  # by graph and records

    def untested(self, plan: Plan) -> str:
        """Return why a job's models are not tested although there are test records, or ""."""
        if not isinstance(self._test, HeldTests) or self._fitting(plan) is not None:
            return ""
        source = plan.job.data.source
        others = ", ".join(repr(name) for name in self._test.names if name != source)
        return (
            f"no round is tested: the cloud has no test records of data set '{source}'"
            f"{', only of ' + others if others else ''} (cloud.test_data)"
        )

    def check(self, plan: Plan) -> None:
        """Raise JobFailed if the test records do not fit the job, or are too few for its rule."""
        found = self._looked_up(plan)
        if isinstance(found, DataError) and isinstance(self._test, HeldTests):
            raise JobFailed(
                f"the cloud's test records of data set '{plan.job.data.source}' do not fit the job:"
                f" {found.where}: {found.what}",
                where="data",
                fix=found.fix or "correct the job, or cloud.test_data",
            )
        asked, test = plan.rule.validation_records, self._fitting(plan)
        job = plan.job
        if job.early_stopping is not None and test is None and job.federated_evaluation is None:
            what = "stops early by the test of each round, and the cloud has no test records"
            fix = "add records of the job's form to cloud.test_data, or a federated_evaluation"
            raise JobFailed(what, where="early_stopping", fix=fix)
        there = 0 if test is None else len(test)
        if asked >= there and asked:
            raise JobFailed(
                f"scores uploads on {asked} of the cloud's own records and tests models on others,"
                f" but there are {there}",
                where="aggregation.validation_records",
                fix="add records of the job's form to cloud.test_data, or set fewer",
            )

    def score(
        self, context: RoundContext, graph: bytes, state: Mapping[str, Array]
    ) -> Score | None:
        plan = context.plan
        asked, test = plan.rule.validation_records, self._fitting(plan)
        if not asked or test is None:
            return None
        held = self._on(test, graph, slice(asked))

        def right(segments: Mapping[str, Array]) -> int:
            after = plan.cloud.absorb(state, context.round, segments, 1)
            return held.right(self.weights(plan, after))

        return right

    def weights(self, plan: Plan, state: Mapping[str, Array]) -> dict[str, Array]:
        """Return the graph's weights; those that record holders compute come from the test set."""
        return {**plan.model_weights(state), **own_weights(plan.context, self._fitting(plan))}

    def tested(
        self, context: RoundContext, graph: bytes, state: Mapping[str, Array]
    ) -> ModelScore | None:
        """Return the model's score; None outside training rounds and without test records."""
        plan = context.plan
        test = self._fitting(plan)
        if test is None or context.round.number == 0:
            return None
        part = slice(plan.rule.validation_records, None)
        held = self._on(test, graph, part, plan.job.data.target)
        return held.tested(self.weights(plan, state), alarms=THRESHOLD in state)

    def _on(
        self, test: Records, graph: bytes, part: slice, target: TargetRange | None = None
    ) -> HeldOutTest:
        key = graph, part.start, part.stop
        if key not in self._held:
            if len(self._held) >= _TESTS_KEPT:
                self._held.clear()
            self._held[key] = HeldOutTest(graph, test.x[part], test.y[part], target)
        return self._held[key]

    def _fitting(self, plan: Plan) -> Records | None:
        found = self._looked_up(plan)
        return None if isinstance(found, DataError) else found

    def _looked_up(self, plan: Plan) -> Records | DataError | None:
        data = plan.job.data
        classes = data.classes if plan.job.measure == ACCURACY else None
        return self._read_of(data.source, data.schema_, data.input_shape, classes)

    def _read(
        self, source: str, schema: DataSchema | None, shape: tuple[int, ...], classes: int | None
    ) -> Records | DataError | None:
        test = self._test
        try:
            if isinstance(test, HeldTests):
                return test.of(source, schema, shape, classes)
            if test is None:
                return None
            found = in_form(test if classes is None else _labelled(test), shape, classes)
            return found if len(found) else None
        except DataError as error:
            LOG.warning("test_data_does_not_fit", extra={"reason": str(error)})
            return error


@dataclass(frozen=True)
class MeanSoftmax:
    """Mean inference (classes,) over `uploads` devices, with its noise's standard deviation."""

    mean: tuple[float, ...]
    uploads: int
    noise_deviation: float

    def to_dict(self) -> dict[str, Any]:
        return {"eval_type": MEAN, **self.__dict__, "mean": list(self.mean)}


def mean_softmax(context: RoundContext, found: list[Array], uploads: int) -> MeanSoftmax | None:
    """Return the mean of single inferences, or of sums over `uploads` devices; None if absent."""
    if not context.round.infer or not context.job.unsupervised.of_all or not found:
        return None
    if context.plan.sums_inferences:
        total = np.sum(np.stack(found).astype(np.int64), axis=0)
        values = total / (uploads * 2.0**SOFTMAX_BITS)
    else:
        values, uploads = mean({SOFTMAX: found})[SOFTMAX], len(found)
    event = context.plan.softmax_event()
    variance = noise_law(event)[1] if isinstance(event, LaplaceEvent) else 0.0
    return MeanSoftmax(tuple(values.tolist()), uploads, math.sqrt(variance / uploads))


FEDERATED = "FEDERATED"  # the `eval_type` of figures on the devices' own records


def federated_figures(
    context: RoundContext, found: Sequence[Array], uploads: int
) -> dict[str, Any] | None:
    """Return figures from the evaluation counts of `uploads` devices; None in other rounds."""
    if context.round.phase != EVALUATE or not found:
        return None
    figures = context.plan.evaluation.figures(found, uploads)
    return {"eval_type": FEDERATED, "round": context.round.number, **figures}


def cluster_figures(
    context: RoundContext, state: Mapping[str, Array], found: Sequence[Array], uploads: int
) -> dict[str, Any] | None:
    """Return cluster scores from the sums of `uploads` devices; None in other rounds."""
    if context.round.phase != CLUSTER or not found:
        return None
    asked, wanted = context.plan.cluster_sums, context.job.unsupervised.eval_type
    figures = asked.about({CENTROIDS: state[ABOUT]}).figures(found, uploads)
    leading = wanted.removesuffix("_SCORE").lower()
    return {
        "eval_type": wanted,
        "upload": "sums",
        "score": figures[leading],
        "score_deviation": figures[f"{leading}_deviation"],
        "reason": HIDDEN if figures[leading] is None else "",
        **figures,
    }


def answers_of(
    context: RoundContext, found: Sequence[Array], uploads: int
) -> dict[str, Any] | None:
    """Return the answers of `uploads` devices to statistics; None in other rounds."""
    if context.round.phase != ASK or not found:
        return None
    return context.plan.question.answers(found, uploads)


def as_federated(scores: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return scores if scores and scores.get("eval_type") == FEDERATED else None


def clusters(context: RoundContext, vectors: list[Array]) -> ClusterScores | None:
    if not context.round.infer or context.job.unsupervised.of_all:
        return None
    plan, wanted = context.plan, context.job.unsupervised
    rows = [vector.astype(np.float64) for vector in vectors]
    stack = np.stack(rows) if rows else np.zeros((0, plan.job.data.classes))
    return cluster_scores(stack, wanted.eval_type, wanted.cluster_client_num)
