import pytest

from edgeveil_proxy.registry import Registry
from edgeveil_proxy.spool import Spool


@pytest.fixture
def path(tmp_path):
    return tmp_path / "spool.sqlite"


@pytest.fixture
def spool(path):
    spool = Spool(path)
    yield spool
    spool.close()


@pytest.fixture
def registry(tmp_path):
    found = Registry(tmp_path / "registry.sqlite", limit=50)
    yield found
    found.close()


class Clock:
    now_s = 1_000_000.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()
