"""The blocks of a job file, and the canonical bytes that every party checks. `compile` refuses
impossible combinations."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
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

from edgeveil.config.base import RESTS_ON_ANOTHER, Block, Seconds
from edgeveil.data.schema import DataSchema
from edgeveil.data.target import TargetRange
from edgeveil.errors import ProtocolError
from edgeveil.evaluation.figures import ACCURACY, AUC, RMSE
from edgeveil.parts.aggregation import AGGREGATIONS, RuleParameters
from edgeveil.parts.aggregation.rule import AveragingParameters
from edgeveil.parts.features import FEATURES, FeatureParameters
from edgeveil.parts.methods import METHODS, MethodParameters
from edgeveil.parts.models import MODELS, ModelParameters
from edgeveil.parts.part import OneOf, PartTable, says_nothing
from edgeveil.parts.stages import STAGES, StageParameters
from edgeveil.plugins import PluginRefusedError, watch

CANONICAL_BYTES = 1 << 16
_UNKNOWN = "not a job that this version knows"
_SETTLED: dict[str, dict[str, Any]] = {  # as `BlockPart.settled`
    "privacy": {"stop": None},
    "unsupervised": {"labels": "argmax", "silhouette": "sklearn"},
    "release": {"max_failed_share": 0.0},
}

# A field takes the block of any part that its table holds.
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
    """What is not given follows from the schema, and is missed where there is none."""
    if value is None:
        schema = info.data.get("schema_", RESTS_ON_ANOTHER)
        if schema == RESTS_ON_ANOTHER:
            raise PydanticCustomError(RESTS_ON_ANOTHER, "the schema is faulty")
        if schema is None:
            raise PydanticKnownError("missing")
        value = getattr(schema, str(info.field_name))
    return tuple(value) if isinstance(value, list) else value


OfSchema = BeforeValidator(_of_schema)


def _unset() -> Any:
    return None


class JobData(Block):
    """What the devices' records look like. All of it is public."""

    model_config = ConfigDict(serialize_by_alias=True)

    source: str = Field(min_length=1, max_length=64, examples=["digits"])
    """Name that a device's own `data.name` must equal for the job to concern it."""
    schema_: DataSchema | None = Field(
        default=None, alias="schema", exclude_if=says_nothing(None), examples=[_SCHEMA_EXAMPLE]
    )
    """How devices make numbers of their records, and the classes' names; null: they are numbers."""
    classes: Annotated[int, OfSchema] = Field(default_factory=_unset, ge=2, le=10000, examples=[10])
    """Number of classes, labels 0 to classes − 1; others are dropped. Follows from a schema."""
    input_shape: Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 20)], ...], OfSchema] = Field(
        default_factory=_unset, min_length=1, max_length=4, examples=[[64]]
    )
    """Shape of one record, without the batch axis. With a schema it follows from that."""
    nominal_records: int = Field(ge=1, le=10**9, examples=[64])
    """Public divisor of a device's sums: about its records, the same for all, never a count."""
    evaluation_share: float = Field(default=0.1, ge=0, lt=1)
    """Share of a device's records that it keeps apart for evaluation, split once."""

    @property
    def nominal_evaluation_records(self) -> int:
        """About how many of a device's records are for evaluation: public, at least one."""
        return max(1, math.ceil(self.evaluation_share * self.nominal_records))

    @property
    def target(self) -> TargetRange | None:
        """The range of a label that is a number; None where labels are classes."""
        return None if self.schema_ is None else self.schema_.target


class Privacy(Block):
    """The training guarantee of the whole job, per record; of some methods per device."""

    epsilon: float | None = Field(default=None, gt=0, examples=[8])
    """ε of the whole training, where it adds noise: chosen, not inherited; null: it adds none."""
    delta: float = Field(default=1e-5, gt=0, lt=1, examples=[1e-5])
    """δ of the whole training; must stay below 1 / data.nominal_records."""
    max_participations: int | None = Field(default=None, ge=1)
    """Training rounds one device may answer; the noise is made for it. null: all rounds."""
    noise: Literal["local", "shared"] = Field(default="local", exclude_if=says_nothing("local"))
    """`local`: each device adds all of it. `shared`: each a part, in sums; two ε are printed."""
    honest_share: float = Field(default=0.8, gt=0, le=1, exclude_if=says_nothing(0.8))
    """Share of a sum's uploads counted on as honest in shared noise. Fewer, and ε is broken."""
    accept_unproven: bool = False
    """Accept parts without a proven guarantee; reports then print none."""


