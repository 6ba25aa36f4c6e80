"""The blocks of a job file, and the canonical bytes that every party verifies."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError, PydanticKnownError

from edgeveil.config.base import DEPENDS_ON_ANOTHER, Block, Mix, Seconds
from edgeveil.config.policy import FUNCTION
from edgeveil.data.schema import ColumnName, DataSchema
from edgeveil.data.target import TargetRange
from edgeveil.errors import ProtocolError
from edgeveil.evaluation.figures import ACCURACY, AUC, RMSE
from edgeveil.parts.aggregation import AGGREGATIONS, RuleParameters
from edgeveil.parts.aggregation.rule import AveragingParameters
from edgeveil.parts.features import FEATURES, FeatureParameters
from edgeveil.parts.methods import METHODS, MethodParameters
from edgeveil.parts.models import MODELS, ModelParameters, python_function
from edgeveil.parts.part import OneOf, PartTable, omittable
from edgeveil.parts.round import ASK, TRAIN
from edgeveil.parts.stages import STAGES, StageParameters
from edgeveil.plugins import PluginRefusedError, watch
from edgeveil.privacy.events import Unit
from edgeveil.statistics.questions import Questions

CANONICAL_BYTES = 1 << 16
LEAST_BUDGET_S = 0.35  # for wake-up, keys and the disk of a small box
_UNKNOWN = "not a job of this version"
_FORM = ("header", "person", "missing")  # of a schema, whatever is read by it
_SETTLED: dict[str, dict[str, Any]] = {  # as `BlockPart.settled`
    "privacy": {"stop": None},
    "unsupervised": {"labels": "argmax", "silhouette": "sklearn"},
    "release": {"max_failed_share": 0.0},
}

# A field accepts the block of any part in its table.
TrainBlock = Annotated[MethodParameters, OneOf(METHODS)]
FeatureBlock = Annotated[FeatureParameters, OneOf(FEATURES)]
ModelBlock = Annotated[ModelParameters, OneOf(MODELS)]
StageBlock = Annotated[StageParameters, OneOf(STAGES)]
AggregationBlock = Annotated[RuleParameters, OneOf(AGGREGATIONS)]


Priority = Literal["low", "normal", "high"]

_SCHEMA_EXAMPLE = {
    "origin": "public",
    "label": {"column": "income", "classes": ["<=50K", ">50K"]},
    "columns": [{"name": "age", "number": [17, 90]}],
}


def _of_schema(value: Any, info: ValidationInfo) -> Any:
    if value is None:
        schema = info.data.get("schema_", DEPENDS_ON_ANOTHER)
        if schema == DEPENDS_ON_ANOTHER:
            raise PydanticCustomError(DEPENDS_ON_ANOTHER, "the schema is faulty")
        if schema is None:
            raise PydanticKnownError("missing")
        value = getattr(schema, str(info.field_name))
    return tuple(value) if isinstance(value, list) else value


OfSchema = BeforeValidator(_of_schema)


def _unset() -> Any:
    return None


class JobData(Block):
    """The devices' records. All of it is public."""

    model_config = ConfigDict(serialize_by_alias=True)

    source: str = Field(min_length=1, max_length=64, examples=["digits"])
    """The job is for devices with this `data.name`."""
    schema_: DataSchema | None = omittable(None, alias="schema", examples=[_SCHEMA_EXAMPLE])
    """How devices encode their records, and the classes' names; null: records are numbers."""
    person: ColumnName | None = omittable(None, examples=["patient"])
    """Column of a table that names each record's person. Persons are not learned from; all records
    of one are held back, dealt and split together. Records without one belong to one person."""
    classes: Annotated[int, OfSchema] = Field(default_factory=_unset, ge=2, le=10000, examples=[10])
    """Number of classes, labels 0 to classes − 1; others are dropped. Default: the schema's."""
    input_shape: Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...], OfSchema] = Field(
        default_factory=_unset, min_length=1, max_length=4, examples=[[64]]
    )
    """Shape of one record, without the batch axis. Default: the schema's."""
    nominal_records: int = Field(ge=1, le=10**9, examples=[64])
    """Public divisor of a device's sums: about its number of records, equal for all devices; with
    `privacy.unit: person` of persons."""
    evaluation_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of a device's records reserved for evaluation, split once."""

    @model_validator(mode="after")
    def _read_persons(self) -> Self:
        """Let the schema, by which records are read, name the column of persons."""
        if self.person is not None and self.schema_ is not None:
            object.__setattr__(
                self, "schema_", self.schema_.model_copy(update={"person": self.person})
            )
        return self

    @property
    def asks(self) -> bool:
        """Whether records are asked, all of them raw, and not learned from."""
        return self.schema_ is not None and self.schema_.raw

    @property
    def nominal_evaluation_records(self) -> int:
        """Nominal evaluation records of a device: public, at least one."""
        return max(1, math.ceil(self.evaluation_share * self.nominal_records))

    @property
    def target(self) -> TargetRange | None:
        """The range of a numeric label; None for classes."""
        return None if self.schema_ is None else self.schema_.target


