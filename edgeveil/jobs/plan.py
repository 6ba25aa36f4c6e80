"""A job's plan: its rounds, their segments and prices, the same for every party."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import cached_property

import numpy as np

from edgeveil.data.schema import schema_metadata
from edgeveil.errors import ProtocolError, UsageError
from edgeveil.evaluation.cluster_sums import STEP_BITS, ClusterSums
from edgeveil.evaluation.record_counts import ScoreCounts, counts_of
from edgeveil.jobs import buffered_rounds
from edgeveil.jobs.federated_evaluation import (
    ABOUT,
    CENTROIDS,
    COUNTS,
    Counts,
    FederatedEvaluation,
    FleetQuestion,
    asking,
)
from edgeveil.jobs.job import Job
from edgeveil.parts.aggregation import AggregationRule, ChoosingParameters, build_rule
from edgeveil.parts.features import (
    NONE,
    Artifacts,
    FeatureMap,
    build_features,
    check_backbones,
    projection_of,
)
from edgeveil.parts.features.feature_map import COVARIANCE
from edgeveil.parts.method_context import MethodContext, staying
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import AdaptedNetwork, build_network
from edgeveil.parts.models.heads import (
    THRESHOLD,
    build_graph,
    no_threshold,
    regression_graph,
    residual_graph,
)
from edgeveil.parts.round import (
    ASK,
    CLUSTER,
    EVALUATE,
    EVALUATIONS,
    TRAIN,
    Array,
    CloudMethod,
    DeviceMethod,
    PlannedRound,
    SegmentSpec,
    Tensors,
    summed_spec,
)
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.correlation import Correlation
from edgeveil.privacy.events import Event, LaplaceEvent, UnprotectedEvent
from edgeveil.privacy.gaussian_mechanism import counts_event
from edgeveil.privacy.guarantee import up
from edgeveil.privacy.laplace_mechanism import (
    as_probabilities,
    largest_softmax,
    noised_mean,
    softmax_event,
    softmax_laplace,
)
from edgeveil.privacy.policy import JobRequest, Quote, told
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.protocol.messages import (
    SEAL_OVERHEAD_BYTES,
    CorrelatedNoise,
    Group,
    MaskedGroup,
    padded,
)
from edgeveil.selection import rounded_up
from edgeveil.statistics.blocks import vectors

SOFTMAX = "softmax"
_NO_EPSILON = 1.0  # placeholder in a job without noise, see `adds_noise`


MOST_SUMMED = 1 << 14  # uploads in one sum of a job that selects all devices


def summands(job: Job) -> int:
    asked = job.selection.devices
    if isinstance(asked, int):
        return rounded_up(asked, job.selection.over_select)
    return MOST_SUMMED


def honest_devices(job: Job, sets: int = 0) -> int:
    """Return how many devices share the noise of each of `sets` sums (0: the job's own)."""
    if job.privacy.noise == "local":
        return 0
    least = job.round.min_batch // (sets or job.aggregation.groups)
    return rounded_up(least, job.privacy.honest_share)


def correlation_of(job: Job) -> Correlation | None:
    """Return the facts of the job's correlated noise, None for other noise."""
    apart = job.privacy.min_separation
    if job.privacy.noise != "correlated" or apart is None:
        return None
    return Correlation.of_least_error(job.rounds, job.max_participations, apart)


def network_input(job: Job) -> tuple[int, ...]:
    """Return the input shape of the job's model: of a record, or of its public features."""
    if not job.features:
        return job.data.input_shape
    return (build_features(job.features).output_dim(job.data.input_shape),)


class Plan:
    """A job's rounds, made only by `compile_job`; computing needs `artifacts` by SHA-256 (hex)."""

    def __init__(self, job: Job, artifacts: Artifacts = NONE) -> None:
        self.job, self.artifacts = job, artifacts
        self.features: FeatureMap = build_features(job.features, artifacts)
        asked, network = job.selection.devices, None
        mean = job.aggregation
        if job.model is not None:
            shape, classes = network_input(job), job.data.classes
            network = build_network(job.model, shape, classes, artifacts)
        context = MethodContext(
            epsilon=job.privacy.epsilon or _NO_EPSILON,
            delta=job.privacy.delta,
            max_participations=job.max_participations,
            classes=job.data.classes,
            regression=job.data.target is not None,
            anomaly=job.anomaly,
            input_shape=job.data.input_shape,
            features=self.features,
            nominal_records=job.data.nominal_records,
            devices=asked if isinstance(asked, int) else 1,
            projection=projection_of(job.features),
            network=network,
            mapped=job.model is not None and bool(job.features),
            whole=job.proxy.shuffle == "whole",
            summed=summands(job) if job.aggregation.secure else 0,
            honest=honest_devices(job),
            correlation=correlation_of(job),
            local_share=job.privacy.local_share,
            local=() if network is None else staying(job.train, network),
            weighted=getattr(mean, "weights", "equal") == "records",
            fleet=job.selection.min_devices if isinstance(asked, int) else 0,
            server=getattr(mean, "server_optimizer", None),
            unit=job.privacy.unit,
        )
        stages = tuple(STAGES[entry.name].build(entry, context) for entry in job.update)
        self.context = replace(context, stages=stages)

    def with_artifacts(self, artifacts: Artifacts) -> Plan:
        return Plan(self.job, artifacts) if artifacts else self

    def graph(self) -> bytes:
        """Return the job's ONNX graph, weights as inputs. Raises DataError without a backbone."""
        context, data = self.context, self.job.data
        if context.network is not None:
            front = (self.features, data.input_shape) if context.mapped else None
            return context.network.graph(front)
        if context.anomaly:
            return residual_graph(self.features, data.input_shape)
        if data.target is not None:
            return regression_graph(self.features, data.input_shape, data.target, context.kept)
        bias = self.job.train.bias
        return build_graph(self.features, data.input_shape, data.classes, context.kept, bias=bias)

    @property
    def model_metadata(self) -> dict[str, str]:
        schema = self.job.data.schema_
        return {} if schema is None else schema_metadata(schema)

    @property
    def releases(self) -> bool:
        """Whether the job learns a model; raw records are only counted."""
        return not self.job.data.asks

    def check_backbones(self) -> None:
        """Raise DataError unless the job's backbones and frozen weights are present and valid."""
        check_backbones(self.job.features, self.artifacts)
        if isinstance(self.context.network, AdaptedNetwork):
            self.context.network.pretrained()

    def check_artifacts(self) -> None:
        """`check_backbones`, also for the model's initial weights."""
        self.check_backbones()
        network, model = self.context.network, self.job.model
        if network is not None and model is not None and model.state_dict is not None:
            network.pretrained()

    def graph_weights(self, trained: Tensors) -> Tensors:
        """Return the graph's weights from trained ones: adapters merged, default threshold."""
        network = self.context.network
        found = trained if network is None else network.merged(trained)
        return {**no_threshold(), **found} if self.context.anomaly else found

    def model_weights(self, state: Tensors) -> Tensors:
        """Return the graph's weights from the cloud's state, with its threshold if known."""
        known = {THRESHOLD: state[THRESHOLD]} if THRESHOLD in state else {}
        return {**self.graph_weights(self.cloud.model(state)), **known}

    @cached_property
    def cloud(self) -> CloudMethod:
        return METHODS[self.job.train.method].cloud(self.job.train, self.context)

    @cached_property
    def device(self) -> DeviceMethod:
        return METHODS[self.job.train.method].device(self.job.train, self.context)

    @cached_property
    def rule(self) -> AggregationRule:
        return build_rule(self.job.aggregation)

    @cached_property
    def planned(self) -> tuple[PlannedRound, ...]:
        every = self.job.infer_every
        return tuple(
            replace(one, infer=every > 0 and one.phase == TRAIN and one.number % every == 0)
            for one in self.cloud.plan()
        )

    @cached_property
    def all_rounds(self) -> tuple[PlannedRound, ...]:
        """The planned rounds and the requested evaluations."""
        last = max((e.number for e in self.planned), default=0)
        result: list[PlannedRound] = []
        for round in self.planned:
            result.append(replace(round, index=len(result) + 1))
            for phase in EVALUATIONS if round.phase == TRAIN else ():
                if self._evaluated(phase, round.number, last):
                    result.append(PlannedRound(len(result) + 1, phase, round.number))
        return tuple(result)

    def _evaluated(self, phase: str, number: int, last: int) -> bool:
        """Return whether the phase follows a training round; counts always follow the `last`."""
        every = self.job.cluster_every
        if phase == CLUSTER:
            return every > 0 and number % every == 0
        asked = self.job.statistics if phase == ASK else self.job.federated_evaluation
        if asked is None:
            return False
        return number == last or (asked.every_rounds > 0 and number % asked.every_rounds == 0)

    @property
    def of_method(self) -> tuple[PlannedRound, ...]:
        return tuple(round for round in self.all_rounds if not round.evaluates)

    def _released_in(self, phase: str) -> FederatedEvaluation | FleetQuestion:
        return self.question if phase == ASK else self.evaluation_of(phase)

    def evaluation_of(self, phase: str) -> FederatedEvaluation:
        """Return the evaluation of a phase. Raises PrivacyError, or UsageError if not requested."""
        return self.cluster_sums if phase == CLUSTER else self.evaluation

    @cached_property
    def question(self) -> FleetQuestion:
        """The statistics beside training. Raises PrivacyError, or UsageError if not requested."""
        job, asked = self.job, self.job.statistics
        if asked is None:
            raise UsageError("the job asks nothing", where="statistics")
        # Training that hides devices would hide none in an account with questions about records.
        trained = (event for one in self.planned for event in self.device.price(one))
        of_devices = any(one.unit == "device" and one.status == "proven" for one in trained)
        (vector,), unit = vectors(asked, 1), "device" if of_devices else self.context.unit
        squared, delta = vector.sensitivity_squared, job.privacy.delta
        how = max(1, self._times(ASK)), honest_devices(job, sets=1)
        bits = math.isqrt(squared).bit_length() - 1
        event = counts_event(
            "statistics", squared, vector.cells, asked.epsilon, delta, *how, bits, unit
        )
        facts = {"epsilon": asked.epsilon, "delta": delta, "unit": unit}
        nominal = job.data.nominal_records
        return FleetQuestion(vector, asking(event), nominal, facts, self.context.summed)

    @cached_property
    def evaluation(self) -> FederatedEvaluation:
        job, asked = self.job, self.job.federated_evaluation
        if asked is None:
            raise UsageError("the job has no evaluation", where="federated_evaluation")
        data, rate = job.data, 0.05 if asked.alarm_rate is None else asked.alarm_rate
        counts = ScoreCounts(rate) if job.anomaly else counts_of(data.classes, data.target)
        return self._evaluation(EVALUATE, counts, asked.epsilon)

    @cached_property
    def cluster_sums(self) -> FederatedEvaluation:
        epsilon, counts = self.job.unsupervised.epsilon, ClusterSums(self.job.data.classes)
        if epsilon is None or not self.job.cluster_every:
            raise UsageError("the job has no sums", where="unsupervised.upload")
        return self._evaluation(CLUSTER, counts, epsilon, STEP_BITS)

    def _evaluation(
        self, phase: str, counts: Counts, epsilon: float, fine_bits: int = 0
    ) -> FederatedEvaluation:
        size, delta = (counts.sensitivity_squared, counts.cells), self.job.privacy.delta
        honest, times = honest_devices(self.job, sets=1), max(1, self._times(phase))
        what = "cluster sums" if phase == CLUSTER else "evaluation counts"
        unit = self.context.unit
        event = counts_event(what, *size, epsilon, delta, times, honest, fine_bits, unit)
        nominal = self.job.data.nominal_records
        return FederatedEvaluation(counts, event, nominal, self.context.summed)

    def _times(self, phase: str) -> int:
        return sum(round.phase == phase for round in self.all_rounds)

    @property
    def rounds(self) -> int:
        return max((round.number for round in self.all_rounds), default=0)

    def round(self, index: int) -> PlannedRound:
        """Return the round with a number on the wire. Raises ProtocolError `unknown_round`."""
        if not 1 <= index <= len(self.all_rounds):
            raise ProtocolError("unknown_round")
        return self.all_rounds[index - 1]

    def recalled(self, round: PlannedRound) -> tuple[PlannedRound, ...]:
        """Return earlier rounds with answers that this one uses: with `ldp_pca` the covariance."""
        projection = self.context.projection
        if projection is None or projection.name != "ldp_pca" or round.evaluates:
            return ()
        return tuple(e for e in self.all_rounds[: round.index - 1] if e.phase == COVARIANCE)

    def segments(self, round: PlannedRound) -> tuple[SegmentSpec, ...]:
        if round.evaluates:
            return (self._released_in(round.phase).spec,)
        specs = self.cloud.segments(round)
        if round.infer:
            specs += (self._softmax_spec,)
        return specs

    @property
    def shows_counts(self) -> bool:
        """Whether a device's uploads tell its number of records."""
        return self.context.weighted or METHODS[self.job.train.method].counts

    @property
    def sums_inferences(self) -> bool:
        return self.job.aggregation.secure and self.job.unsupervised.of_all

    @cached_property
    def _softmax_spec(self) -> SegmentSpec:
        """The softmax segment. Raises PrivacyError if it is summed and no noise meets its ε."""
        if not self.sums_inferences:
            return SegmentSpec(SOFTMAX, self._softmax_shape, "float64")
        largest = largest_softmax(self.softmax_event())
        return summed_spec(SOFTMAX, self._softmax_shape, largest, summands(self.job))

    @property
    def sets(self) -> int:
        return self.job.aggregation.groups

    def package(self, state: Tensors, round: PlannedRound) -> dict[str, Array]:
        """Return the method's tensors for selected devices; for an evaluation centroids."""
        if round.phase == CLUSTER:
            return {CENTROIDS: self._centroids(state)}
        return {} if round.evaluates else self.cloud.package(state, round)

    def _centroids(self, state: Tensors) -> Array:
        known = state.get(CENTROIDS)
        return ClusterSums(self.job.data.classes).about if known is None else known

    def next_state(
        self, state: Tensors, round: PlannedRound, mean: Tensors, uploads: int
    ) -> dict[str, Array]:
        """Return the state after an aggregate; an evaluation updates threshold or centroids."""
        if round.phase == ASK:
            return dict(state)
        if not round.evaluates:
            after = self.cloud.absorb(state, round, mean, uploads)
            if self.job.cluster_every:
                after |= {name: state[name] for name in (CENTROIDS, ABOUT) if name in state}
            after.pop(THRESHOLD, None)
            return after
        after = {name: array for name, array in state.items() if name != THRESHOLD}
        counted = [np.rint(mean[COUNTS].astype(np.float64) * uploads)]
        if round.phase == CLUSTER:
            about = self._centroids(state)
            moved = self.cluster_sums.about({CENTROIDS: about}).next_centroids(counted, uploads)
            after |= {ABOUT: about, CENTROIDS: moved}
        elif self.job.anomaly:
            found = self.evaluation.figures(counted, uploads).get("threshold")
            after |= {} if found is None else {THRESHOLD: np.array([found], np.float32)}
        return after

    def groups(self, round: PlannedRound) -> tuple[Group, ...]:
        """Return names and public sizes of the segments, as in the manifest."""
        return tuple(Group(s.name, padded(s.byte_count)) for s in self.segments(round))

    def masked(self, round: PlannedRound) -> tuple[MaskedGroup, ...]:
        """Return the groups summed under masks, as in the manifest."""
        specs = enumerate(self.segments(round))
        return tuple(MaskedGroup(at, spec.count, spec.bits) for at, spec in specs if spec.bits)

    def correlated(self, round: PlannedRound) -> CorrelatedNoise | None:
        """Return the facts of the round's correlated noise, as in the manifest."""
        found = self.context.correlation
        if found is None or round.evaluates:
            return None
        return CorrelatedNoise(**asdict(found), number=round.number)

    @cached_property
    def upload_bytes(self) -> int:
        groups = [self.groups(round) for round in self.all_rounds]
        return max(sum(g.padded_bytes + SEAL_OVERHEAD_BYTES for g in of) for of in groups)

    # --- prices ---

    @cached_property
    def adds_noise(self) -> bool:
        """Whether training adds noise. Raises PrivacyError if the job's ε cannot be met."""
        events = (event for e in self.planned for event in self.device.price(e))
        return not all(isinstance(event, UnprotectedEvent) for event in events)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the job's ε and noise, to read before it runs."""
        quote, given = self.quote(), self.job.privacy.epsilon
        both = (("training", quote.training), ("inference", quote.inference))
        found = [f"{which}: {guarantee}" for which, guarantee in both if guarantee.notes]
        schema = self.job.data.schema_
        if schema is not None and schema.windows is not None:
            text = (
                f"a record is a window of {schema.windows.length} readings: to change one reading"
            )
            found.append(f"{text} exchanges a record, one removed and one added")
        if schema is not None and schema.person is not None and self.context.unit == "record":
            text = "data.person: no person is in two halves, but the noise hides a record alone; to"
            found.append(f"{text} hide persons set privacy.unit: person")
        if self.context.correlation is not None:
            text = (
                f"the last model has {self.context.correlation.gain:.3g} times less noise than with"
            )
            found.append(f"privacy.noise: correlated: {text} noise: shared at the same ε")
        if self.job.round.mode == "buffered" and self.adds_noise:
            text = "round.mode: buffered: a device also pays for an update that is more than"
            found.append(f"{text} {buffered_rounds.MAX_STALENESS} rounds late and dropped")
        if given is not None and not self.adds_noise:
            text = f"privacy.epsilon: {given:g} means nothing here, for training with method"
            found.append(f"{text} '{self.job.train.method}' adds no noise; leave it out")
        asked, least = self.job.selection.devices, self.job.round.min_batch
        uploads = asked if isinstance(asked, int) else least
        records = uploads * self.job.data.nominal_evaluation_records
        for phase in filter(self._times, (CLUSTER, EVALUATE)):
            noise = self.evaluation_of(phase).deviation(uploads)
            found.append(
                f"{phase} on devices, {self._times(phase)} times: in each count of {uploads:,}"
                f" devices noise of {noise:.3g} records, beside about {records:,} in all, so that"
                f" shares are accurate to about ± {noise / records:.2g}"
            )
        return tuple(found)

    @property
    def softmax_epsilon(self) -> float | None:
        """ε of one softmax upload; None without noise."""
        encrypt = self.job.encrypt
        if encrypt.privacy_eval_type == "NOT_ENCRYPT" or encrypt.laplace_eval is None:
            return None
        return encrypt.laplace_eval.laplace_eval_eps

    @property
    def epsilon_per_inference(self) -> float | None:
        """ε of one softmax upload; None without noise or if evaluations read these records too."""
        event = self.softmax_event()
        alone = self.job.federated_evaluation is None
        return float(event.epsilon) if alone and isinstance(event, LaplaceEvent) else None

    @property
    def softmax_samples(self) -> int | None:
        wanted = self.job.unsupervised
        return wanted.samples_per_device if wanted.upload == "per_sample" else None

    @property
    def _softmax_shape(self) -> tuple[int, ...]:
        classes, samples = self.job.data.classes, self.softmax_samples
        return (classes,) if samples is None else (samples, classes)

    def softmax_event(self) -> Event:
        event = softmax_event(
            self.job.data.classes,
            self.softmax_epsilon,
            sensitivity=self.job.encrypt.laplace_eval_sensitivity,
            samples=self.softmax_samples,
            nominal=self.job.data.nominal_evaluation_records,
        )
        return event if event.unit == "device" else replace(event, unit=self.context.unit)

    def noised_softmax(
        self, found: Array, random_bytes: RandomBytes = os_random
    ) -> tuple[Array, Event]:
        """Return a `summed_softmax` or rows with noise: integers if they are summed."""
        epsilon, sensitivity = self.softmax_epsilon, self.job.encrypt.laplace_eval_sensitivity
        if self.softmax_samples is not None:
            noised, _ = softmax_laplace(
                found, epsilon, sensitivity=sensitivity, random_bytes=random_bytes
            )
            return noised, self.softmax_event()
        nominal = self.job.data.nominal_evaluation_records
        steps, event = noised_mean(
            found, nominal, epsilon, sensitivity=sensitivity, random_bytes=random_bytes
        )
        return (steps if self.sums_inferences else as_probabilities(steps)), event

    def events(self, *, trains: bool = True, until: int | None = None) -> tuple[Event, ...]:
        """Return all events of one device at most, up to round `until` (None: the job)."""
        result: list[Event] = []
        for round in self.all_rounds[:until]:
            within = round.number <= self.job.max_participations
            if self.context.correlation is not None and round.phase == TRAIN:
                # The first answer moves the noise of all rounds after it: all are paid with it.
                within = round.number == 1
                further = self.job.max_participations - 1
                result += self.device.price(round) * further if trains and within else ()
            result += self.price(round, trains=trains and within)
        return tuple(result)

    def price(self, round: PlannedRound, *, trains: bool) -> tuple[Event, ...]:
        """Return the events of one device's answer, the softmax upload last."""
        if round.evaluates:
            return (self._released_in(round.phase).event,)
        training = self.device.price(round) if trains else ()
        return (*training, self.softmax_event()) if round.infer else training

    @property
    def aggregation_note(self) -> str:
        """The price of a rule that draws uploads, as papers claim it, or ""."""
        rule = self.job.aggregation
        if not isinstance(rule, ChoosingParameters) or rule.sampling != "exponential":
            return ""
        events = (event for round in self.planned for event in self.device.price(round))
        cost = "it protects no record, and the uploads have no proven guarantee either"
        if all(event.status == "proven" for event in events):
            cost = "the uploads are noised, so to the records it costs nothing"
        text = f"aggregation '{rule.name}' draws at ε₃ = {up(rule.epsilon_3)} a round,"
        text += f" {up(rule.epsilon_3 * self.rounds)} in all, as papers claim it, unproven;"
        return f"{text} {cost}"

    def request(self, job_id: str, *, trains: bool = True) -> JobRequest:
        return JobRequest(job_id, self.job.privacy.delta, self.events(trains=trains))

    def quote(self, until: int | None = None) -> Quote:
        """Return the planned price up to round `until` (None: all); early ends: see `spent`."""
        return told(self.events(until=until), self.job.privacy.delta)

    def spent(self, until: int | None = None) -> Quote:
        """Return the guarantees of a job that stopped after round `until` (None: the last)."""
        request = self.request("")
        return told(request.counted(self.events(until=until)), request.delta)
