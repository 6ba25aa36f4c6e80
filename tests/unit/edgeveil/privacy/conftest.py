import pytest

from edgeveil.privacy.ledger import Ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path):
    ledger = Ledger(path, "digits")
    yield ledger
    ledger.close()
