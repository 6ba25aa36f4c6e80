"""What a job file says, and its refusals."""

from __future__ import annotations

from edgeveil.jobs.job import Job
from edgeveil.jobs.load import (
    KINDS,
    json_schema,
    line_of,
    load,
    load_job,
    load_scenario,
    parse_job,
)
from edgeveil.jobs.load_test import LoadOptions
from edgeveil.jobs.local_run import LocalRun

__all__ = [
    "KINDS",
    "Job",
    "LoadOptions",
    "LocalRun",
    "json_schema",
    "line_of",
    "load",
    "load_job",
    "load_scenario",
    "parse_job",
]
