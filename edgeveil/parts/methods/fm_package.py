"""The form of what `fm` broadcasts, checked before any record is read."""

from __future__ import annotations

import math

import numpy as np

from edgeveil.errors import ProtocolError
from edgeveil.parts.exchange import TRAIN, Exchange, Tensors
from edgeveil.parts.methods.fm_parameters import FmParameters
from edgeveil.parts.methods.fm_released import CENTRE, COVARIANCE, QUADRATIC
from edgeveil.parts.methods.triangle import triangle_size
from edgeveil.parts.setting import Setting
from edgeveil.privacy.grid import GRID_BITS

Form = tuple[tuple[int, ...], str]


def forms(exchange: Exchange, parameters: FmParameters, setting: Setting) -> dict[str, Form]:
    """Shape and dtype of each tensor that an answer needs.

    With `ldp_pca` the covariance is the device's own earlier answer, added by its host.
    """
    d, c, features = setting.dimension, setting.classes, setting.feature_dimension
    needed: dict[str, Form] = {}
    if exchange.phase == COVARIANCE:
        return needed
    if setting.projection is not None and setting.projection.name == "ldp_fpca":
        needed["basis"] = ((features, d), "int16")
    if setting.projection is not None and setting.projection.name == "ldp_pca":
        needed[COVARIANCE] = ((triangle_size(features),), "float32")
    if exchange.phase == CENTRE:
        return needed
    if parameters.centre:
        needed["centre"] = ((d,), "float32")
    if exchange.phase == QUADRATIC:
        return needed
    needed["iterate"] = ((d, c), "int32")
    needed["spectrum"] = ((2,), "float64")
    if parameters.quadratic == "once":
        needed["curvature"] = ((triangle_size(d),), "float32")
    return needed


def check_package(
    exchange: Exchange, tensors: Tensors, parameters: FmParameters, setting: Setting
) -> None:
    """Raise `ProtocolError` unless the tensors have their public form and W keeps to its limit.

    Past it an answer's form cannot depend on records: with a W in `max_weight` and the sizes of
    `check_sizes` no exact sum overflows, whatever the records are, and nothing else raises.
    """
    for name, form in forms(exchange, parameters, setting).items():
        tensor = tensors.get(name)
        if tensor is None or (tensor.shape, str(tensor.dtype)) != form:
            raise ProtocolError("bad_package", f"tensor '{name}' is not of form {form}")
        if not np.isfinite(tensor).all():
            raise ProtocolError("bad_package", f"tensor '{name}' is not finite")
    if exchange.phase == TRAIN:
        limit = math.ceil(parameters.max_weight * 2**GRID_BITS)
        iterate = tensors["iterate"]
        if iterate.min() < -limit or iterate.max() > limit:  # not abs: -2**31 has no opposite
            raise ProtocolError("bad_package", f"tensor 'iterate' goes beyond {limit} steps")
        low, high = tensors["spectrum"].astype(np.float64)
        if not 0 < low <= high:
            raise ProtocolError("bad_package", "the spectrum must satisfy 0 < low <= high")
