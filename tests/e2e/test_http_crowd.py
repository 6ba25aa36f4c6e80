"""Crowds of connections at the HTTP pages leave cloud and proxy working."""

import resource
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from edgeveil.transport.listener import MOST_CONNECTIONS
from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.slow
CROWD = 1000
FILES = 1024


@contextmanager
def crowd(port):
    """So many connections that say nothing."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(CROWD)
        ]


@pytest.fixture
def own_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.drill
@pytest.mark.usefixtures("own_files")
def test_a_thousand_silent_connections_leave_brokers_devices_and_pages_served(tmp_path):
    with LiveSite(tmp_path) as live:
        for name, site in (("cloud", live.site.cloud), ("proxy", live.site.proxy)):
            # The soft limit is what a login shell gives; the hard one cannot be passed.
            live.start(name, site, files=(256, FILES))
        wait_for(live.answers, "the cloud's start")
        wait_for(live.proxy_status, "the proxy's start")
        ports = live.spec.ports
        with crowd(ports.cloud_http) as at_cloud, crowd(ports.proxy_http) as at_proxy:
            for name, pages in (("cloud", at_cloud), ("proxy", at_proxy)):
                files = Path(f"/proc/{live.processes[name].pid}/fd")
                held = MOST_CONNECTIONS + 128  # and those it has for itself
                assert len(list(files.iterdir())) < held, name
                for one in pages:  # beyond the bound at once, the others for their silence
                    assert one.recv(1) == b"", name
            # The crowd is cut by the other side alone. New ones over HTTP and MQTT:
            assert live.answers()
            live.start("edge", *live.site.edges)
            live.wait_ready()
        live.completed(live.submit(rounds=1, every=0))
        for name in ("cloud", "proxy"):
            assert "Too many open files" not in live.log(name)
            assert live.stop(name) == 0
            assert "Traceback" not in live.log(name)