class Selection(Block):
    """Which devices take part in a round."""

    devices: Annotated[int, Field(ge=1, le=10**6)] | Literal["all"] = "all"
    """Devices wanted in each round, drawn uniformly; `all`: every enrolled one."""
    over_select: float = Field(default=1.0, ge=1, le=3)
    """Factor by which more devices are selected than wanted, against those that stay away."""
    min_devices: int = Field(default=1, ge=1, le=10**6)
    """Enrolled devices the cloud waits for before the first round."""


class Round(Block):
    """When a round closes, and what becomes of uploads that are late."""

    mode: Literal["sync", "buffered"] = Field(default="sync", exclude_if=says_nothing("sync"))
    """`sync`: uploads count in their round alone. `buffered` (FedBuff): late ones in a later."""
    buffer: int | None = Field(default=None, ge=1, le=10**6, exclude_if=says_nothing(None))
    """Uploads that close a buffered round at once; null: the quorum's share of the selected."""
    deadline_s: Seconds = 30.0
    """Seconds from the broadcast after which the round closes with what has come."""
    budget_s: Seconds | None = Field(default=None, examples=[0.5])
    """Seconds after which every answer leaves, public; work not done by then counts as no records.
    null: a tenth of deadline_s, at most 60."""
    quorum: float = Field(default=0.8, gt=0, le=1)
    """Share of the wanted devices whose uploads close the round early."""
    grace_s: float = Field(default=2.0, ge=0, le=3600)
    """Seconds open for late uploads once the quorum is there; a buffered round has none."""
    min_batch: int = Field(default=5, ge=1, le=10**6)
    """Fewest uploads the proxy ever hands over in one shuffled batch."""
    retries: int = Field(default=2, ge=0, le=100)
    """Further attempts at a round that closed with too few uploads."""

    @property
    def time_budget_s(self) -> float:
        """`budget_s`, or its default."""
        return min(self.deadline_s / 10, 60.0) if self.budget_s is None else self.budget_s


class Proxy(Block):
    """What the proxy does with the uploads of a round."""

    shuffle: Literal["split", "whole", "none"] = "split"
    """`split`: each layer's segments are permuted alone. `whole`: a device's update stays one.
    `none`: as they came, so the cloud may follow a device; owners must allow it."""


class ReleaseRollout(Block):
    """How the final model reaches the devices."""

    canary_share: float = Field(default=1.0, gt=0, le=1, examples=[0.1])
    """Share of the enrolled devices that get it first, drawn uniformly; 1: all at once."""
    canary_floor: int = Field(default=5, ge=2, le=10**6)
    """Fewest devices of a canary, and fewest of their reports on which the rest follows."""
    soak_s: Seconds = 3600.0
    """Seconds until the rest follows a healthy canary, whose reports come in the first half."""


class LaplaceEval(Block):
    """The Laplace mechanism on inference uploads."""

    laplace_eval_eps: float = Field(gt=0, examples=[20])
    """ε per evaluation round, for one device's whole upload; it adds up over the rounds."""


class Encrypt(Block):
    """How inference uploads are protected."""

    privacy_eval_type: Literal["LAPLACE", "NOT_ENCRYPT"] = "LAPLACE"
    """`LAPLACE`: noise on the device. `NOT_ENCRYPT`: none, so no guarantee."""
    laplace_eval: LaplaceEval | None = None
    """The budget of `LAPLACE`; needed where devices are evaluated."""
    laplace_eval_sensitivity: Literal[2, 1] = 2
    """L1 distance that the noise covers: 2 is the true one; with 1 the printed guarantee is 2ε."""


