"""Aggregation rules: many uploads to one array per segment, and shared code of choosing rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from edgeveil.parts.aggregation.mean import mean
from edgeveil.parts.part import BlockPart, Keys, omittable, only_for, some_names
from edgeveil.parts.round import Aim
from edgeveil.parts.server_optimizers import ServerOptimizerParameters
from edgeveil.privacy.sampler import RandomBytes, os_random
from edgeveil.privacy.selection_mechanism import exponential_mechanism, selection_event

Segments = Mapping[str, Sequence[NDArray[np.generic]]]
Combined = dict[str, NDArray[np.float64]]
Score = Callable[[Mapping[str, NDArray[np.generic]]], int]
"""Number of validation records that the model of one upload classifies correctly."""

BLOCK_BYTES = 64 << 20  # of all uploads' values in one block


class RuleParameters(Keys):
    model_config = ConfigDict(allow_inf_nan=False)

    name: str
    secure: bool = omittable(False)
    """Sum uploads under masks: the cloud sees only their sum, the proxy nothing. Uploads with wrong
    masks are left out, a sum beyond its public bound is discarded. Not detected: garbage of one
    device within the bound, which only `groups` with a robust rule limits, and a proxy that lies
    about the masks of a sum."""
    groups: int = omittable(1, ge=1, le=64)
    """With secure sums: deal the uploads at random into this many groups and sum each, for rules
    that compare. A poisoned upload then spoils its group's mean."""


@dataclass(frozen=True)
class Uploads:
    """Finite uploads of one round by segment; arrays are opened anew at every access.

    `aim` is None for sums over records; `score` is set if the rule has `validation_records`."""

    segments: Segments
    aim: Aim | None = None
    random_bytes: RandomBytes = os_random
    score: Score | None = None


class AggregationRule:
    """One way to combine uploads, without access to devices or order of arrival.

    `sums`: also defined on sums over records. `whole`: compares whole uploads, so a round has one
    segment. `validation_records`: the cloud's records that score uploads, 0 by default."""

    sums = False
    whole = False
    validation_records = 0

    def __init__(self, parameters: Any) -> None:
        self.parameters = parameters

    @property
    def least(self) -> int:
        return 1

    def counted(self, uploads: int) -> int:
        """Return the number of uploads whose mean would be as noisy as the result."""
        return uploads

    def combine(self, uploads: Uploads) -> Combined:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class AggregationPart(BlockPart):
    family: ClassVar[str] = "aggregation"
    key: ClassVar[str] = "aggregation"
    what: ClassVar[str] = "aggregation"
    block: ClassVar[type[BaseModel]] = RuleParameters

    rule: type[Any]
    of_groups: bool = False
    """Can combine means of groups of uploads, without single ones."""
    adds_up: bool = False
    """Needs only the mean: uploads are added up as they are opened."""


@dataclass(frozen=True)
class Chosen(Sequence[NDArray[np.generic]]):
    arrays: Sequence[NDArray[np.generic]]
    indices: Sequence[int]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, at: Any) -> Any:
        return self.arrays[self.indices[at]]


def mean_of(segments: Segments, indices: Sequence[int]) -> Combined:
    return mean({name: Chosen(arrays, indices) for name, arrays in segments.items()})


