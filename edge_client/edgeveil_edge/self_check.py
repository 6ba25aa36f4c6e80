"""Whether a device can do its work on this box, told to its owner before a round finds out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import psutil

from edgeveil.errors import EdgeVeilError, UsageError
from edgeveil.jobs.job import JobData
from edgeveil.parts.methods import trains_model
from edgeveil.parts.own_records import own_records
from edgeveil.parts.sources import require_header, source_part
from edgeveil.sites.edge import EdgeSite
from edgeveil.units import EARLIEST_S, byte_text
from edgeveil_edge.conditions import BoxSensors

AHEAD_S = 86400.0  # a file may be of a clock that was set since
LEAST_MEMORY_BYTES = 256 << 20  # the device, its computing process and their libraries


@dataclass(frozen=True)
class BoxFacts:
    """What the check asks the box, each to be put in place of."""

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
    """What stands against this device's work, each with its fix; empty: nothing.

    With `read_records` all records are read, which may take long; else only that files are there.
    They are read as the job that has `asked` for them does.
    """
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
        yield UsageError(
            f"method '{method}' needs torch, which is not installed",
            where="policy.allowed_methods",
            fix="pip install 'edgeveil[train]', or allow it no longer",
        )


def _clock(site: EdgeSite, facts: BoxFacts) -> Iterator[UsageError]:
    now_s = facts.now_s()
    files = site.state_dir.glob("*") if site.state_dir.is_dir() else ()
    newest_s = max((one.lstat().st_mtime for one in files), default=0.0)
    if now_s < max(EARLIEST_S, newest_s - AHEAD_S):
        shown = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        what = f"the clock says {shown}, before this device's own files or this program"
        yield UsageError(what, where="clock", fix="set it, as by a time service (NTP)")


def _room(site: EdgeSite, facts: BoxFacts) -> Iterator[UsageError]:
    try:
        yield from _disk(site, facts)
        yield from _memory(facts)
    except OSError as error:
        what = f"how much room there is cannot be told ({error.strerror})"
        yield UsageError(
            what, where=str(error.filename or "box"), fix="mount /proc, where it lacks"
        )


def _disk(site: EdgeSite, facts: BoxFacts) -> Iterator[UsageError]:
    asked = site.limits.blob_bytes + site.limits.outbox_bytes
    free = facts.free_bytes(site.state_dir)
    if free < asked:
        yield UsageError(
            f"{byte_text(free)} are free, a round may take {byte_text(asked)}",
            where=str(site.state_dir),
            fix="make room, or lower limits.blob_bytes and limits.outbox_bytes",
        )


def _memory(facts: BoxFacts) -> Iterator[UsageError]:
    memory_bytes = facts.memory_bytes()
    if memory_bytes < LEAST_MEMORY_BYTES:
        yield UsageError(
            f"{byte_text(memory_bytes)} are available, it takes {byte_text(LEAST_MEMORY_BYTES)}",
            where="memory",
            fix="end other programs, or set conditions for a time when there is more",
        )


def _data(site: EdgeSite, read_records: bool, asked: JobData | None) -> Iterator[EdgeVeilError]:
    path = site.data.path
    if site.data.header is None:
        try:
            require_header(site.data.source, None, None)
        except EdgeVeilError as error:
            yield error
            return
    if asked is not None and asked.source != site.data.name:
        yield UsageError(
            f"the job learns from '{asked.source}', this device's data set is called"
            f" '{site.data.name}': it would sit the job out",
            where="data.name",
            fix="check with a job that is about these records",
        )
        return
    if path is not None and not path.exists():
        yield UsageError("is not there", where=str(path), fix="check data.path of the site file")
    elif read_records:
        try:
            own_records(site.data, None if asked is None else asked.schema_)
        except EdgeVeilError as error:
            yield error if asked is not None else _plainly(site, error)


def _plainly(site: EdgeSite, error: EdgeVeilError) -> EdgeVeilError:
    """Why the records cannot be read as plain numbers, which need not be how jobs read them."""
    if not source_part(site.data.source).by_schema:
        return error
    by_schema = "where only a job's data.schema may read it: name the job's file too"
    fix = f"{error.fix}; {by_schema}" if error.fix else by_schema
    return UsageError(error.what, where=error.where, fix=fix)
