"""Which of a device's evaluation records speak in a `per_sample` upload: at most one a slot.

A record's slot and its rank there follow from a keyed hash of its own bytes. So adding or removing
one record changes what stands in one slot, its own, and nothing elsewhere: if it ranks first there
it takes the slot from, or leaves it to, the next one. How many slots there are is public.
"""

from __future__ import annotations

import hmac

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.labels import EVALUATION_SLOT, context
from edgeveil.data.limits import canonical_rows

EMPTY = -1


def slot_records(x: NDArray[np.float32], slots: int, key: bytes) -> NDArray[np.int64]:
    """The index in x (n, ...) of each slot's record (slots,); `EMPTY` where there is none.

    By HMAC-SHA256 under the device's split `key`, with a label of its own: 16 bytes choose the
    slot, the whole digest ranks, the least first. Records with NaN or infinity take no slot.
    Equal records have one place, whichever of them holds it.
    """
    rows = canonical_rows(x)
    held = np.full(slots, EMPTY, dtype=np.int64)
    ranks = [b""] * slots
    for index in np.flatnonzero(np.isfinite(rows).all(axis=1)):
        rank = hmac.digest(key, context(EVALUATION_SLOT, rows[index].tobytes()), "sha256")
        slot = int.from_bytes(rank[:16], "big") % slots
        if held[slot] == EMPTY or rank < ranks[slot]:
            held[slot], ranks[slot] = index, rank
    return held
