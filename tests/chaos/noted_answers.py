"""Run a proxy that notes each sum of masks, in the file of `ANSWERS`, before it is sent."""

import hashlib
import os
import sys
from pathlib import Path

from edgeveil.protocol.proxy_rounds import SumMasks, SummedMasks
from edgeveil_proxy.role import ProxyHost
from edgeveil_tools.cli import main

ANSWERS = "CHAOS_ANSWERS"
_perform = ProxyHost.perform


def perform(self, task):
    found = _perform(self, task)
    if isinstance(task, SumMasks) and task.key is None and isinstance(found, SummedMasks):
        at, data = task.at, found.data
        digest = hashlib.sha256(data).hexdigest()
        line = f"{at.job_id.hex()} {at.round} {task.question.hex()} {digest} {len(data)}\n"
        with Path(os.environ[ANSWERS]).open("a", encoding="ascii") as file:
            file.write(line)
    return found


if __name__ == "__main__":
    ProxyHost.perform = perform
    sys.exit(main())
