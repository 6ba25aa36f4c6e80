"""The command blocks of the guides, played by tests unchanged."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.kits.live_site import wait_for

ROOT = Path(__file__).parents[2]


def blocks(page, kind):
    """Return the blocks of a page below the repository's root; `kind` is the fence's language."""
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def await_free(*ports):
    """Wait until a guide's ports are free; fails with the ports that stay in use."""
    for port in ports:
        wait_for(lambda port=port: is_free(port), f"that port {port} is free", limit_s=20)


def is_free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def started(script, folder):
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(15)
