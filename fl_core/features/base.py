"""What a feature map is: public, total, and a function of each record alone."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fl_core.privacy.grid import row_norms

Float64 = NDArray[np.float64]
SMALLEST_NORM = 1e-12


class FeatureMap(Protocol):
    """φ(x) with ‖φ‖₂ <= 1, fixed before any record is read.

    A record's features may not depend on the batch it stands in, bit for bit: otherwise adding
    one record would change the contributions of others and no sensitivity bound would hold.
    SIMD kernels treat the tail of an array differently from its body, and float sums depend on
    their order, so sums over a row run on blocks of exactly 64 rows, padded with zeros
    (`row_norms`).
    """

    @property
    def name(self) -> str:
        """The name in the job file."""
        ...

    def output_dim(self, input_shape: tuple[int, ...]) -> int:
        """d, for records of `input_shape`."""
        ...

    def __call__(self, x: NDArray[np.float32]) -> Float64:
        """Features (n, d) of records (n, ...); a record with NaN or infinity gives zeros."""
        ...

    def onnx_nodes(
        self, input_name: str, input_shape: tuple[int, ...]
    ) -> tuple[list[Any], list[Any], str]:
        """ONNX nodes, initializers and the name of the (N, d) float32 output."""
        ...


def unit_rows(rows: Float64) -> Float64:
    """Rows (n, d) divided by their L2 norm; zero rows, and rows not finite, become zero."""
    valid: NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    finite = np.where(valid[:, None], rows, 0.0)
    unit: Float64 = finite / np.maximum(row_norms(finite), SMALLEST_NORM)[:, None]
    return unit


def valid_records(x: NDArray[np.float32], y: NDArray[np.int64], classes: int) -> NDArray[np.bool_]:
    """Mask (n,): all values finite and the label in [0, classes). Each row decides alone."""
    finite = np.isfinite(x.reshape(len(x), int(np.prod(x.shape[1:], dtype=np.int64)))).all(axis=1)
    mask: NDArray[np.bool_] = finite & (y >= 0) & (y < classes)
    return mask
