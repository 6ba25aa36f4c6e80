"""The blocks of the guides' commands, and how a test plays them as they stand."""

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
    """Of a page below the repository's root; `kind` is what stands behind its opening fence."""
    text = (ROOT / page).read_text("utf-8")
    return re.findall(rf"^```{re.escape(kind)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def await_free(*ports):
    """A guide names its ports: wait for those of a guide before, say which is taken for good."""
    for port in ports:
        wait_for(lambda port=port: _free(port), f"that port {port} is free", limit_s=20)


def _free(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def started(script, folder):
    """`bash -e` on the script, what it says in `folder/log`; all that it started ends with it."""
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
