"""The job that a load test runs, made from its options."""

from __future__ import annotations

from typing import Any

import yaml

from edgeveil_lab.load.local_site import MIN_BATCH
from edgeveil_lab.load.options import LoadOptions

MANY_ROUNDS = 10_000
_RETRIES = 2


_ROUNDING = 1e-6  # a share that means six devices must not ask for a seventh


def job_yaml(options: LoadOptions, enrolled: int, *, open_end: bool = False) -> bytes:
    """`noise_only` for all devices, in as many rounds as are asked for; with `open_end` until
    it is cancelled.

    All `enrolled` devices are selected; the quorum is of the test's own, which alone answer.
    """
    quorum = options.quorum
    if enrolled > options.devices:
        quorum = max(_ROUNDING, quorum * options.devices / enrolled - _ROUNDING / enrolled)
    rounds = MANY_ROUNDS if open_end or options.minutes is not None else options.rounds
    job: dict[str, Any] = {
        "job": "loadtest",
        "data": {"source": "digits", "classes": 10, "input_shape": [64], "nominal_records": 1},
        "features": [{"name": "identity"}],
        "train": {
            "method": "noise_only",
            "rounds": rounds,
            "values": options.values,
            "package_values": options.package_values,
        },
        "privacy": {"epsilon": 1.0},
        "selection": {"devices": "all", "min_devices": options.devices},
        "round": {
            "deadline_s": float(options.deadline_s),
            "quorum": quorum,
            "grace_s": float(options.grace_s),
            "min_batch": min(MIN_BATCH, options.devices),
            "retries": _RETRIES,
        },
        "unsupervised": {"every_rounds": 0, "eval_type": "NOT_EVAL"},
    }
    text: str = yaml.safe_dump(job, sort_keys=False)
    return text.encode()