class Privacy(Block):
    """The training guarantee of the whole job, per `unit`; for some methods always per device."""

    epsilon: float | None = Field(default=None, gt=0, examples=[8])
    """ε of the whole training, required if it adds noise; null: no noise."""
    delta: float = Field(default=1e-5, gt=0, lt=1, examples=[1e-5])
    """δ of the whole training; must stay below 1 / data.nominal_records."""
    unit: Unit = omittable("record")
    """What the noise hides: a `record`, all records of a `person` on the device (`data.person`), or
    of the `device`. What one unit adds to a sum is bounded as a whole."""
    max_participations: int | None = Field(default=None, ge=1)
    """Training rounds one device may answer; the noise is calibrated to it. null: all rounds."""
    noise: Literal["local", "shared", "correlated"] = omittable("local")
    """`local`: each device adds all noise. `shared`: each a part, in sums; two ε are printed.
    `correlated`: shared, and each round takes back a share of the noise of the round before."""
    honest_share: float = omittable(0.8, gt=0, le=1)
    """Assumed honest share of each sum's uploads, for shared noise. With fewer, ε does not hold;
    with correlated noise not if any round has fewer."""
    min_separation: int | None = omittable(None, ge=1, le=10**6, examples=[30])
    """b, of correlated noise: training rounds from one answer of a device to its next, at least;
    at most the fleet's size divided by `selection.devices`."""
    local_share: float = omittable(0.0, ge=0, le=1)
    """Of correlated noise: variance that stays in an upload, as a share of what is taken back. With
    0, updates are not protected if cloud and proxy collude."""
    accept_unproven: bool = False
    """Accept parts without a proven guarantee; reports then print no ε."""


class Selection(Block):
    """Which devices take part in a round."""

    devices: Annotated[int, Field(ge=1, le=10**6)] | Literal["all"] = "all"
    """Devices of each round, drawn uniformly; `all`: all enrolled devices."""
    over_select: float = Field(default=1.0, ge=1, le=3)
    """Ratio of selected to required devices, to compensate for absent ones."""
    min_devices: int = Field(default=1, ge=1, le=10**6)
    """Enrolled devices needed before the first round."""


