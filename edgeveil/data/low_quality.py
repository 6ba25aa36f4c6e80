"""Low-quality records for demonstrations: wrong labels and noisy values on some devices, seeded.

The scenario of Cao et al. 2023 (section 5): a share `lq_user` of the users hold a share `lq_data`
of records that are disturbed and have another class. The text gives no strength of the noise;
`lq_noise` does. By index, for published data sets; own records: `edgeveil/data/own_dealing.py`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeveil.data.order import public_chance, public_order
from edgeveil.data.partition import Shares
from edgeveil.data.records import Records


class LowQuality(Protocol):
    """How many devices and records are disturbed, and how much."""

    @property
    def lq_user(self) -> float: ...
    @property
    def lq_data(self) -> float: ...
    @property
    def lq_noise(self) -> float: ...


def low_quality_devices(devices: int, rule: LowQuality, seed: int) -> NDArray[np.int64]:
    """Ascending numbers, from 0, of the devices that hold low-quality records."""
    if not rule.lq_data:
        return np.empty(0, np.int64)
    count = _share(devices, rule.lq_user)
    return np.sort(public_order(devices, seed, "low-quality devices")[:count])


def disturbed(records: Records, shares: Shares, rule: LowQuality, seed: int) -> Records:
    """The records as devices hold them: a copy in which the low-quality ones are replaced.

    A disturbed record has any other class of the data set, each equally likely, and its values
    have Gaussian noise of `lq_noise` times the data set's range, cut off at that range.
    """
    chosen = low_quality_devices(len(shares), rule, seed)
    classes = np.unique(records.y)
    if not len(chosen) or len(classes) < 2:
        return records
    x, y = records.x.copy(), records.y.copy()
    finite = records.x[np.isfinite(records.x)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    for device in chosen:
        share = shares[device]
        order = public_order(len(share), seed, f"low-quality records {device}")
        spoilt = np.sort(share[order[: _share(len(share), rule.lq_data)]])
        chance = public_chance(seed, f"low quality {device}")
        others = chance.randint(1, len(classes), len(spoilt), dtype=np.int64)
        y[spoilt] = classes[(np.searchsorted(classes, y[spoilt]) + others) % len(classes)]
        noise = chance.standard_normal(x[spoilt].shape) * (rule.lq_noise * (high - low))
        x[spoilt] = np.clip(x[spoilt] + noise, low, high)
    return Records(x, y)


def _share(count: int, share: float) -> int:
    return int(np.floor(count * share + 0.5))
