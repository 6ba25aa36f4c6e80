"""Job files: YAML text -> a judged job."""

from __future__ import annotations

from pathlib import Path

from edgeveil.config.explain import Schema
from edgeveil.config.file import drop_keys, drop_retired, judged, parsed, problems_error, read
from edgeveil.config.site_files import SITES, kind_of
from edgeveil.config.yaml_tree import Problem, Tree, read_tree
from edgeveil.jobs.compile import compile_job
from edgeveil.jobs.job import Job, settled
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.presets import KEY as PRESET
from edgeveil.jobs.presets import expand, with_preset

LOCAL_RUN = "local_run"
"""A job file's key beside the job: how it is played on one machine. Who plays it reads that."""


def load_plan(path: Path) -> Plan:
    """The plan of a job file, whose folder its paths count from. ConfigError with all problems."""
    return parse_plan(read(path), str(path), folder=path.absolute().parent)


def load_job(path: Path) -> Job:
    return load_plan(path).job


def parse_plan(text: str | bytes, where: str = "(posted)", *, folder: Path | None = None) -> Plan:
    """The plan of a job in YAML text; without `folder` it may name no files. Raises ConfigError."""
    tree = job_tree(text, where)
    tree.value = {key: value for key, value in tree.value.items() if key != LOCAL_RUN}
    return judged(Job, compile_job, tree, where, folder=folder, schema=_schema_beside)


def parse_job(text: str | bytes, where: str = "(posted)", *, folder: Path | None = None) -> Job:
    return parse_plan(text, where, folder=folder).job


def job_tree(text: str | bytes, where: str) -> Tree:
    """A job file's keys, with what its preset gives. Raises ConfigError."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    tree = parsed(raw, where)
    kind = kind_of(tree.value)
    if kind != "job":
        what = f"the {kind}'s site file" if kind in SITES else f"a {kind} file"
        command = f"edgeveil {kind}" if kind in SITES else "edgeveil loadtest --scenario"
        text = f"this is {what}, not a job; pass it to `{command}`"
        raise problems_error(where, [Problem((), tree.line(()), text)])
    expand(tree)
    found = drop_retired("job", tree.value)
    for path, block, keys in settled(tree.value):
        found += drop_keys(path, block, keys)
    tree.problems += [Problem(at, tree.line(at), problem) for at, problem in found]
    if PRESET in tree.value:
        raise problems_error(where, tree.problems)
    return tree


def line_of(path: Path, key: str) -> int:
    """The line of a dotted key in a file, or of the nearest block around it that the file has."""
    return read_tree(read(path)).line(tuple(key.split(".")))


def job_schema(model: type[Job] = Job) -> Schema:
    """JSON Schema (2020-12) of a job file that holds `model`, for editors."""
    return with_preset(model.model_json_schema())


def _schema_beside() -> Schema:
    """The schema with the keys that may stand beside the job, for those who misspell one."""
    schema = job_schema()
    return {**schema, "properties": {**schema["properties"], LOCAL_RUN: {}}}
