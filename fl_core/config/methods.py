"""The blocks that algorithms own: a new method or feature map changes nothing here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fl_core.aggregation import AggregationParameters as _AggregationParameters
from fl_core.algorithms import METHODS, MethodParameters
from fl_core.algorithms.stages import StageParameters as _StageParameters
from fl_core.features import FeatureParameters as _FeatureParameters
from fl_core.models import AnyModelParameters

TrainParameters = Annotated[MethodParameters, Field(discriminator="method")]
FeatureParameters = Annotated[_FeatureParameters, Field(discriminator="name")]
# A discriminator needs two alternatives.
ModelBlock = Annotated[AnyModelParameters, Field(discriminator="name")]
StageBlock = Annotated[_StageParameters, Field(discriminator="name")]
AggregationBlock = Annotated[_AggregationParameters, Field(discriminator="name")]
METHOD_NAMES: tuple[str, ...] = tuple(METHODS.names())
