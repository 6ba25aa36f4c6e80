"""Log lines of the processes: text for people, JSON for machines; only named fields are written."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.name,
            "what": record.getMessage(),
            **_fields(record),
        }
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        rest = " ".join(f"{key}={value}" for key, value in _fields(record).items())
        line = f"{time} {record.levelname.lower():7} {record.name}: {record.getMessage()} {rest}"
        # A value from the wire must not begin a line of its own or steer the terminal.
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def formatter(form: str) -> logging.Formatter:
    """Of lines in `text` or `json`."""
    return _Json() if form == "json" else _Text()


def setup(level: str, form: str) -> None:
    """Send this process's lines to standard error; foreign libraries speak up from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("edgeveil").setLevel(level.upper())
