"""Sums of clipped gradients, one of each record, in exact integers.

Noise hides a record only if the others' parts of the sum stay as they are without it, to the last
bit. Two things see to that:

- *A gradient is a function of its own record.* Gradients are computed for blocks of one fixed
  shape, in which every record has a place of its own, drawn by its own random bits; the rest of
  a block is zeros. What is computed at a place follows from what lies there.
- *Sums are exact.* A gradient is scaled to norm C, rounded toward zero to steps of C·2⁻¹⁶, and
  dropped if its norm were larger; sums of whole numbers then have no order (`docs/privacy.md`,
  "Gradients of records").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.records import Records
from edgeveil.parts.models.network import Network
from edgeveil.privacy.sampler import RandomBytes

if TYPE_CHECKING:
    import torch

    Parts = list[torch.Tensor]
    Rows = Callable[[torch.Tensor, torch.Tensor], Parts]
    Losses = Callable[[Mapping[str, torch.Tensor], torch.Tensor, torch.Tensor], torch.Tensor]
    Gradients = Callable[
        [Mapping[str, torch.Tensor], torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor]
    ]

Int64 = NDArray[np.int64]

RECORD_BITS = 16  # steps of 2^-16 of the clip norm; sums of a block stay below 2^24
PLACES = {"cpu": 16}  # of a block, a power of two; elsewhere 128
CHUNK = 1024  # a float32 sum of so many squares is off by less than 2^-13 of itself
AIM, LIMIT = 1 - 2.0**-12, 1 - 2.0**-13  # of the norm that is scaled to; of the square allowed


class RecordSums:
    """Sums of what each of one device's records gives by itself."""

    def __init__(self, records: Records, processor: str, random_bytes: RandomBytes) -> None:
        import torch

        self._random_bytes, self._places = random_bytes, PLACES.get(processor, 128)
        # The record after the last is the zeros of empty places.
        x = np.concatenate([records.x, np.zeros((1, *records.x.shape[1:]), records.x.dtype)])
        self._x = torch.as_tensor(x).to(processor)
        self._y = torch.as_tensor(np.append(records.y, 0)).to(processor)

    def total(self, rows: Rows, chosen: Int64, clip_norm: float) -> Int64:
        """The sum (values,) of the `chosen` records' `rows`, in steps of `clip_norm`·2⁻¹⁶.

        All parts in their order, one after another; one record's L2 norm is 2¹⁶ steps at most.
        """
        import torch

        empty = len(self._y) - 1
        total: Int64 = np.zeros(1, np.int64)
        for block in in_places(chosen, self._places, empty, self._random_bytes):
            at = torch.as_tensor(block).to(self._x.device)
            whole = to_steps(rows(self._x[at], self._y[at]), at != empty, clip_norm)
            sums = torch.cat([part.sum(0) for part in whole])
            total = total + sums.cpu().numpy().astype(np.int64)
        return total


class RecordGradients:
    """The gradients of the cross-entropy of one device's records."""

    def __init__(
        self, network: Network, records: Records, processor: str, random_bytes: RandomBytes
    ) -> None:
        self._sums = RecordSums(records, processor, random_bytes)
        self._gradients = record_gradients(network)

    def clipped_sum(
        self, weights: Mapping[str, torch.Tensor], chosen: Int64, clip_norm: float
    ) -> Int64:
        """The sum (values,) over the `chosen` records, in steps of `clip_norm`·2⁻¹⁶."""

        def rows(x: torch.Tensor, y: torch.Tensor) -> Parts:
            found = self._gradients(weights, x, y)
            return [found[name].flatten(1) for name in weights]

        return self._sums.total(rows, chosen, clip_norm)


def record_gradients(network: Network) -> Gradients:
    """The gradients (n, …) of the cross-entropy of n records, each by itself, of every weight."""
    from torch.func import grad, vmap

    return vmap(grad(_loss_of(network)), in_dims=(None, 0, 0))


def record_losses(network: Network) -> Losses:
    """The cross-entropies (n,) of n records, each by itself even where a model mixes batches."""
    from torch.func import vmap

    return vmap(_loss_of(network), in_dims=(None, 0, 0))


def _loss_of(network: Network) -> Losses:
    import torch

    def loss(weights: Mapping[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(network.logits(weights, x[None]), y[None])

    return loss


def to_steps(rows: list[torch.Tensor], there: torch.Tensor, clip_norm: float) -> list[torch.Tensor]:
    """Rows of float32 parts (n, …), clipped, as whole steps; 0 where not `there` or not finite."""
    norms = _squared_norms(rows).sqrt().clamp(min=clip_norm)
    scale = (AIM * 2.0**RECORD_BITS / norms * there.to(norms.device)).float()[:, None]
    # Toward zero, as `trunc` does, which torch does not vectorise: 20 times slower on a CPU.
    whole = [part.abs().mul_(scale.to(part.device)).floor_().copysign_(part) for part in rows]
    kept = _squared_norms(whole) <= LIMIT * 4.0**RECORD_BITS  # not so for what is no number
    if not bool(kept.all()):
        whole = [part.masked_fill_(~kept.to(part.device)[:, None], 0.0) for part in whole]
    return whole


def in_places(
    chosen: Int64, places: int, empty: int, random_bytes: RandomBytes
) -> NDArray[np.int64]:
    """Blocks (k, places) of the chosen records, each at its own uniform place, the rest `empty`.

    At least one block, so that what a device can do does not follow from its records.
    """
    drawn = np.frombuffer(random_bytes(len(chosen)), np.uint8).astype(np.int64) % places
    order = np.argsort(drawn, kind="stable")
    ordered = drawn[order]
    turn = np.arange(len(order)) - np.searchsorted(ordered, ordered)  # among those of a place
    blocks = np.full((int(turn.max(initial=0)) + 1, places), empty, np.int64)
    blocks[turn, ordered] = chosen[order]
    return blocks


def _squared_norms(rows: list[torch.Tensor]) -> torch.Tensor:
    """Squared L2 norms (n,), float64, off by less than 2⁻¹³ of themselves: sums of chunks."""
    import torch

    parts = []
    for part in rows:
        even = part.shape[1] // CHUNK * CHUNK
        for piece in (part[:, :even].reshape(len(part), -1, CHUNK), part[:, None, even:]):
            norms = torch.linalg.vector_norm(piece, dim=2)
            # MPS has no float64.
            norms = norms.cpu() if norms.device.type == "mps" else norms
            parts.append(norms.double().square().sum(1))
    return torch.stack(parts).sum(0)
