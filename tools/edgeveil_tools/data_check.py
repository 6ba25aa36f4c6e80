"""`edgeveil data check`: what the owner should know before a device enrols.

It prints private counts to the owner's own console; nothing of it is stored or sent.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from edgeveil.data.check import DataReport, check_records
from edgeveil.data.split import SPLIT_KEY_FILE, load_split_key
from edgeveil.errors import DataError, UsageError
from edgeveil.jobs import Job, load_job
from edgeveil.parts.own_records import device_records, origin_of
from edgeveil.parts.sources import SOURCES, brings_its_test
from edgeveil.sites.data import DataSource
from edgeveil.sites.edge import EdgeSite
from edgeveil.sites.files import load_site

DEFAULT_SHARE = 0.1
LINES_SHOWN = 10


def data_check(edge_site: Path, job_file: Path | None = None) -> int:
    """Read the device's records as the site file says, and print what learning would drop.

    With a job, its classes, record shape and scale are checked too. Returns 0 if all records
    are usable, DataError's exit code if not; writes nothing. Raises ConfigError, DataError or
    UsageError.
    """
    site = load_site(edge_site)
    if not isinstance(site, EdgeSite):
        raise UsageError("is no edge site file", where=str(edge_site), fix="name configs/edge.yaml")
    job = None if job_file is None else load_job(job_file)
    key_file = site.state_dir / SPLIT_KEY_FILE
    started = key_file.exists()  # a check must not make a device's key
    key = load_split_key(key_file) if started else secrets.token_bytes(32)
    share = DEFAULT_SHARE if job is None else job.data.evaluation_share
    training, evaluation = device_records(site.data, key, evaluation_share=share)
    report = check_records(
        training,
        evaluation,
        classes=None if job is None else job.data.classes,
        input_shape=None if job is None else job.data.input_shape,
        input_range=input_range(job),
    )
    problems = report.problems + places(site.data)
    if job is not None and job.data.source != site.data.name:
        problems.append(
            f"the job learns from '{job.data.source}', this device's data set is called "
            f"'{site.data.name}': it would sit the job out"
        )
    _print(report, problems, exact_split=started)
    return DataError.exit_code if problems else 0


def places(data: DataSource) -> list[str]:
    """Where the lines or pictures stand that are dropped for their form, the first few of them."""
    faults: list[str] = []
    find = None if data.source.startswith("python:") else SOURCES[data.source].faults
    if find is not None:
        faults = find(origin_of(data))
    more = len(faults) - LINES_SHOWN
    return faults[:LINES_SHOWN] + [f"… and {more} more"] * (more > 0)


def input_range(job: Job | None) -> tuple[float, float] | None:
    """The values that features or model expect, least and largest; None where they do not say."""
    parts = () if job is None else (*job.features, job.model)
    scales = [getattr(one, "input_scale", 0.0) for one in parts]
    largest = max(scales, default=0.0)
    return (-largest, largest) if largest else None


def scale_notes(job: Job, largest: float) -> list[str]:
    """What to say of a job whose records reach `largest`, beyond its `input_scale`; mostly []."""
    wanted = input_range(job)
    if wanted is None or largest <= wanted[1]:
        return []
    return [
        f"values reach {largest:g}, beyond the job's input_scale of {wanted[1]:g}: write"
        f" input_scale: {largest:g}"
    ]


def published_largest(source: str) -> float:
    """The largest value of a published set's records; 0 for a source that does not say it."""
    return SOURCES[source].largest if brings_its_test(source) else 0.0


def _print(report: DataReport, problems: list[str], *, exact_split: bool) -> None:
    about = "" if exact_split else "about "
    print(f"{report.records} records of shape {report.shape}, {report.usable} usable")
    print(f"split: {about}{report.training} training, {about}{report.evaluation} evaluation")
    classes = ", ".join(f"{label}: {count}" for label, count in sorted(report.histogram.items()))
    print(f"usable records by class: {classes or 'none'}")
    for problem in problems:
        print(f"✗ {problem}")
    if not problems:
        print("✓ all records are usable")
