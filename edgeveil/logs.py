"""Log lines of the processes: text for people, JSON for machines; only named fields are written.
Job and round stand in each: `follow` ties a task to the `Place` that its runtime keeps up to
date."""

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
    """The job and the round that lines are about; None where there is none."""

    job: str | None = None
    round: int | None = None


_NOWHERE = Place()
_here: ContextVar[Place] = ContextVar("edgeveil_place", default=_NOWHERE)


def follow(place: Place) -> None:
    """From here on lines of this task, and of those that it starts, are about `place`."""
    _here.set(place)


def _event(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    here = _here.get()
    # What begins with an underscore is a library's own: Ray puts a time of its own into all lines.
    own = {k: v for k, v in record.__dict__.items() if k not in _STANDARD and k[0] != "_"}
    text, fields = record.getMessage(), {"job": here.job, "round": here.round, **own}
    if record.name.split(".")[0] == OURS:
        return text, fields
    # Of a library the first line alone: what follows may quote an exception, and that may quote
    # a record.
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
        rest = "".join(f" {key}={value}" for key, value in known.items())
        line = f"{time} {record.levelname.lower():7} {record.name}: {event}{rest}"
        return printable(line)


def printable(line: str) -> str:
    """What came over the wire must not begin a line of its own or steer the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def formatter(form: str) -> logging.Formatter:
    """Of lines in `text` or `json`."""
    return _Json() if form == "json" else _Text()


def setup(level: str, form: str) -> None:
    """Send this process's lines to standard error, from `level` on or as `ask` was given."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(form))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(OURS).setLevel((_asked or level).upper())


def ask(level: str) -> None:
    """Log from this level on, as a command line asks, whatever a site file says."""
    global _asked
    _asked = level
    setup(level, "text")