class Round(Block):
    """When a round closes, and the handling of late uploads."""

    mode: Literal["sync", "buffered"] = omittable("sync")
    """`sync`: uploads count only in their round. `buffered` (FedBuff): late ones in a later one."""
    buffer: int | None = omittable(None, ge=1, le=10**6)
    """Uploads that close a buffered round at once; null: the quorum's share of the selected."""
    deadline_s: Seconds = 30.0
    """Most seconds from the broadcast to the close of the round."""
    budget_s: Seconds | None = Field(default=None, examples=[0.5])
    """Public seconds after which every answer is sent; unfinished work counts as no records. null:
    what each device's trial on made-up records needs, at most a tenth of deadline_s, and 60."""
    quorum: float = Field(default=0.8, gt=0, le=1)
    """Share of the required devices whose uploads close the round early."""
    grace_s: float = Field(default=2.0, ge=0, le=3600)
    """Seconds for late uploads after the quorum; not for buffered rounds."""
    min_batch: int = Field(default=5, ge=1, le=10**6)
    """Fewest uploads in one shuffled batch."""
    retries: int = Field(default=2, ge=0, le=100)
    """Further attempts at a round that closed with too few uploads."""

    @property
    def time_budget_s(self) -> float:
        """The longest time budget of a device."""
        return min(self.deadline_s / 10, 60.0) if self.budget_s is None else self.budget_s

    def device_budget_s(self, needed_s: float) -> float:
        """Return the first step of a doubling scale with room for `needed_s` (0: unknown).

        It is public: `needed_s` must depend on no record.
        """
        if self.budget_s is not None or not needed_s:
            return self.time_budget_s
        steps = max(0, math.ceil(math.log2(needed_s / LEAST_BUDGET_S)))
        return min(self.time_budget_s, LEAST_BUDGET_S * 2.0**steps)


class Proxy(Block):
    """The proxy's handling of a round's uploads."""

    shuffle: Literal["split", "whole", "none"] = "split"
    """`split`: each layer's segments are permuted separately. `whole`: a device's update stays
    together. `none`: order of arrival, so the cloud may track a device; owners must allow it."""


class ReleaseRollout(Block):
    """How the final model reaches the devices."""

    canary_share: float = Field(default=1.0, gt=0, le=1, examples=[0.1])
    """Share of the enrolled devices that get it first, drawn uniformly; 1: all at once."""
    canary_floor: int = Field(default=5, ge=2, le=10**6)
    """Fewest devices of a canary, and fewest reports of theirs before the full rollout."""
    soak_s: Seconds = 3600.0
    """Seconds from a healthy canary to the full rollout; reports count in the first half."""


class LaplaceEval(Block):
    """The Laplace mechanism on inference uploads."""

    laplace_eval_eps: float = Field(gt=0, examples=[20])
    """ε per evaluation round, for one device's whole upload; adds up over the rounds."""


class Encrypt(Block):
    """How inference uploads are protected."""

    privacy_eval_type: Literal["LAPLACE", "NOT_ENCRYPT"] = "LAPLACE"
    """`LAPLACE`: noise on the device. `NOT_ENCRYPT`: none, so no guarantee."""
    laplace_eval: LaplaceEval | None = None
    """The budget of `LAPLACE`; required if devices upload inferences."""
    laplace_eval_sensitivity: Literal[2, 1] = 2
    """L1 sensitivity assumed by the noise: 2 is proven; with 1 the printed guarantee is 2ε."""


class Unsupervised(Block):
    """Evaluation without labels: clusters of the devices' softmax uploads, or their mean."""

    every_rounds: int = Field(default=5, ge=0, le=10**6)
    """Interval of evaluations in training rounds; 0: never."""
    upload: Literal["mean", "per_sample", "sums"] = "mean"
    """`mean`: one vector per device. `per_sample`: one per record. `sums`: noised sums by
    centroid."""
    epsilon: float | None = omittable(None, gt=0, examples=[1])
    """ε of all `sums` of one device's evaluation records, with `privacy.delta`."""
    samples_per_device: int = Field(default=16, ge=1, le=4096)
    """Vectors in one device's `per_sample` upload; public, equal for all devices."""
    cluster_client_num: int = Field(default=1000, ge=1, le=10**6)
    """Most uploads clustered in one round."""
    eval_type: Literal[
        "SILHOUETTE_SCORE",
        "CALINSKI_HARABASZ_SCORE",
        "DAVIES_BOULDIN_SCORE",
        "MEAN_SOFTMAX",
        "NOT_EVAL",
    ] = "SILHOUETTE_SCORE"
    """The score. `MEAN_SOFTMAX`: the uploads' mean, as a secure sum. `NOT_EVAL`: no uploads."""

    @property
    def of_all(self) -> bool:
        """Whether only the mean over all devices is needed, no device's own upload."""
        return self.eval_type == "MEAN_SOFTMAX"


