"""The code of an earlier commit, to run beside today's."""

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Before devices numbered their answers: its hellos and uploads lack those fields.
EARLIER = "67360939fccd63985d46d83a97254c63a7b3c70f"
# Before settings and commands were halved: its site files have 211 keys.
BEFORE_HALF = "4bc41794"
SOURCES = ("edgeveil", "edge_client", "cloud_server", "proxy", "tools")


def earlier_code(folder, commit=EARLIER):
    """Return the environment of a process that runs it; skips if the history is missing."""
    command = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, *SOURCES]
    made = subprocess.run(command, capture_output=True)
    if made.returncode:
        pytest.skip(f"the history of {commit} is not here: {made.stderr.decode().strip()[-200:]}")
    with tarfile.open(fileobj=BytesIO(made.stdout)) as archive:
        archive.extractall(folder, filter="data")
    paths = [str(folder), *(str(folder / name) for name in SOURCES[1:])]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    where = [sys.executable, "-c", "import edgeveil; print(edgeveil.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, env=environ, cwd=folder.parent)
    assert found.stdout.startswith(str(folder)), found.stdout + found.stderr
    return environ
