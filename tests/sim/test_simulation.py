"""The fleet of a simulation: the same model as the encrypted one's, and the same every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeveil.testing import PlainSealing
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
