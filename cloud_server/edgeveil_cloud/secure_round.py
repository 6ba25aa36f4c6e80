"""A round under masks between its two steps: what was added up, until its masks are taken away.

It is durable before the proxy is asked, since the proxy answers for one choice of uploads only:
another batch, or another look at the same, could come to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import ProtocolError
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.exchange import Array
from edgeveil.protocol.messages import Batch, Unmask
from edgeveil.protocol.sealed import RoundCheck, choice, chosen_of, dealt, masked_vectors
from edgeveil.protocol.tensors import (
    exact_sums,
    pack_tensors,
    packed_vectors,
    unpack_tensors,
    unpacked_vectors,
)
from edgeveil_cloud.round_secret import RoundSecret
from edgeveil_cloud.validate_batch import ValidatedBatch

_MARK_BYTES = 32


class KeptSums(msgspec.Struct, frozen=True, array_like=True):
    """The sums under masks of one cell's batch, the question for their masks, and what else it
    brought."""

    batch: Batch
    unmask: Unmask
    uploads: int
    totals: bytes
    softmax: bytes
    accepted: bytes
    refused: dict[str, int]

    @classmethod
    def of(cls, batch: Batch, valid: ValidatedBatch) -> KeptSums:
        """What a validated batch comes to."""
        chosen = choice(valid.chosen, valid.masked)
        rows = valid.arrays.get(SOFTMAX, ())
        stacked = {SOFTMAX: np.stack([np.asarray(row) for row in rows])} if rows else {}
        return cls(
            batch,
            Unmask(batch.at, batch.blob.digest, chosen),
            len(valid.chosen),
            b"".join(map(packed_vectors, valid.totals)),
            pack_tensors(stacked),
            b"".join(valid.accepted),
            dict(valid.refused),
        )

    def valid(self) -> ValidatedBatch:
        """The batch again, but for its sums."""
        rows = unpack_tensors(self.softmax)
        starts = range(0, len(self.accepted), _MARK_BYTES)
        marks = [self.accepted[start : start + _MARK_BYTES] for start in starts]
        arrays: dict[str, Sequence[Array]] = {name: list(rows[name]) for name in rows}
        return ValidatedBatch(arrays, marks, Counter(self.refused))

    @property
    def chosen(self) -> list[int]:
        """Which uploads are in the sums, by their place in the batch."""
        uploads = 8 * len(self.unmask.chosen)
        return chosen_of(self.unmask.chosen, uploads)

    def sums(
        self, context: RoundContext, masks: bytes, secret: RoundSecret
    ) -> list[tuple[int, dict[str, NDArray[np.int64]]]]:
        """Of each set of uploads how many they are, and their exact sums in the segments' shapes.

        Raises ProtocolError `wrong_mask_sums`.
        """
        vectors = masked_vectors(self.batch.at, context.groups, context.masked)
        check = RoundCheck.of(self.batch.at, secret.membership, disclosed=secret.checked)
        shapes = {spec.name: spec.shape for spec in context.segments}
        size, sets = sum(one.ring.byte_count for one in vectors), context.sets
        if len(masks) != size * sets:
            raise ProtocolError("wrong_mask_sums")
        result = []
        for number, members in enumerate(dealt(self.chosen, sets)):
            of_set = slice(number * size, (number + 1) * size)
            totals = unpacked_vectors(vectors, self.totals[of_set])
            sums = exact_sums(vectors, totals, masks[of_set], check)
            shaped = {name: numbers.reshape(shapes[name]) for name, numbers in sums.items()}
            result.append((len(members), shaped))
        return result


def pack_kept(by_cell: Mapping[str, KeptSums]) -> bytes:
    """What a round came to in its cells, for the store; of the cell without a name as ever."""
    return msgspec.msgpack.encode(by_cell if set(by_cell) != {""} else by_cell[""])


def unpack_kept(raw: bytes) -> dict[str, KeptSums]:
    """From the store, by cell."""
    kept = msgspec.msgpack.decode(raw, type=dict[str, KeptSums] | KeptSums)
    return {"": kept} if isinstance(kept, KeptSums) else kept


def kept_unmasks(raw: bytes) -> dict[str, Unmask]:
    """Each cell's question for its masks."""
    return {cell: kept.unmask for cell, kept in unpack_kept(raw).items()}