def blocks(arrays: Sequence[NDArray[np.generic]]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield slices of values with all uploads' values there (uploads, values), ≤ `BLOCK_BYTES`."""
    size = np.asarray(arrays[0]).size
    width = max(1, BLOCK_BYTES // (8 * len(arrays)))
    for start in range(0, size, width):
        part = slice(start, min(size, start + width))
        block = np.empty((len(arrays), part.stop - start))
        for row, array in zip(block, arrays, strict=True):
            row[:] = np.asarray(array).ravel()[part]
        yield part, block


Int64 = NDArray[np.int64]


class ChoosingParameters(RuleParameters):
    """The `aggregation` block of the rules that choose uploads by a score."""

    name: Literal["min_divergence", "secprobe"]
    """Which rule; `edgeveil methods` describes each."""
    secure: ClassVar[bool] = False  # type: ignore[misc]  # single uploads are compared
    groups: ClassVar[int] = 1  # type: ignore[misc]
    k: int = Field(ge=1, le=10**6, examples=[50])
    """Number of uploads averaged in a round, of those received."""
    sampling: Literal["exponential", "top_k"] = "exponential"
    """`exponential`: k draws without replacement, better ones likelier. `top_k`: the best k."""
    epsilon_3: float = Field(default=1.0, gt=0, le=1e6)
    """ε₃ of the draws of one round, as claimed in the text; no proven guarantee."""
    validation_records: Annotated[int, Field(ge=1, le=10**6), only_for(secprobe=200)] = some_names()
    """Of `secprobe`: how many of the cloud's test records score uploads, 200 by default; the first
    ones, which then do not test the model."""


class ChoosingRule(AggregationRule):
    @property
    def least(self) -> int:
        return int(self.parameters.k)

    def counted(self, uploads: int) -> int:
        return int(self.parameters.k)

    def chosen(
        self, scores: Int64, sensitivity: int, epsilon: Fraction, random_bytes: RandomBytes
    ) -> list[int]:
        p = self.parameters
        if p.sampling == "top_k":
            return best(scores, p.k, random_bytes)
        return drawn(scores, p.k, sensitivity, epsilon, random_bytes)


def best(scores: NDArray[np.generic], k: int, random_bytes: RandomBytes) -> list[int]:
    """Return the indices of the k largest scores (n,); ties are broken at random, not by order."""
    ties = np.frombuffer(random_bytes(8 * len(scores)), "<u8")
    return sorted(np.lexsort((ties, -scores.astype(np.float64)))[:k].tolist())


def drawn(
    scores: Int64, k: int, sensitivity: int, epsilon: Fraction, random_bytes: RandomBytes
) -> list[int]:
    """Return k indices, drawn without replacement by P(i) ∝ exp(ε·score_i / (2·sensitivity))."""
    left = list(range(len(scores)))
    for _ in range(k):
        event = selection_event("aggregation", len(left), sensitivity, epsilon)
        at, _event = exponential_mechanism(scores[left], event, random_bytes)
        left.pop(at)
    return sorted(set(range(len(scores))) - set(left))


class AveragingParameters(RuleParameters):
    """The `aggregation` block of `fedavg` and the robust rules."""

    name: Literal["fedavg", "krum", "trimmed_mean", "median"] = "fedavg"
    """Which rule; `edgeveil methods` describes each."""
    k: Annotated[int, Field(ge=1, le=10**6), only_for(krum=1)] = some_names()
    """Number of updates averaged by `krum`: 1, the default, is Krum, more are Multi-Krum."""
    malicious: Annotated[int, Field(ge=0, le=10**6), only_for(krum=1)] = some_names()
    """f of `krum`: how many uploads of a round may be poisoned; needs 2f + 3 uploads. 1 by
    default."""
    share: Annotated[float, Field(ge=0, lt=0.5), only_for(trimmed_mean=0.1)] = some_names()
    """β of `trimmed_mean`: the share of the uploads left out at either end; 0.1 by default."""
    weights: Literal["equal", "records"] = omittable("equal")
    """`records`: `fedavg` weighs devices by their number of training records, which owners must
    allow (`policy.allow_record_counts`): the cloud sees the counts, of secure sums only the sum."""
    server_optimizer: ServerOptimizerParameters | None = omittable(
        None, examples=[{"name": "fedadam", "learning_rate": 0.01}]
    )
    """The cloud's step along the aggregated update; null: the update itself is added."""


class FedAvg(AggregationRule):
    """Mean of the uploads (McMahan et al. 2017); weights by record count are a device's work."""

    sums = True

    def combine(self, uploads: Uploads) -> Combined:
        return mean(uploads.segments)


PART = AggregationPart(
    name="fedavg",
    summary="The mean of the devices' segments, of equal weight by default.",
    parameters=AveragingParameters,
    rule=FedAvg,
    source="McMahan et al. 2017",
    example="aggregation: {name: fedavg}",
    adds_up=True,
)
