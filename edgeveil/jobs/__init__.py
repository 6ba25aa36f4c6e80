"""Job files, and the plans that they compile to."""

from __future__ import annotations

from edgeveil.jobs.compile import KnownFleet, compile_canonical, compile_job
from edgeveil.jobs.job import Job
from edgeveil.jobs.load import (
    job_schema,
    job_tree,
    line_of,
    load_job,
    load_plan,
    parse_job,
    parse_plan,
)
from edgeveil.jobs.plan import SOFTMAX, Plan

__all__ = [
    "SOFTMAX",
    "Job",
    "KnownFleet",
    "Plan",
    "compile_canonical",
    "compile_job",
    "job_schema",
    "job_tree",
    "line_of",
    "load_job",
    "load_plan",
    "parse_job",
    "parse_plan",
]
