"""The fleet of a simulation: the same model as the encrypted one's, and the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeveil.testing import PlainSealing, SimulationSeeds
from tests.kits.fleet import Fleet, small_job

pytestmark = pytest.mark.slow

PLAIN = {"sealing": PlainSealing(), "packet_bytes": 1 << 22}


def model(folder: Path, seed: int = 7, devices: int = 6, **options: object) -> bytes:
    """The final model of a small job; five of the devices are asked each round."""
    fleet = Fleet(folder, devices, seed=seed, **options)
    job = fleet.submit(small_job(selection={"devices": 5}))
    assert fleet.finish(job) == "completed"
    release = fleet.store.release(job)
    fleet.close()
    assert release is not None
    return release.safetensors


def test_encryption_changes_nothing_of_what_is_learned(tmp_path: Path) -> None:
    assert model(tmp_path / "plain", **PLAIN) == model(tmp_path / "encrypted")


def test_the_same_devices_are_asked_whatever_their_keys_are() -> None:
    devices = [bytes([number]) * 32 for number in range(20)]
    drawn = [SimulationSeeds(3).choose(devices, 5) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert SimulationSeeds(4).choose(devices, 5) != drawn[0]


def test_every_device_draws_noise_of_its_own() -> None:
    seeds = SimulationSeeds(7)
    streams = [seeds.noise(device) for device in (1, 2, 1)]
    first, second, again = (stream(64) for stream in streams)
    assert first == again != second
    assert streams[0](64) != first
    assert SimulationSeeds(8).noise(1)(64) != first
