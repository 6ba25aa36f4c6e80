"""What every entry of the table of models shares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ModelParameters(BaseModel):
    """What every `model` block may say."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False, examples=[255])
    """Divides the raw values: the largest that a value can be."""
