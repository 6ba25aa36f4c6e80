"""What a device is told of its upload, also where it was away when the round's record came."""

from __future__ import annotations

from pathlib import Path

from edgeveil.protocol.messages import Manifest
from tests.kits.fleet import Fleet, small_job

FOUR_OF_FIVE = {"deadline_s": 20.0, "min_batch": 3, "quorum": 0.8, "grace_s": 1.0}


def told(fleet: Fleet, device: int) -> dict[int, str]:
    """By exchange, what the device knows of its upload."""
    return {one.round: one.state for one in fleet.devices[device].store.receipts()}


def newest_round(fleet: Fleet) -> int:
    kept = [one.header for one in fleet.proxy.machine.memory.kept.values()]
    rounds = [h.at.exchange for h in kept if isinstance(h, Manifest) and h.kind == "round"]
    return max(rounds, default=0)


def test_a_device_that_comes_back_in_the_next_round_hears_what_became_of_its_upload(
    tmp_path: Path,
) -> None:
    fleet = Fleet(tmp_path, 5)
    fleet.submit(small_job(round=FOUR_OF_FIVE))
    box = fleet.devices[0]
    fleet.net.run(lambda: told(fleet, 0).get(1) == "held")
    box.runner.up = False
    fleet.net.run(lambda: newest_round(fleet) == 2)
    assert told(fleet, 0)[1] == "held"
    box.runner.up = True
    fleet.net.connect(box.runner)
    assert fleet.net.run(lambda: told(fleet, 0)[1] == "counted", fleet.net.now_s + 3)
