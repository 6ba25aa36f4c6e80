"""Crowds of connections at the HTTP pages leave cloud and proxy working."""

import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from edgeveil.transport.listener import MOST_CONNECTIONS
from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.drill
CROWD = 1000
FILES = 1024


@pytest.fixture
def crowd():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4096), limits[1]))
    with ExitStack() as stack:

        def connected(port):
            made = socket.create_connection(("127.0.0.1", port), timeout=60)
            return stack.enter_context(made)

        yield lambda port: [connected(port) for _ in range(CROWD)]
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_thousand_silent_connections_leave_brokers_devices_and_pages_served(tmp_path, crowd):
    with LiveSite(tmp_path) as live:
        for name, site in (("cloud", live.site.cloud), ("proxy", live.site.proxy)):
            # The soft limit is what a login shell gives; the hard one cannot be passed.
            live.start(name, site, files=(256, FILES))
        wait_for(live.answers, "the cloud's start")
        wait_for(live.proxy_status, "the proxy's start")
        ports = live.spec.ports
        crowds = {"cloud": crowd(ports.cloud_http), "proxy": crowd(ports.proxy_http)}
        for name, pages in crowds.items():
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
