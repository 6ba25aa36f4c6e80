"""The policy of a device's owner."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema

from edgeveil.config.base import Block, named_in
from edgeveil.config.explain import SHA256_HEX
from edgeveil.registry import known_names

DEFAULT_METHOD = "fm"
USUAL_RECORDS = 20_000  # default of max_records
USUAL_ROOM = 4  # max_records over nominal records, as the tools write it
_NAME = r"[A-Za-z_]\w*"  # a bounded count of \w takes 0.1 s to compile
FUNCTION = rf"^{_NAME}(\.{_NAME})*:{_NAME}$"  # `module:function`
ColumnPattern = Annotated[str, Field(min_length=1, max_length=128)]
MethodName = Annotated[
    str,
    AfterValidator(named_in("method", "methods", DEFAULT_METHOD)),
    Field(json_schema_extra=lambda schema: schema.update(enum=list(known_names("methods")))),
]


def _named_alone(any_function: bool) -> bool:
    if any_function:
        what = "allow_python_models let any importable function run; name those that may in"
        fix = "allowed_python_models, as `edgeveil methods digest module:function` prints them"
        raise ValueError(f"{what} {fix}")
    return any_function


class AllowedPlugin(Block):
    """A plug-in at the version that the owner has read."""

    distribution: str = Field(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", max_length=128, examples=["my-rules"]
    )
    """Its name in pip."""
    sha256: str = Field(pattern=SHA256_HEX)
    """The digest (hex) of its installed files, as `edgeveil methods digest NAME` prints it."""


class AllowedPythonModel(Block):
    """A function that makes a model or trains one, at the version that the owner has read."""

    function: str = Field(pattern=FUNCTION, max_length=256, examples=["mypackage.models:Net"])
    """`module:function`, as a job's `model`, `train.function` or `train.loss` names it."""
    sha256: str = Field(pattern=SHA256_HEX)
    """The digest (hex) of its code, as `edgeveil methods digest module:function` prints it."""


CollusionEpsilon = Annotated[float, Field(ge=0)] | Literal["any"]


def _number(limit: float | Literal["any"]) -> float:
    return math.inf if limit == "any" else limit


class Policy(Block):
    """The owner's limits. No job can override them; a job beyond them is refused."""

    max_epsilon_per_job: float = Field(default=10.0, ge=0)
    """Largest training ε of one job."""
    lifetime_epsilon: float = Field(default=50.0, ge=0)
    """Largest training ε of all jobs on this data set."""
    lifetime_delta: float = Field(default=1e-4, ge=0, lt=1, examples=[1e-4])
    """Largest δ of all jobs on this data set, for training and for evaluation each."""
    max_inference_epsilon: float = Field(default=100.0, ge=0)
    """Largest ε of all uploads of evaluation records, per device if defined, and per record."""
    max_inference_record_epsilon: float | None = Field(default=None, ge=0, examples=[5])
    """The same limit per record. null: max_inference_epsilon."""
    max_collusion_epsilon_per_job: CollusionEpsilon | None = Field(default=None, examples=[30])
    """Largest ε of shared noise in one job if all others collude. null: max_epsilon_per_job; `any`:
    trust that cloud and proxy do not, as correlated noise without `local_share` asks."""
    lifetime_collusion_epsilon: CollusionEpsilon | None = Field(default=None, examples=[150])
    """The same for all jobs, training and evaluation each. null: lifetime_epsilon."""
    accept_unproven: bool = False
    """Take part in jobs with a claimed but unproven guarantee."""
    accept_unprotected: bool = False
    """Upload inferences, or trained updates, without noise when a job asks for it."""
    accept_releases: Literal["none", "joined", "data_set"] = "data_set"
    """Final models to use: `data_set`: for this data set; `joined`: of own jobs; `none`."""
    on_expired_release: Literal["warn", "stop"] = "warn"
    """For a release that was not renewed, `edgeveil predict` warns or refuses."""
    allow_record_counts: bool = False
    """Take part in jobs whose uploads tell how many records train here: `aggregation.weights:
    records`, methods `fednova`, `scaffold`. Of secure sums the cloud sees only all devices' sum. An
    update without noise (`accept_unprotected`) may tell it too, for example by its weight decay."""
    accept_unshuffled: bool = False
    """Take part in jobs with `proxy.shuffle: none`, which the proxy does not shuffle."""
    allowed_methods: tuple[MethodName, ...] = (DEFAULT_METHOD,)
    """Training methods that may read the data; one without a proof must be named here, and
    `statistics` also for jobs that ask beside training."""
    allowed_backbones: tuple[Annotated[str, Field(pattern=SHA256_HEX)], ...] = ()
    """SHA-256 (hex) of ONNX feature extractors and frozen weights that may run on the data."""
    allowed_python_models: tuple[AllowedPythonModel, ...] = ()
    """Installed code that a job's `model: {name: python}`, `train: {method: custom}` or
    `train.loss` may run here, as this user."""
    allowed_plugins: tuple[AllowedPlugin, ...] = ()
    """Installed plug-ins that may be imported and run on the data."""
    allowed_columns: tuple[ColumnPattern, ...] | None = Field(
        default=None,
        max_length=4096,
        exclude_if=lambda given: given is None,
        examples=[["age", "hours_*"]],
    )
    """Columns that jobs may read, and labels, as names or patterns with `*`; null: all. If a job
    names them by order (`data.schema.header`), `#3` is the third. No schema: reads all."""
    statistics_columns: tuple[ColumnPattern, ...] | None = Field(
        default=None,
        max_length=4096,
        exclude_if=lambda given: given is None,
        examples=[["age", "hours_*"]],
    )
    """Of the `allowed_columns` those that statistics may ask about; null: all."""
    statistics_epsilon: float | None = Field(default=None, ge=0, examples=[2])
    """Largest ε of all statistics of this data set, within its other limits; null: those alone."""
    min_devices: int = Field(default=5, ge=1)
    """Fewest devices that a round must select."""
    max_jobs: int = Field(default=4, ge=1)
    """Most jobs at once, each with its budget reserved; further ones must wait."""
    max_budget_s: float = Field(default=120.0, gt=0, le=86400)
    """Longest time budget of a job's rounds (`round.budget_s`), in seconds."""
    max_records: int = Field(
        default=USUAL_RECORDS, ge=1, le=10**9, exclude_if=lambda records: records == USUAL_RECORDS
    )
    """Most records the box will ever hold: public, so not their count. Each job is first tried on
    this many synthetic records; of more, this many are used. Tools write 4 · nominal records."""
    require_cover: bool = False
    """Silently ignore rounds without cover traffic (`cover_traffic` at the proxy)."""

    def with_room(self, nominal_records: int) -> Policy:
        """Return this policy with `max_records` for a nominal count, unless the file sets it."""
        if "max_records" in self.model_fields_set:
            return self
        return self.model_copy(update={"max_records": min(USUAL_ROOM * nominal_records, 10**9)})

    @property
    def collusion_epsilon_per_job(self) -> float:
        given = self.max_collusion_epsilon_per_job
        return _number(self.max_epsilon_per_job if given is None else given)

    @property
    def collusion_epsilon_in_all(self) -> float:
        given = self.lifetime_collusion_epsilon
        return _number(self.lifetime_epsilon if given is None else given)

    allow_python_models: SkipJsonSchema[Annotated[bool, AfterValidator(_named_alone)]] = Field(
        default=False, exclude=True
    )
    """Key of the version before: `true` is refused, `false` is the default."""
