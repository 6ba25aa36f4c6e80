"""The blocks that parts own: a field takes the block of any part that a table holds."""

from __future__ import annotations

from typing import Annotated

from edgeveil.parts import features as _features
from edgeveil.parts.aggregation import AGGREGATIONS, RuleParameters
from edgeveil.parts.methods import METHODS, MethodParameters
from edgeveil.parts.models import MODELS, ModelParameters
from edgeveil.parts.part import OneOf
from edgeveil.parts.stages import STAGES
from edgeveil.parts.stages import StageParameters as _StageParameters

TrainParameters = Annotated[MethodParameters, OneOf(METHODS)]
FeatureParameters = Annotated[_features.FeatureParameters, OneOf(_features.FEATURES)]
ModelBlock = Annotated[ModelParameters, OneOf(MODELS)]
StageBlock = Annotated[_StageParameters, OneOf(STAGES)]
AggregationBlock = Annotated[RuleParameters, OneOf(AGGREGATIONS)]
