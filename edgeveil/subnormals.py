"""Subnormal numbers count as zero wherever records are processed.

Operations on subnormals take ten to a hundred times as long, so a crafted graph could reveal a
record's presence by time. Each thread has a switch, which threads it starts inherit: "flush to
zero" and "denormals are zero" (Intel SDM vol. 1, 10.2.3.3 and 10.2.3.4; Arm ARM, FPCR.FZ). It is
set around the computation, as ONNX Runtime's own option affects only the first session's thread.
numpy is imported late, so that the threads its BLAS starts inherit the process's switch.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from edgeveil.errors import PrivacyError

_TORCH_GRAIN = 1 << 15  # values that torch gives one thread at least (at::internal::GRAIN_SIZE)
_ENVIRONMENT_BYTES = 256  # more than any C library's fenv_t


_MXCSR_BITS = 0x8000 | 0x0040  # FTZ, DAZ
_FPCR_BITS = 1 << 24  # FZ
_SWITCHES = {  # in `fenv_t` of glibc and musl, and of macOS: offset, size, bits
    ("Linux", "x86_64"): (28, 4, _MXCSR_BITS),
    ("Linux", "aarch64"): (0, 4, _FPCR_BITS),
    ("Darwin", "x86_64"): (4, 4, _MXCSR_BITS),
    ("Darwin", "arm64"): (8, 8, _FPCR_BITS),
}


def flush_subnormals() -> None:
    """Count subnormals as zero in this thread and those it starts. Raises PrivacyError."""
    set_flushing(True)
    if not subnormals_flushed():
        what = "this processor does not count subnormal numbers as zero, so times reveal records"
        where = f"{platform.system()} on {platform.machine()}"
        raise PrivacyError(what, where=where, fix="use Linux or macOS on x86-64 or 64-bit ARM")


def set_flushing(on: bool) -> bool:
    """Set the calling thread's switch and return its previous state; the effect is not tested."""
    switch = _SWITCHES.get((platform.system(), platform.machine()))
    library = _library()
    if switch is None or library is None:
        return subnormals_flushed()
    environment = (ctypes.c_ubyte * _ENVIRONMENT_BYTES)()
    library.fegetenv(environment)
    offset, size, bits = switch
    part = slice(offset, offset + size)
    word = int.from_bytes(bytes(environment[part]), sys.byteorder)
    wanted = word | bits if on else word & ~bits
    if wanted != word:
        environment[part] = list(wanted.to_bytes(size, sys.byteorder))
        library.fesetenv(environment)
    return word & bits == bits


def loaded_torch() -> Any:
    """Return torch if this process has loaded it; None also while another thread is loading it."""
    torch = sys.modules.get("torch")
    spec = getattr(torch, "__spec__", None)
    return None if getattr(spec, "_initializing", False) else torch


@cache
def _library() -> ctypes.PyDLL | None:
    try:
        library = ctypes.PyDLL(None)
        _ = library.fegetenv, library.fesetenv
    except (AttributeError, OSError, TypeError):
        return None
    return library


def subnormals_flushed() -> bool:
    """Return whether subnormal operands and results are zero in this thread (float32, float64)."""
    return not any((value * factor).any() for value, factor in _probes())


@cache
def _probes() -> tuple[tuple[Any, Any], ...]:
    """Return pairs whose product is 0 only if a subnormal operand or result counts as zero."""
    import numpy as np

    def smallest(kind: Any) -> Any:
        # From its bits: a float literal would already be zero in a flushing thread.
        return np.ones(16, f"u{kind().itemsize}").view(kind)

    return (
        (smallest(np.float32), np.float32(1e38)),
        (np.full(16, 1e-30, np.float32), np.float32(1e-9)),
        (smallest(np.float64), np.float64(1e300)),
        (np.full(16, 1e-300), np.float64(1e-10)),
    )


@contextmanager
def flushed() -> Iterator[None]:
    """Count subnormals as zero in a block or decorated function. Raises PrivacyError."""
    before = set_flushing(True)
    try:
        if not before:
            flush_subnormals()
        yield
    finally:
        if not before:
            set_flushing(False)


@contextmanager
def flushed_training() -> Iterator[None]:
    """Flush in all of torch's threads; use one alone if an older one cannot flush."""
    with flushed():
        torch = loaded_torch()
        threads = torch.get_num_threads() if torch else 1
        if threads == 1 or torch is None or torch_threads_flushed():  # one is this very thread
            yield
            return
        torch.set_num_threads(1)
        try:
            if not torch_threads_flushed():
                raise PrivacyError("torch does not count subnormal numbers as zero")
            yield
        finally:
            torch.set_num_threads(threads)


def torch_threads_flushed() -> bool:
    """Return whether each torch thread that the caller uses counts subnormals as zero."""
    import torch

    with torch.no_grad():
        values = torch.full((2 * _TORCH_GRAIN * torch.get_num_threads(),), 1e-30)
        return not bool((values * 1e-9 * 1e30).any())
