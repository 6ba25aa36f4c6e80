"""`edgeveil cloud --track`: what logs its jobs, as a child of the cloud's command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgeveil_tools.lifeline import Lifeline
from edgeveil_tools.local.children import spawn
from edgeveil_tools.tracking.tracker import TrackTarget

KEPT_FILE = "tracking.json"
_STOP_S = 5.0


@contextmanager
def tracking_beside(config: Path, state_dir: Path, targets: Sequence[str]) -> Iterator[None]:
    """`edgeveil job track` meanwhile, of the cloud with this site file.

    It ends with the cloud; its own end is told on the console and changes nothing else. Raises
    UsageError for targets that are none.
    """
    for one in targets:
        TrackTarget.parse(one)
    said = [word for one in targets for word in ("--track", one)]
    kept = ["--kept", str(state_dir / KEPT_FILE)]
    line = Lifeline()
    child = spawn(
        ["job", "track", "--config", str(config), *kept, *said],
        sys.stderr.fileno(),
        line,
        threads=1,
    )
    try:
        yield
    finally:
        child.terminate()
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        line.close()
