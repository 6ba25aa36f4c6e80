import pytest

from edgeveil_proxy.spool import Spool


@pytest.fixture
def path(tmp_path):
    """Where the spool's file is, or is to be."""
    return tmp_path / "spool.sqlite"


@pytest.fixture
def spool(path):
    spool = Spool(path)
    yield spool
    spool.close()
