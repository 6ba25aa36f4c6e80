"""`edgeveil validate FILE…`: says what is wrong with configuration files, and starts nothing."""

from __future__ import annotations

from pathlib import Path

from fl_core.config import load
from fl_core.errors import ConfigError


def validate(paths: list[Path]) -> int:
    """Print `FILE: ok (kind)` or every problem of each file.

    Returns 0 where all are sound, else 2. Whether the keys, passwords and data that a site
    file names exist is for the process to see when it starts.
    """
    code = 0
    for path in paths:
        try:
            kind, _ = load(path)
        except ConfigError as error:
            print(error)
            code = error.exit_code
        else:
            print(f"{path}: ok ({kind})")
    return code
