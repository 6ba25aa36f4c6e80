"""The blocks that algorithms own: a new method or feature map changes nothing here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgeveil.parts.aggregation import AggregationParameters as _AggregationParameters
from edgeveil.parts.features import FeatureParameters as _FeatureParameters
from edgeveil.parts.methods import METHODS, MethodParameters
from edgeveil.parts.models import AnyModelParameters
from edgeveil.parts.stages import StageParameters as _StageParameters

TrainParameters = Annotated[MethodParameters, Field(discriminator="method")]
FeatureParameters = Annotated[_FeatureParameters, Field(discriminator="name")]
# A discriminator needs two alternatives.
ModelBlock = Annotated[AnyModelParameters, Field(discriminator="name")]
StageBlock = Annotated[_StageParameters, Field(discriminator="name")]
AggregationBlock = Annotated[_AggregationParameters, Field(discriminator="name")]
METHOD_NAMES: tuple[str, ...] = tuple(METHODS.names())
