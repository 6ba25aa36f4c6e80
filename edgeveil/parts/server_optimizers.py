"""Learning rates by round, and the cloud's step along an aggregated update, free of price.

`fedavgm`: Hsu, Qi and Brown 2019. `fedadagrad`, `fedadam`, `fedyogi`: Reddi et al. 2021, alg. 2."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from edgeveil.parts.part import Keys, omittable, only_for, some_names

Float64 = NDArray[np.float64]
_ADAPTIVE = {"fedadagrad": 0.001, "fedadam": 0.001, "fedyogi": 0.001}


class ScheduleParameters(Keys):
    """The learning rate by round: public, and known before the first one."""

    name: Literal["constant", "linear", "cosine", "step"]
    """`linear`, `cosine`: down towards `final`, which the round after the last would have. `step`:
    times `factor` after every `every_rounds`. `constant`: with warm-up only."""
    warmup_rounds: int = Field(default=0, ge=0, le=10_000)
    """First rounds in which the rate rises linearly to its full value."""
    final: Annotated[float, Field(ge=0, le=1), only_for(linear=0.0, cosine=0.0)] = some_names()
    """Share of the learning rate after the last round, which still learns; 0 by default."""
    every_rounds: Annotated[int, Field(ge=1, le=10_000), only_for(step=10)] = some_names()
    """Of `step`: rounds between two reductions; 10 by default."""
    factor: Annotated[float, Field(gt=0, le=1), only_for(step=0.5)] = some_names()
    """Of `step`: what each reduction multiplies the rate by; 0.5 by default."""

    def share(self, number: int, rounds: int) -> float:
        """Return the factor of the learning rate in training round `number`, from 1 to `rounds`."""
        warm, past = self.warmup_rounds, number - 1 - self.warmup_rounds
        if past < 0:
            return number / (warm + 1)
        if self.name == "step":
            return float(self.factor ** (past // self.every_rounds))
        if self.name == "constant":
            return 1.0
        done = past / (rounds - warm)
        left = 1 - done if self.name == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.final + (1 - self.final) * left


class ServerOptimizerParameters(Keys):
    """The `server_optimizer` of an `aggregation` block; its moments are the cloud's state."""

    name: Literal["fedavgm", "fedadagrad", "fedadam", "fedyogi"]
    """`fedavgm`: momentum. The others scale each weight's step by its squared updates: by their
    sum, their mean, or a mean that grows slowly (`fedyogi`)."""
    learning_rate: float = Field(default=1.0, gt=0, le=1000)
    """Step size along the aggregated update; of the adaptive ones often 0.01 to 0.1."""
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last step that is kept: of `fedavgm` its momentum."""
    beta_2: Annotated[float, Field(ge=0, lt=1), only_for(fedadam=0.99, fedyogi=0.99)] = some_names()
    """Share of the mean squared update that is kept, for `fedadam` and `fedyogi`; 0.99 by
    default."""
    tau: Annotated[float, Field(gt=0, le=1), only_for(**_ADAPTIVE)] = some_names()
    """τ of the adaptive ones: added to the root of the squared updates; 0.001 by default."""
    schedule: ScheduleParameters | None = omittable(None, examples=[{"name": "cosine"}])
    """The cloud's learning rate by round; null: the same in all."""
    average: float = omittable(0.0, ge=0, lt=1, examples=[0.9])
    """Share of the last mean that is kept in a moving mean of the weights, which is tested and
    released in their place; less noise than theirs. 0: the weights themselves."""

    @property
    def moments(self) -> dict[str, float]:
        """First values of the moments, by name."""
        return {"first": 0.0} | ({} if self.name == "fedavgm" else {"second": self.tau**2})

    def share(self, number: int, rounds: int) -> float:
        """Return the schedule's factor of the learning rate in training round `number`."""
        return 1.0 if self.schedule is None else self.schedule.share(number, rounds)

    def step(self, update: Float64, moments: dict[str, Float64], share: float) -> Float64:
        """Return the change of a weight, and replace its `moments`; all of one shape.

        `share` is the schedule's factor of the learning rate."""
        rate, square = self.learning_rate * share, update * update
        if self.name == "fedavgm":
            moments["first"] = self.beta_1 * moments["first"] + update
            return rate * moments["first"]
        second = moments["second"]
        if self.name == "fedadagrad":
            second = second + square
        elif self.name == "fedadam":
            second = self.beta_2 * second + (1 - self.beta_2) * square
        else:
            second = second - (1 - self.beta_2) * square * np.sign(second - square)
        first = self.beta_1 * moments["first"] + (1 - self.beta_1) * update
        moments |= {"first": first, "second": second}
        return rate * first / (np.sqrt(second) + self.tau)