class Unsupervised(Block):
    """Evaluation without labels: clusters of the devices' softmax uploads, or their mean."""

    every_rounds: int = Field(default=5, ge=0, le=10**6)
    """Evaluate in every so-manyth training round; 0: never."""
    upload: Literal["mean", "per_sample", "sums"] = "mean"
    """`mean`: one vector a device. `per_sample`: one a record. `sums`: noised sums by centroid."""
    epsilon: float | None = Field(default=None, gt=0, exclude_if=says_nothing(None), examples=[1])
    """ε of all `sums` of one device's evaluation records together, with `privacy.delta`."""
    samples_per_device: int = Field(default=16, ge=1, le=4096)
    """Vectors of one device's `per_sample` upload; public, the same for all devices."""
    cluster_client_num: int = Field(default=1000, ge=1, le=10**6)
    """Most uploads that are clustered in one round."""
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
        """Whether the mean of all devices is asked for, and no device's own upload."""
        return self.eval_type == "MEAN_SOFTMAX"


class FederatedEvaluationBlock(Block):
    """Evaluation with labels: noised counts of how the model does on devices' own records."""

    epsilon: float = Field(gt=0, examples=[1])
    """ε of all evaluations of one device's evaluation records together, with `privacy.delta`."""
    every_rounds: int = Field(default=0, ge=0, le=10**6)
    """Evaluate every so-manyth training round too; 0: after the last one alone."""
    alarm_rate: float | None = Field(
        default=None, ge=1e-4, le=0.5, examples=[0.05], exclude_if=says_nothing(None)
    )
    """Of anomalies: share of normal records that may be flagged, by noised counts; null: 0.05."""

    @property
    def wanted_alarm_rate(self) -> float:
        """`alarm_rate`, or what stands for it."""
        return 0.05 if self.alarm_rate is None else self.alarm_rate


