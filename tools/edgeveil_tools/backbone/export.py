"""A torch.nn.Module of the user's own as a frozen backbone: exported to ONNX once, here.

The code runs in the command that its user started, and nowhere else: what a job names and devices
run is the ONNX file.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from edgeveil.errors import OF_OTHERS_CODE, DataError, UsageError
from edgeveil.parts.features.onnx import check_batches, opened
from edgeveil.parts.models.python_model import exported_onnx
from edgeveil.parts.models.state_dict import fitted, read_state_dict
from edgeveil_tools.backbone.command import BackboneFacts, written

if TYPE_CHECKING:
    import torch

PROBES = 2
LAYERS = "use layers that docs/models.md lists"


def export(
    function: str, shape: tuple[int, ...], path: Path, weights: Path | None = None
) -> BackboneFacts:
    """Write what `module:function` gives, called without arguments, as ONNX to `path`.

    `shape` is that of one record, `weights` a state_dict that is loaded first. The file is checked
    as a job's backbone. Raises UsageError or DataError, and then writes nothing.
    """
    import torch

    module = _made(function)
    if weights is not None:
        _load(module, weights)
    probe = torch.zeros(PROBES, *shape)
    try:
        raw = exported_onnx(module.eval(), probe, "features", weights_as_inputs=False)
    except OF_OTHERS_CODE as error:  # the user's code and the exporter may raise anything
        first = str(error).strip().partition("\n")[0][:200].rstrip(".")
        raise DataError(
            f"does not take records of {list(shape)} or has no ONNX form:"
            f" {type(error).__name__}: {first}",
            where=function,
            fix=f"check --input-shape, and {LAYERS}",
        ) from error
    try:
        opened(raw)
        check_batches(raw)
    except DataError as error:
        raise DataError(error.what, where=function, fix=error.fix or LAYERS) from error
    return written(path, raw)


def _made(function: str) -> torch.nn.Module:
    import torch

    name, _, attribute = function.partition(":")
    if not name or not attribute:
        raise UsageError(
            f"'{function}' is not module:function", where="--from", fix="write mypackage.models:Net"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        made = getattr(import_module(name), attribute)()
    except OF_OTHERS_CODE as error:
        raise UsageError(
            f"{function} cannot be called, {type(error).__name__}: {error}",
            where="--from",
            fix="let it give the module without arguments",
        ) from error
    finally:
        sys.path.pop(0)
    if not isinstance(made, torch.nn.Module):
        raise UsageError(f"{function} gives no torch.nn.Module", where="--from", fix="correct it")
    return made


def _load(module: torch.nn.Module, path: Path) -> None:
    """As `load_state_dict(strict=True)`, from a file that runs no code."""
    import torch

    there = module.state_dict()
    try:
        found = fitted(
            {name: tuple(value.shape) for name, value in there.items()}, read_state_dict(path)
        )
    except DataError as error:
        raise DataError(error.what, where=str(path), fix=error.fix) from error
    module.load_state_dict({name: torch.tensor(array) for name, array in found.items()})
