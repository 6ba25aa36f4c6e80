"""The fleet of a simulation: the same model as the encrypted one's, and the same every time."""

import pytest

from edgeveil.testing import PlainSealing
from tests.kits.fleet import Fleet, small_job

pytestmark = pytest.mark.slow

PLAIN = {"sealing": PlainSealing(), "packet_bytes": 1 << 22}


def model(folder, seed=7, devices=6, **options):
    """The final model of a small job; five of the devices are asked each round."""
    fleet = Fleet(folder, devices, seed=seed, **options)
    job = fleet.submit(small_job(selection={"devices": 5}))
    assert fleet.finish(job) == "completed"
    release = fleet.store.release(job)
    fleet.close()
    assert release is not None
    return release.safetensors


def test_encryption_changes_nothing_of_what_is_learned(tmp_path):
    assert model(tmp_path / "plain", **PLAIN) == model(tmp_path / "encrypted")
