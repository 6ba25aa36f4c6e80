"""A state_dict of PyTorch as a file: read without running code, packed, and fitted. A job names
weights by the SHA-256 of one form, safetensors with sorted names, whatever file they lay in."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgeveil.errors import DataError
from edgeveil.parts.features.onnx import MAX_BACKBONE_BYTES
from edgeveil.parts.models.layers import Shape

MAX_BYTES = MAX_BACKBONE_BYTES
_HEAD_BYTES = 8  # of safetensors: the header's length
_MOST_HEADER_BYTES = 1 << 22  # JSON takes many times its size in memory
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
SUFFIXES = (".safetensors", *_TORCH)
_TOLD = 5  # names of one kind
_SAVE = "torch.save(model.state_dict(), FILE)"
_NUMPY = {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}

Arrays = dict[str, NDArray[Any]]


def packed_state_dict(path: Path) -> bytes:
    """The bytes that a job names by digest. Raises DataError for a file that is none, too large, or
    not finite float32."""
    found = read_state_dict(path)
    other = [f"{name} ({one.dtype})" for name, one in found.items() if one.dtype != np.float32]
    if other:
        raise _refused(
            path, f"holds other types than float32: {_some(other)}", "save model.float()'s"
        )
    broken = [name for name, one in found.items() if not np.isfinite(one).all()]
    if broken:
        raise _refused(path, f"holds what is no number: {_some(broken)}", "train it again")
    return bytes(save({name: found[name] for name in sorted(found)}))


def read_state_dict(path: Path) -> Arrays:
    """Tensors of a `.safetensors` or `.pt` file by name, within MAX_BYTES; runs no code. Raises
    DataError."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _refused(path, f"has more than {MAX_BYTES >> 20} MiB", "use a smaller model")
        raw = path.read_bytes()[: MAX_BYTES + 1]
    except OSError as error:
        raise _refused(
            path, f"cannot be read ({error.strerror or error})", "check the path"
        ) from error
    found = _from_torch(path) if path.suffix in _TORCH else _from_safetensors(raw, path)
    if not found:
        raise _refused(path, "holds no tensors", f"write it with {_SAVE}")
    return found


def unpacked(raw: bytes) -> Arrays:
    return _from_safetensors(raw, Path("model.state_dict"))


def _from_safetensors(raw: bytes, path: Path) -> Arrays:
    try:
        length = int.from_bytes(raw[:_HEAD_BYTES], "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = json.loads(raw[_HEAD_BYTES : _HEAD_BYTES + length])
        types = {name: one["dtype"] for name, one in header.items() if name != "__metadata__"}
        other = [f"{name} ({kind})" for name, kind in types.items() if kind not in _NUMPY]
        if other:
            raise _refused(
                path, f"holds types that are not read: {_some(other)}", "save float32 tensors"
            )
        return {name: np.asarray(array) for name, array in load(raw).items()}
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _refused(
            path,
            "is no safetensors file",
            "write it with safetensors.torch.save_file(model.state_dict(), FILE), or name a .pt"
            " file of torch.save",
        ) from None


def _from_torch(path: Path) -> Arrays:
    """By `torch.load` with `weights_only`, which makes tensors and containers alone."""
    try:
        with zipfile.ZipFile(path) as file:
            size = sum(one.file_size for one in file.infolist())
    except (zipfile.BadZipFile, OSError):
        raise _refused(path, "is no file of torch.save", f"write it with {_SAVE}") from None
    if size > MAX_BYTES:
        raise _refused(path, f"unpacks to more than {MAX_BYTES >> 20} MiB", "use a smaller model")
    try:
        import torch
    except ImportError:
        raise _refused(
            path, "needs torch to be read", "install torch, or save it as .safetensors"
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises pickle's, zip's and its own errors
        raise _refused(
            path,
            f"holds more than tensors ({type(error).__name__}), and nothing else is read",
            f"save the weights alone: {_SAVE}",
        ) from None
    if not isinstance(found, Mapping):
        raise _refused(path, f"holds a {type(found).__name__}", f"save a state_dict: {_SAVE}")
    inner = [str(name) for name, one in found.items() if not isinstance(one, torch.Tensor)]
    if inner:
        raise _refused(
            path,
            f"is a checkpoint, with other things than tensors: {_some(inner)}",
            "save its weights alone, for example torch.save(checkpoint['state_dict'], FILE)",
        )
    # A view of few values may have any size.
    if sum(one.numel() * one.element_size() for one in found.values()) > MAX_BYTES:
        raise _refused(path, f"unpacks to more than {MAX_BYTES >> 20} MiB", "use a smaller model")
    return {str(name): _array(path, str(name), one) for name, one in found.items()}


def _array(path: Path, name: str, tensor: Any) -> NDArray[Any]:
    try:
        return np.array(tensor.detach().numpy(), order="C")
    except (TypeError, RuntimeError):  # bfloat16, sparse, quantised
        kind = str(tensor.dtype).removeprefix("torch.")
        raise _refused(
            path, f"holds a type that is not read: {name} ({kind})", "save model.float()'s"
        ) from None


def fitted(
    wanted: Mapping[str, Shape], found: Mapping[str, NDArray[Any]], optional: Iterable[str] = ()
) -> Arrays:
    """Those of `found` that are `wanted`. DataError names what is missing, unexpected or of another
    shape; `optional` ones may be any and are left out."""
    free = set(optional)
    missing = [name for name in wanted if name not in found and name not in free]
    unexpected = [name for name in found if name not in wanted and name not in free]
    sizes = [
        f"{name} is {list(found[name].shape)}, the model has {list(shape)}"
        for name, shape in wanted.items()
        if name in found and name not in free and found[name].shape != shape
    ]
    problems = [
        text
        for text, names in (
            (f"lacks {_some(missing)}", missing),
            (f"has {_some(unexpected)} that the model has not", unexpected),
            (_some(sizes), sizes),
        )
        if names
    ]
    if problems:
        raise DataError(
            f"does not fit the model: {'; '.join(problems)}",
            where="model.state_dict",
            fix=_fix(wanted, found, missing, unexpected),
        )
    return {name: found[name] for name in wanted if name not in free}


def _fix(
    wanted: Mapping[str, Shape],
    found: Mapping[str, NDArray[Any]],
    missing: list[str],
    unexpected: list[str],
) -> str:
    for name in unexpected:
        prefix, _, rest = name.partition(".")
        if rest in missing:
            return f"strip '{prefix}.' from the names, which a wrapper has put there"
    turned = [
        name
        for name, shape in wanted.items()
        if name in found and len(shape) == 2 and found[name].shape == shape[::-1] != shape
    ]
    if turned:
        return f"transpose {turned[0]}: dense weights are (out, in), as torch.nn.Linear has them"
    if unexpected and not missing:
        return "leave them out of the file, or name the model that has them"
    return "name the model that these weights were saved from, or rename them"


def _some(names: list[str]) -> str:
    more = len(names) - _TOLD
    return ", ".join(names[:_TOLD]) + (f" and {more} more" if more > 0 else "")


def _refused(path: Path, what: str, fix: str) -> DataError:
    return DataError(what, where=str(path), fix=fix)