class FederatedEvaluationBlock(Block):
    """Evaluation with labels: noised counts of the model's results on devices' own records."""

    epsilon: float = Field(gt=0, examples=[1])
    """ε of all evaluations of one device's evaluation records, with `privacy.delta`."""
    every_rounds: int = Field(default=0, ge=0, le=10**6)
    """Interval of evaluations in training rounds; 0: only after the last one."""
    alarm_rate: float | None = omittable(None, ge=1e-4, le=0.5, examples=[0.05])
    """For anomalies: share of normal records that may be flagged; null: 0.05."""


class StatisticsBlock(Questions):
    """Questions to all records of the devices, beside training."""

    epsilon: float = Field(gt=0, examples=[1])
    """ε of all answers of one device to these questions, with `privacy.delta`."""
    every_rounds: int = Field(default=0, ge=0, le=10**6)
    """Interval of the question in training rounds; 0: only after the last one."""

    def _mixes(self) -> Iterable[Mix]:
        return (Mix((f"statistics.{key}",), text) for key, text in self.faults())


class EarlyStopping(Block):
    """When a job ends before its last round, and which round's model is released.

    Judged by federated evaluation if the job has one, otherwise by the cloud's test; both cost
    nothing further. Devices only see that the job completed."""

    patience: int | None = Field(default=None, ge=1, le=10_000, examples=[5])
    """Figures in a row that are no better than the best, after which the job ends; null: it plays
    all rounds."""
    min_delta: float = Field(default=0.0, ge=0, le=1e6)
    """Difference from the best figure that counts as better."""
    release: Literal["best", "last"] = "best"
    """The round whose model is released: that of the best figure, or the last one."""
    mode: Literal["max", "min"] | None = omittable(None, examples=["max"])
    """Judge by `test_metric`, whose largest or smallest value is best; null: not by it."""


