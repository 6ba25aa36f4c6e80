import pytest

from edgeveil.transport.blob_client import BlobClient


@pytest.fixture
def client():
    made = BlobClient(silent_s=1.0, first_pause_s=0.01)
    yield made
    made.close()
