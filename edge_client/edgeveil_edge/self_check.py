"""Check of a device's box before its first round: libraries, clock, room, records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from edgeveil.config.edge import EdgeSite
from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.jobs.job import JobData
from edgeveil.parts.methods import trains_model
from edgeveil.parts.own_records import own_records
from edgeveil.parts.sources import require_header, source_part
from edgeveil.units import EARLIEST_S, byte_text
from edgeveil_edge.conditions import BoxSensors

AHEAD_S = 86400.0  # tolerance: a file may be older than a correction of the clock
LEAST_MEMORY_BYTES = 256 << 20  # the device, its computing process and their libraries


@dataclass(frozen=True)
class BoxFacts:
    """Measurements of the box, replaceable in tests."""

    now_s: Callable[[], float] = time.time
    installed: Callable[[str], bool] = lambda library: find_spec(library) is not None
    free_bytes: Callable[[Path], int] = lambda folder: BoxSensors().storage_bytes(folder)[0]
    memory_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().available)


def self_check(
    site: EdgeSite,
    facts: BoxFacts | None = None,
    *,
    read_records: bool = False,
    asked: JobData | None = None,
) -> list[str]:
    """Return problems with fixes; `read_records` reads all, as the job `asked` would."""
    facts = facts or BoxFacts()
    found = [*_extras(site, facts), *_clock(site, facts), *_room(site, facts)]
    return [str(one) for one in (*found, *_data(site, read_records, asked))]


def _extras(site: EdgeSite, facts: BoxFacts) -> Iterator[UsageError]:
    if not facts.installed("onnxruntime"):
        what, fix = "ONNX Runtime is not installed", "pip install 'edgeveil[infer]'"
        yield UsageError(what, where=f"role {site.role}", fix=fix)
    if site.role != "train" or facts.installed("torch"):
        return
    for method in filter(trains_model, site.policy.allowed_methods):
        what, fix = f"method '{method}' needs torch", "pip install 'edgeveil[train]', or forbid it"
        yield UsageError(what, where="policy.allowed_methods", fix=fix)


def _clock(site: EdgeSite, facts: BoxFacts) -> Iterator[UsageError]:
    now_s = facts.now_s()
    files = site.state_dir.glob("*") if site.state_dir.is_dir() else ()
    newest_s = max((one.lstat().st_mtime for one in files), default=0.0)
    if now_s < max(EARLIEST_S, newest_s - AHEAD_S):
        shown = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        what = f"the clock shows {shown}, earlier than this device's files or this program"
        yield UsageError(what, where="clock", fix="set it, as by a time service (NTP)")


def _room(site: EdgeSite, facts: BoxFacts) -> Iterator[UsageError]:
    try:
        asked = site.limits.blob_bytes + site.limits.outbox_bytes
        free, memory_bytes = facts.free_bytes(site.state_dir), facts.memory_bytes()
        if free < asked:
            what = f"{byte_text(free)} are free, a round may need {byte_text(asked)}"
            fix = "free some space, or lower limits.blob_bytes and limits.outbox_bytes"
            yield UsageError(what, where=str(site.state_dir), fix=fix)
        if memory_bytes < LEAST_MEMORY_BYTES:
            least = byte_text(LEAST_MEMORY_BYTES)
            what = f"{byte_text(memory_bytes)} are available, {least} are needed"
            fix = "end other programs, or set conditions for a time with more memory"
            yield UsageError(what, where="memory", fix=fix)
    except OSError as error:
        what = f"free disk space and memory cannot be measured ({error.strerror})"
        where, fix = str(error.filename or "box"), "mount /proc, where it lacks"
        yield UsageError(what, where=where, fix=fix)


def _data(site: EdgeSite, read_records: bool, asked: JobData | None) -> Iterator[EdgeVeilError]:
    path = site.data.path
    if site.data.header is None:
        try:
            require_header(site.data.source, None, None)
        except EdgeVeilError as error:
            yield error
            return
    if asked is not None and asked.source != site.data.name:
        what = f"the job is for '{asked.source}', this device would sit the job out"
        yield UsageError(what, where="data.name", fix="check with a job about these records")
        return
    if path is not None and not path.exists():
        yield UsageError("is not there", where=str(path), fix="check data.path of the site file")
    elif read_records:
        try:
            own_records(site.data, None if asked is None else asked.schema_)
        except EdgeVeilError as error:
            if asked is not None or not source_part(site.data.source).by_schema:
                yield error
                return
            by_schema = "where only a job's data.schema may read it: add the job's file"
            fix = f"{error.fix}; {by_schema}" if error.fix else by_schema
            yield UsageError(error.what, where=error.where, fix=fix)
