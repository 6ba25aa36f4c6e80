"""How good a round's model is, as far as the cloud can tell."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeveil.data.records import Records
from edgeveil.data.schema import DataSchema
from edgeveil.data.target import TargetRange
from edgeveil.errors import DataError, JobFailed
from edgeveil.evaluation.accuracy import HeldOutTest, ModelScore
from edgeveil.evaluation.cluster_sums import HIDDEN
from edgeveil.evaluation.clustering import MEAN, ClusterScores, Noise, cluster_scores
from edgeveil.jobs.federated_evaluation import ABOUT, CENTROIDS
from edgeveil.jobs.plan import SOFTMAX, Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.aggregation.rule import Score
from edgeveil.parts.exchange import CLUSTER, EVALUATE, Array
from edgeveil.parts.methods.fm_sums import own_weights
from edgeveil.parts.models.residual_score import THRESHOLD
from edgeveil.privacy.events import LaplaceEvent
from edgeveil.privacy.laplace_mechanism import SOFTMAX_BITS, noise_law

LOG = logging.getLogger("edgeveil.cloud")
_TESTS_KEPT = 8  # of jobs that run beside each other


class Evaluation:
    """Tests models on the cloud's own records, where it has some.

    A rule that scores uploads has the first of them, and the models are tested on the others. What
    a job's schema makes of the records is read by `by_schema`, once for each schema.
    """

    def __init__(
        self,
        test: Records | None,
        by_schema: Callable[[DataSchema], Records] | None = None,
    ) -> None:
        self._test = test if test is not None and len(test) else None
        self._read = by_schema
        self._by_schema: dict[DataSchema, Records | None] = {}
        self._held: dict[
            tuple[bytes, int | None, int | None], HeldOutTest
        ] = {}  # by graph and records
        self._said = False

    def check(self, plan: Plan) -> None:
        """Raise JobFailed where the job's rule has no records to score uploads on."""
        asked, test = plan.rule.validation_records, self._fitting(plan)
        there = 0 if test is None else len(test)
        if asked >= there and asked:
            raise JobFailed(
                f"scores uploads on {asked} of the cloud's own records and tests models on others,"
                f" but there are {there}",
                where="aggregation.validation_records",
                fix="name more records of the job's form as cloud.test_data, or ask for fewer",
            )

    def score(
        self, context: RoundContext, graph: bytes, state: Mapping[str, Array]
    ) -> Score | None:
        """How an upload is scored; None where the job's rule does not ask for it."""
        plan = context.plan
        asked, test = plan.rule.validation_records, self._fitting(plan)
        if not asked or test is None:
            return None
        held = self._on(test, graph, slice(asked))

        def right(segments: Mapping[str, Array]) -> int:
            after = plan.cloud.absorb(state, context.exchange, segments, 1)
            return held.right(self.weights(plan, after))

        return right

    def weights(self, plan: Plan, state: Mapping[str, Array]) -> dict[str, Array]:
        """The graph's weights; what each holder of records computes itself is of the test's."""
        return {**plan.model_weights(state), **own_weights(plan.setting, self._fitting(plan))}

    def tested(
        self, context: RoundContext, graph: bytes, state: Mapping[str, Array]
    ) -> ModelScore | None:
        """How the model after a training round does on the test records.

        None without test records, or where the job is about records of another form.
        """
        plan = context.plan
        test = self._fitting(plan)
        if test is None or context.exchange.number == 0:
            return None
        part = slice(plan.rule.validation_records, None)
        held = self._on(test, graph, part, plan.job.data.target)
        return held.tested(self.weights(plan, state), alarms=THRESHOLD in state)

    def _on(
        self, test: Records, graph: bytes, part: slice, target: TargetRange | None = None
    ) -> HeldOutTest:
        key = graph, part.start, part.stop
        if key not in self._held and len(self._held) >= _TESTS_KEPT:
            self._held.clear()
        if key not in self._held:
            self._held[key] = HeldOutTest(graph, test.x[part], test.y[part], target)
        return self._held[key]

    def _fitting(self, plan: Plan) -> Records | None:
        """The cloud's records, if the job is about records of their form."""
        schema = plan.job.data.schema_
        if schema is not None and self._read is not None:
            return self._of_schema(schema, self._read)
        if self._test is None or self._test.x.shape[1:] == tuple(plan.job.data.input_shape):
            return self._test
        if not self._said:
            self._said = True
            LOG.warning("test_data_does_not_fit", extra={"wanted": plan.job.data.input_shape})
        return None

    def _of_schema(
        self, schema: DataSchema, read: Callable[[DataSchema], Records]
    ) -> Records | None:
        if schema not in self._by_schema:
            if len(self._by_schema) >= _TESTS_KEPT:
                self._by_schema.clear()
            try:
                found = read(schema)
            except DataError as error:
                LOG.warning("test_data_does_not_fit", extra={"reason": str(error)})
                self._by_schema[schema] = None
            else:
                self._by_schema[schema] = found if len(found) else None
        return self._by_schema[schema]


