"""`python -m edgeveil_lab.bench.buffered`: rounds that wait, that leave out, that are buffered.

Ten boxes in virtual time, each with the digits of two classes; answers take four of them eight
times as long. The real machines, hosts, ledgers and training; no noise, so that what is compared is
the rounds alone.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgeveil.evaluation.figures import ACCURACY, leading_text
from edgeveil.jobs import Job
from edgeveil.sites.data import Partition
from edgeveil.sites.policy import Policy
from edgeveil.testing import DIGITS, MemoryFleet, PlainSealing, device_sites
from edgeveil_cloud.stored_jobs import wire_id
from edgeveil_edge.store import trial_name
from edgeveil_tools.local.children import scratch

DEVICES, SLOW, WANTED = 10, 4, 6
FAST_S, SLOW_S = 0.3, 2.4  # what a trial on made-up records took
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "sync, all awaited": (20, {"quorum": 1.0}),
    "sync, of the fast alone": (40, {"quorum": 1.0, "budget_s": 4 * FAST_S}),
    f"buffered, {WANTED}": (40, {"mode": "buffered", "buffer": WANTED}),
    f"buffered, {WANTED}, longer": (80, {"mode": "buffered", "buffer": WANTED}),
    f"buffered, {WANTED}, late ones whole": (
        40,
        {"mode": "buffered", "buffer": WANTED, "staleness_exponent": 0.0},
    ),
}


def played(
    folder: Path, rounds: int, round_: dict[str, Any], seed: int
) -> tuple[tuple[float, ...], dict[str, Any]]:
    """(virtual seconds, accuracy half-way, at the end, share of slow boxes' updates that count),
    and the figures of the last model."""
    job = Job.model_validate(
        {
            "job": "bench",
            "data": {
                "source": "digits",
                "classes": 10,
                "input_shape": (64,),
                "nominal_records": 150,
            },
            "model": {"name": "mlp", "hidden": (), "input_scale": 16.0},
            "train": {"method": "sgd", "rounds": rounds, "learning_rate": 0.5},
            "privacy": {"accept_unproven": True},
            "round": {"deadline_s": 60.0, "budget_s": 8.0, "min_batch": 3, **round_},
        }
    )
    policy = Policy(allowed_methods=("sgd",), accept_unproven=True, accept_unprotected=True)
    dealt = Partition(kind="n_class", classes_per_device=2)
    sites = device_sites(DEVICES, DIGITS, partition=dealt, policy=policy, seed=seed)
    fleet = MemoryFleet(folder, sites, test_data=DIGITS, sealing=PlainSealing(), seed=seed)
    try:
        job_id, boxes = fleet.submit(job), fleet.devices
        trial, begun_s = trial_name(wire_id(job_id)), fleet.net.now_s
        fleet.net.run(lambda: all(box.store.fact(trial) for box in boxes))
        for number, box in enumerate(boxes):
            needed_s = FAST_S if number < DEVICES - SLOW else SLOW_S
            box.store.put_fact(trial, json.dumps({"needed_s": needed_s, "refused": ""}))
        fleet.finish(job_id, 1e6)
        events = fleet.store.events_after(0, job_id)
        commits = [e.data for e in events if e.type == "exchange_committed"]
        reached = [one["accuracy"] for one in commits]
        states = [one.state for box in boxes[-SLOW:] for one in box.store.receipts()]
        counted = states.count("counted") / (SLOW * rounds)
        seconds = fleet.net.now_s - begun_s
        half = reached[len(reached) // 2 - 1]
        return (seconds, half, reached[-1], counted), commits[-1]["figures"]
    finally:
        fleet.close()


def main() -> None:
    """One table; means of three seeds. It takes some minutes."""
    logging.disable()
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("rounds", "", "virtual s", "half-way", "accuracy", "slow boxes count in"):
        table.add_column(column, justify="left" if not column else "right")
    figures: dict[str, Any] = {}
    lowest = 1.0
    for way, (rounds, round_) in WAYS.items():
        found = []
        for seed in (7, 8, 9):
            with scratch(keep=False, in_memory=True) as folder:
                reached, figures = played(folder, rounds, round_, seed)
                found.append(reached)
        seconds, half, last, counted = (sum(one) / len(found) for one in zip(*found, strict=True))
        lowest = min(lowest, half, last)
        row = (f"{seconds:.0f}", f"{half:.3f}", f"{last:.3f}", f"{counted:.0%}")
        table.add_row(str(rounds), way, *row)
    table.caption = f"the lowest accuracy: {leading_text(ACCURACY, lowest, figures)}"
    Console().print(table)


if __name__ == "__main__":
    main()