class Job(Block):
    """One learning job; `compile_job` checks combinations of keys and makes its `Plan`."""

    # Built at the first job: by then a device's process knows its owner's policy.
    model_config = ConfigDict(defer_build=True)

    job: str = Field(pattern=r"^[a-z0-9_-]{1,64}$", examples=["quickstart"])
    """The job's name."""
    data: JobData
    """The devices' records."""
    features: tuple[FeatureBlock, ...] = Field(
        default=(), max_length=8, examples=[[{"name": "identity"}]]
    )
    """Public feature maps, concatenated; a PCA may follow as the last entry."""
    model: ModelBlock | None = Field(default=None, examples=[{"name": "mlp"}])
    """Model trained whole by methods such as `sgd`; null for methods that learn on features."""
    train: TrainBlock = Field(examples=[{"method": "fm"}])
    """The training method and its parameters."""
    update: tuple[StageBlock, ...] = Field(
        default=(), max_length=8, examples=[[{"name": "upload_top_k", "share": 0.1}]]
    )
    """Stages of an update on the device, in this order, before encryption."""
    privacy: Privacy = Privacy()
    """The training guarantee."""
    selection: Selection = Selection()
    """Which devices take part in a round."""
    round: Round = Round()
    """When a round closes."""
    proxy: Proxy = Proxy()
    """The proxy's handling of uploads."""
    aggregation: AggregationBlock = Field(
        default=AveragingParameters(), examples=[{"name": "fedavg"}]
    )
    """How a round's uploads are aggregated."""
    encrypt: Encrypt = Encrypt()
    """How inference uploads are protected."""
    unsupervised: Unsupervised = Unsupervised(every_rounds=0)
    """Evaluation on the devices; default: none."""
    federated_evaluation: FederatedEvaluationBlock | None = omittable(
        None, examples=[{"epsilon": 1}]
    )
    """Figures on the devices' own evaluation records, noised; null: only the cloud's test."""
    statistics: StatisticsBlock | None = omittable(
        None, examples=[{"epsilon": 1, "columns": [{"name": "age", "number": [0, 100]}]}]
    )
    """Statistics of all records beside training, noised; in place of `train`: a job that asks."""
    test_metric: str | None = omittable(
        None, pattern=FUNCTION, max_length=256, examples=["mypackage.metrics:macro_recall"]
    )
    """`module:function` of (labels (n,), probabilities (n, classes)) to a number, run by the cloud
    on its test records (`cloud.allow_python_models`), not by devices; null: none. Without classes
    of (labels (n,), values or scores (n,))."""
    early_stopping: EarlyStopping | None = omittable(None, examples=[{"patience": 5}])
    """End early, and release the best round's model; null: all rounds, and the last one's."""
    release: ReleaseRollout = omittable(ReleaseRollout())
    """Rollout of the final model."""
    priority: Priority = Field(default="normal", exclude=True)
    """Priority in the cloud's queue; not sent to devices."""

    @model_validator(mode="after")
    def _scaled_by_schema(self) -> Self:
        """Derive an `input_scale` that is not given from the schema."""
        schema, train = self.data.schema_, self.train
        if schema is not None:
            features = tuple(_scaled(entry, schema.largest) for entry in self.features)
            self._fill_in(features=features, model=_scaled(self.model, schema.largest))
        if self.data.target is not None:  # a regression head always has an intercept
            self._fill_in(train=train.model_copy(update=dict(train.left_out)))
        return self

    def _fill_in(self, **values: Any) -> None:
        """Set values without marking them as given."""
        given = self.model_fields_set
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "__pydantic_fields_set__", given)

    @property
    def rounds(self) -> int:
        return self.train.rounds

    @property
    def asked_schema(self) -> DataSchema | None:
        """The raw form in which the records are read for statistics; None if nothing is asked."""
        if self.statistics is None:
            return self.data.schema_ if self.data.asks else None
        given = self.data.schema_
        form = {} if given is None else {key: getattr(given, key) for key in _FORM}
        return self.statistics.records_schema.model_copy(update=form)

    def reading(self, phase: str) -> tuple[float, DataSchema | None]:
        """Return how a phase's records are read: the evaluation share, and the schema."""
        if phase == ASK:
            return 0.0, self.asked_schema
        return self.data.evaluation_share, self.data.schema_

    def record_shape(self, phase: str) -> tuple[int, ...]:
        """Return the shape of a record in a phase."""
        asked = self.asked_schema if phase == ASK else None
        return self.data.input_shape if asked is None else asked.input_shape

    @property
    def phases_read(self) -> tuple[str, ...]:
        """A phase of each form in which records are read."""
        return (TRAIN,) if self.statistics is None else (TRAIN, ASK)

    @property
    def anomaly(self) -> bool:
        """Whether the job learns normal records, to detect anomalies."""
        model = self.model
        return METHODS[self.train.method].anomaly or (
            model is not None and MODELS[model.name].anomaly
        )

    @property
    def measure(self) -> str:
        if self.anomaly:
            return AUC
        return ACCURACY if self.data.target is None else RMSE

    @property
    def learns(self) -> str:
        kinds = {RMSE: "the label is a number", AUC: "the job learns normal records"}
        return kinds.get(self.measure, "the job learns classes")

    @property
    def max_participations(self) -> int:
        """Training rounds one device may answer; default: all, or all that are far enough apart."""
        apart = self.privacy.min_separation or 1
        return min(self.privacy.max_participations or self.rounds, -(-self.rounds // apart))

    @property
    def infer_every(self) -> int:
        """Interval of training rounds with inference uploads; 0: never."""
        return 0 if self.unsupervised.upload == "sums" else self._unsupervised_every

    @property
    def cluster_every(self) -> int:
        """Interval of training rounds followed by cluster sums; 0: never."""
        return self._unsupervised_every if self.unsupervised.upload == "sums" else 0

    @property
    def _unsupervised_every(self) -> int:
        unsupervised = self.unsupervised
        return 0 if unsupervised.eval_type == "NOT_EVAL" else unsupervised.every_rounds

    def canonical(self) -> bytes:
        """Return JSON with sorted keys and all defaults, except those of keys added later."""
        plain = self.model_dump(mode="json", include=set(Job.model_fields))
        for key, value in self.train.left_out.items():
            if plain["train"][key] == value:
                del plain["train"][key]
        for _, block, keys in settled(plain):
            block |= keys
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return text.encode("ascii")

    @property
    def part_names(self) -> tuple[tuple[str, str], ...]:
        """(family, name) of every part that the job names."""
        return (
            ("methods", self.train.method),
            ("aggregation", self.aggregation.name),
            *(("features", entry.name) for entry in self.features),
            *(("stages", entry.name) for entry in self.update),
            *(("models", model.name) for model in (self.model,) if model is not None),
        )

    @property
    def functions(self) -> tuple[str, ...]:
        """Installed functions, `module:function`, that the job runs with owners' permission."""
        model = python_function(self.model)
        return self.train.functions if model is None else (model, *self.train.functions)

    def digest(self) -> bytes:
        return hashlib.sha256(self.canonical()).digest()

    @classmethod
    def from_canonical(cls, raw: bytes) -> Job:
        """Parse canonical bytes. Raises ProtocolError("bad_job") for any other spelling."""
        if len(raw) > CANONICAL_BYTES:
            raise ProtocolError("bad_job", f"a job of more than {CANONICAL_BYTES} bytes")
        try:
            plain = json.loads(raw)
            for _, block, keys in settled(plain if isinstance(plain, dict) else {}):
                for key in [key for key, value in keys.items() if block.get(key, ...) == value]:
                    del block[key]
            job = cls.model_validate_json(json.dumps(plain), strict=True)
            train, given = job.train, job.train.model_fields_set
            absent = {key: value for key, value in train.left_out.items() if key not in given}
            job._fill_in(train=train.model_copy(update=absent))
            same = job.canonical() == raw
        except ValidationError as error:
            raise ProtocolError("bad_job", _unknown(error)) from None
        except (ValueError, RecursionError):
            raise ProtocolError("bad_job", _UNKNOWN) from None
        if not same:
            raise ProtocolError("bad_job", "not in canonical form")
        return job


def settled(
    job: dict[str, Any],
) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any], Mapping[str, Any]]]:
    """Yield path, block and former keys of each block that has some: see `BlockPart.settled`."""
    tables: dict[str, PartTable[Any]] = {"train": METHODS, "model": MODELS, "features": FEATURES}
    tables |= {"update": STAGES, "aggregation": AGGREGATIONS}
    for key, given in job.items():
        each = given if isinstance(given, list) else [given]
        for at, block in enumerate(each):
            if not isinstance(block, dict):
                continue
            name = block.get(tables[key].kind.tag) if key in tables else None
            part = tables[key].get(name) if isinstance(name, str) else None
            keys = _SETTLED.get(key) if part is None else part.settled
            if keys:
                yield ((key, at) if isinstance(given, list) else (key,)), block, keys


def _scaled(block: Any, scale: float) -> Any:
    if not hasattr(block, "input_scale") or "input_scale" in block.model_fields_set:
        return block
    if getattr(block, "ranges", ()):  # which replace it
        return block
    return block.model_copy(update={"input_scale": scale})


def _unknown(error: ValidationError) -> str:
    for detail in error.errors(include_url=False, include_input=False):
        context = detail.get("ctx", {})
        if isinstance(context.get("error"), PluginRefusedError):
            return str(context["error"])
        if detail["type"] == "union_tag_invalid":
            key = ".".join(map(str, detail["loc"]))
            tag = ascii(str(context.get("tag"))[:64])
            return f"{_UNKNOWN}: {key} names {tag}, which no plug-in installed here provides"
    return _UNKNOWN


def _rebuild() -> None:
    """Rebuild the job models after a change of the available plug-ins."""
    kinds: list[type[Job]] = [Job, *Job.__subclasses__()]
    for job in kinds:
        if job.__pydantic_complete__:
            job.model_rebuild(force=True)


watch(_rebuild)
