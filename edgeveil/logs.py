"""Log lines as text or JSON, with named fields only, among them job and round of the task."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

OURS = "edgeveil"
_asked = ""
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


@dataclass
class Place:
    job: str | None = None
    round: int | None = None


_NOWHERE = Place()
_here: ContextVar[Place] = ContextVar("edgeveil_place", default=_NOWHERE)


def follow(place: Place) -> None:
    """Log lines of this task, and of tasks it starts from now on, with `place`."""
    _here.set(place)


def _event(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    here = _here.get()
    # Fields with an underscore are a library's own: Ray adds a time of its own to all lines.
    own = {k: v for k, v in record.__dict__.items() if k not in _STANDARD and k[0] != "_"}
    text, fields = record.getMessage(), {"job": here.job, "round": here.round, **own}
    if record.name.split(".")[0] == OURS:
        return text, fields
    # Only a library's first line: further ones may quote an exception, and that a record.
    return "library", {**fields, "text": text.partition("\n")[0]}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event(record)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": record.name,
            "event": event,
            **fields,
        }
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event, fields = _event(record)
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        known = {key: value for key, value in fields.items() if value is not None}
        extra = "".join(f" {key}={value}" for key, value in known.items())
        line = f"{time} {record.levelname.lower():7} {record.name}: {event}{extra}"
        return printable(line)


def printable(line: str) -> str:
    """Escape control characters, so that input cannot start a line or control the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def formatter(form: str) -> logging.Formatter:
    return _Json() if form == "json" else _Text()


def setup(level: str, form: str) -> None:
    """Log to standard error from `level`, or from the level given to `ask`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(OURS).setLevel((_asked or level).upper())


def ask(level: str) -> None:
    """Log from this level of a command line, overriding the site file."""
    global _asked
    _asked = level
    setup(level, "text")