class Job(Block):
    """One learning job: what the cloud signs and devices judge. Each key is sound alone; whoever
    plays or prices it needs the `Plan` that `compile_job` makes of it."""

    # Made when a job is first read: in a device's process its owner's policy is known by then.
    model_config = ConfigDict(defer_build=True)

    job: str = Field(pattern=r"^[a-z0-9_-]{1,64}$", examples=["quickstart"])
    """The job's name."""
    data: JobData
    """What the devices' records look like."""
    features: tuple[FeatureBlock, ...] = Field(
        default=(), max_length=8, examples=[[{"name": "identity"}]]
    )
    """The public feature maps, put side by side; a PCA may follow them as the last entry."""
    model: ModelBlock | None = Field(default=None, examples=[{"name": "mlp"}])
    """The model that methods such as `sgd` train whole; null for methods that learn on features."""
    train: TrainBlock = Field(examples=[{"method": "fm"}])
    """The training method and its parameters."""
    update: tuple[StageBlock, ...] = Field(
        default=(), max_length=8, examples=[[{"name": "upload_top_k", "share": 0.1}]]
    )
    """What an update passes through on the device, in this order, before it is sealed."""
    privacy: Privacy = Privacy()
    """The training guarantee."""
    selection: Selection = Selection()
    """Which devices take part in a round."""
    round: Round = Round()
    """When a round closes."""
    proxy: Proxy = Proxy()
    """What the proxy does with the uploads."""
    aggregation: AggregationBlock = Field(
        default=AveragingParameters(), examples=[{"name": "fedavg"}]
    )
    """How the uploads of a round become one."""
    encrypt: Encrypt = Encrypt()
    """How inference uploads are protected."""
    unsupervised: Unsupervised = Unsupervised(every_rounds=0)
    """Evaluation on the devices; without this block there is none."""
    federated_evaluation: FederatedEvaluationBlock | None = Field(
        default=None, exclude_if=says_nothing(None), examples=[{"epsilon": 1}]
    )
    """Figures on the devices' own evaluation records, noised; null: the cloud's test alone."""
    release: ReleaseRollout = Field(
        default=ReleaseRollout(), exclude_if=says_nothing(ReleaseRollout())
    )
    """Who gets the final model first."""
    priority: Priority = Field(default="normal", exclude=True)
    """Which of several queued jobs the cloud starts first. Devices hear nothing of it."""

    @model_validator(mode="after")
    def _scaled_by_schema(self) -> Self:
        """An `input_scale` that is not written follows from the schema."""
        schema, train = self.data.schema_, self.train
        if schema is not None:
            features = tuple(_scaled(entry, schema.largest) for entry in self.features)
            self._fill_in(features=features, model=_scaled(self.model, schema.largest))
        if self.data.target is not None:  # such a head has an intercept with and without the key
            self._fill_in(train=train.model_copy(update=dict(train.left_out)))
        return self

    def _fill_in(self, **values: Any) -> None:
        """Set what is not as it was read; it stays unsaid."""
        told = self.model_fields_set
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "__pydantic_fields_set__", told)

    @property
    def rounds(self) -> int:
        """Training rounds; preparation rounds are not counted."""
        return self.train.rounds

    @property
    def anomaly(self) -> bool:
        """Whether it learns what is normal, to tell what is not."""
        model = self.model
        return METHODS[self.train.method].anomaly or (
            model is not None and MODELS[model.name].anomaly
        )

    @property
    def measure(self) -> str:
        """What leads the figures of its model: `accuracy`, `RMSE` or `AUC`."""
        if self.anomaly:
            return AUC
        return ACCURACY if self.data.target is None else RMSE

    @property
    def learns(self) -> str:
        """The same in words, for what refuses a job that does not learn classes."""
        told = {RMSE: "the label is a number", AUC: "the job learns what is normal"}
        return told.get(self.measure, "the job learns classes")

    @property
    def max_participations(self) -> int:
        """Training rounds one device may answer: the configured number, else all."""
        return self.privacy.max_participations or self.rounds

    @property
    def infer_every(self) -> int:
        """Devices upload inferences in rounds that are multiples of this; 0: never."""
        return 0 if self.unsupervised.upload == "sums" else self._unsupervised_every

    @property
    def cluster_every(self) -> int:
        """Devices sum records by cluster after rounds that are multiples of this; 0: never."""
        return self._unsupervised_every if self.unsupervised.upload == "sums" else 0

    @property
    def _unsupervised_every(self) -> int:
        unsupervised = self.unsupervised
        return 0 if unsupervised.eval_type == "NOT_EVAL" else unsupervised.every_rounds

    def canonical(self) -> bytes:
        """The job as JSON with sorted keys and all defaults, but those of keys that came later."""
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

    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes (32 bytes): the job's identity."""
        return hashlib.sha256(self.canonical()).digest()

    @classmethod
    def from_canonical(cls, raw: bytes) -> Job:
        """The job of canonical bytes (at most 64 KiB); `compile_canonical` judges it as well.
        Raises ProtocolError("bad_job") for anything else, even another spelling: one job has one
        digest."""
        if len(raw) > CANONICAL_BYTES:
            raise ProtocolError("bad_job", f"a job of more than {CANONICAL_BYTES} bytes")
        try:
            plain = json.loads(raw)
            for _, block, keys in settled(plain if isinstance(plain, dict) else {}):
                for key in [key for key, value in keys.items() if block.get(key, ...) == value]:
                    del block[key]
            job = cls.model_validate_json(json.dumps(plain), strict=True)
            train, said = job.train, job.train.model_fields_set
            unsaid = {key: value for key, value in train.left_out.items() if key not in said}
            job._fill_in(train=train.model_copy(update=unsaid))
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
    """Path, block and former keys of each block of a job that has some: see `BlockPart.settled`."""
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
    if getattr(block, "ranges", ()):  # which stand in its place
        return block
    return block.model_copy(update={"input_scale": scale})


def _unknown(error: ValidationError) -> str:
    """Why bytes are no job: for a part of a plug-in, why that is not to be had here."""
    for detail in error.errors(include_url=False, include_input=False):
        context = detail.get("ctx", {})
        if isinstance(context.get("error"), PluginRefusedError):
            return str(context["error"])
        if detail["type"] == "union_tag_invalid":
            key = ".".join(map(str, detail["loc"]))
            tag = ascii(str(context.get("tag"))[:64])
            return f"{_UNKNOWN}: {key} names {tag}, and no plug-in that is installed here brings it"
    return _UNKNOWN


def _rebuild() -> None:
    """Other parts may be named than before: blocks already made are made anew."""
    kinds: list[type[Job]] = [Job, *Job.__subclasses__()]
    for job in kinds:
        if job.__pydantic_complete__:
            job.model_rebuild(force=True)


watch(_rebuild)
