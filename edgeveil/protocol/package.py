"""What the sealed broadcast holds once a selected device has opened it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from edgeveil.errors import ProtocolError


class JobPackage(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    """Once per job, to every enrolled device: the job (canonical JSON) and the ONNX graph.

    `backbones` are the frozen feature extractors (ONNX) that the job names by their digests.
    """

    job: bytes
    graph: bytes
    backbones: tuple[bytes, ...] = ()


class RoundPackage(msgspec.Struct, frozen=True, array_like=True, tag="round"):
    """One exchange: weights for inference (if asked for) and the method's tensors."""

    phase: str
    number: int
    infer: bool
    tensors: bytes
    model: bytes


class ReleasePackage(msgspec.Struct, frozen=True, array_like=True, tag="release"):
    """The final model, ready to use: `edgeveil predict`."""

    job_name: str
    onnx: bytes


Package = JobPackage | RoundPackage | ReleasePackage

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Package] = msgspec.msgpack.Decoder(Package)


def encode_package(package: Package) -> bytes:
    """The plaintext that is sealed."""
    return _encoder.encode(package)


def decode_package(plaintext: bytes) -> Package:
    """The package; raises ProtocolError `malformed_package`."""
    try:
        return _decoder.decode(plaintext)
    except (msgspec.DecodeError, RecursionError, OverflowError, UnicodeDecodeError):
        raise ProtocolError("malformed_package") from None


def pack_tensors(tensors: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Named arrays as safetensors (C order, little-endian)."""
    return bytes(save({name: np.ascontiguousarray(array) for name, array in tensors.items()}))


def unpack_tensors(data: bytes) -> dict[str, NDArray[np.generic]]:
    """Named arrays of real numbers; raises ProtocolError `malformed_tensors`."""
    try:
        found = dict(load(data))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError):
        raise ProtocolError("malformed_tensors") from None
    if any(array.dtype.kind not in "buif" for array in found.values()):
        raise ProtocolError("malformed_tensors")
    return found
