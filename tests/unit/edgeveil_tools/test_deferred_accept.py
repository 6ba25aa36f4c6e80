"""What stays silent is held back from another process's listening sockets."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeveil_tools.site.deferred_accept import defer_accepts

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's own")

# It listens, and opens and closes something else all the time, as a broker does that is starting.
BUSY = """
import socket
listening = socket.create_server(("127.0.0.1", 0))
print("ready", flush=True)
while True:
    socket.socket().close()
    open("/dev/null").close()
"""


def test_what_is_closed_meanwhile_is_passed_over() -> None:
    child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert {defer_accepts(child.pid) for _ in range(2000)} == {1}
    finally:
        child.kill()
        child.communicate()
