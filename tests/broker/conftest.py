"""Real brokers for these tests: both engines, none skipped."""

from contextlib import ExitStack
from itertools import count

import pytest
from broker_harness import PASSWORDS, users_file

from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec
from tests.kits.certificates import issue


@pytest.fixture(params=["mosquitto", "amqtt"])
def engine(request):
    return request.param


@pytest.fixture(params=[5, 4], ids=["mqtt5", "mqtt311"])
def protocol(request):
    return request.param


@pytest.fixture
def start(tmp_path):
    """Starts brokers of these specs, and stops them all."""
    with ExitStack() as started:
        number = count()

        def start(users=PASSWORDS, **changes):
            folder = tmp_path / f"broker-{next(number)}"
            file = users_file(folder.with_suffix(".users"), users)
            process = BrokerProcess(BrokerSpec(**changes), folder, users_file=file)
            started.callback(process.stop)
            process.start()
            return process

        yield start


@pytest.fixture
def broker(engine, start):
    """An edge-side broker with its access list and four users."""
    return start(engine=engine, acl="edge")


@pytest.fixture
def pki(tmp_path):
    """Files of a CA, another CA, certificates for 127.0.0.1 and for elsewhere, and a client's."""
    authority = issue(tmp_path, "ca")
    issue(tmp_path, "stranger")
    issue(tmp_path, "here", issuer=authority, hosts=["127.0.0.1", "localhost"])
    issue(tmp_path, "elsewhere", issuer=authority, hosts=["broker.example"])
    issue(tmp_path, "ada", issuer=authority)
    return tmp_path