@dataclass(frozen=True)
class MeanSoftmax:
    """The mean (classes,) of the inferences of so many devices, and the standard deviation of what
    their noise adds to each entry; 0 without noise."""

    mean: tuple[float, ...]
    uploads: int
    noise_deviation: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON; beside scores of clusters, told by its `eval_type`."""
        return {"eval_type": MEAN, **self.__dict__, "mean": list(self.mean)}


def mean_softmax(context: RoundContext, found: list[Array], uploads: int) -> MeanSoftmax | None:
    """The mean of one exchange's inferences: of `found` ones, or of the sums in `found` that
    `uploads` devices' were dealt into. None where it is not asked for, or none came."""
    if not context.exchange.infer or not context.job.unsupervised.of_all or not found:
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
    """The figures on the devices' own evaluation records, of the counts of `uploads` devices, one
    by one or summed; None in an exchange that asks for none, and where none count."""
    if context.exchange.phase != EVALUATE or not found:
        return None
    figures = context.plan.evaluation.figures(found, uploads)
    return {"eval_type": FEDERATED, "round": context.exchange.number, **figures}


def cluster_figures(
    context: RoundContext, state: Mapping[str, Array], found: Sequence[Array], uploads: int
) -> dict[str, Any] | None:
    """Cluster scores from the sums of `uploads` devices, one by one or summed, in the `state` after
    them, led by the one that the job names; None in an exchange that asks for none, and where none
    count."""
    if context.exchange.phase != CLUSTER or not found:
        return None
    asked, wanted = context.plan.cluster_sums, context.job.unsupervised.eval_type
    told = asked.about({CENTROIDS: state[ABOUT]}).figures(found, uploads)
    leading = wanted.removesuffix("_SCORE").lower()
    return {
        "eval_type": wanted,
        "upload": "sums",
        "score": told[leading],
        "score_deviation": told[f"{leading}_deviation"],
        "reason": HIDDEN if told[leading] is None else "",
        **told,
    }


def told_federated(scores: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What a stored exchange has of `federated_figures`, if it has that."""
    return scores if scores and scores.get("eval_type") == FEDERATED else None


def clusters(context: RoundContext, vectors: list[Array]) -> ClusterScores | None:
    """Scores of the inferences uploaded in one exchange; None where none were asked for."""
    if not context.exchange.infer or context.job.unsupervised.of_all:
        return None
    plan, wanted = context.plan, context.job.unsupervised
    rows = [vector.astype(np.float64) for vector in vectors]
    stack = np.stack(rows) if rows else np.zeros((0, plan.job.data.classes))
    event = plan.softmax_event()
    noise = Noise(*noise_law(event)) if isinstance(event, LaplaceEvent) else None
    return cluster_scores(stack, wanted, noise)
