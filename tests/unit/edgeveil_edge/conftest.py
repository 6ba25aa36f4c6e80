import pytest
from edge_kit import PLAN, Device


@pytest.fixture
def device(tmp_path):
    """One that has learned the small job."""
    return Device(tmp_path).knows(PLAN)
