"""Job files: YAML text to a compiled job."""

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
from edgeveil.statistics.questions import expanded, least_rounds

STATISTICS = "statistics"
LOCAL_RUN = "local_run"
"""A job file's key for runs on one machine, which only such runs read."""


def load_plan(path: Path) -> Plan:
    """Return the plan of a job file, to which its paths are relative. Raises ConfigError."""
    return parse_plan(read(path), str(path), folder=path.absolute().parent)


def load_job(path: Path) -> Job:
    return load_plan(path).job


def parse_plan(text: str | bytes, where: str = "(posted)", *, folder: Path | None = None) -> Plan:
    """Return the plan of a job in YAML; it may name files in `folder`. Raises ConfigError."""
    tree = job_tree(text, where)
    tree.value = {key: value for key, value in tree.value.items() if key != LOCAL_RUN}
    return judged(Job, compile_job, tree, where, folder=folder, schema=_file_schema)


def parse_job(text: str | bytes, where: str = "(posted)", *, folder: Path | None = None) -> Job:
    return parse_plan(text, where, folder=folder).job


def job_tree(text: str | bytes, where: str) -> Tree:
    """Return a job file's keys, merged with its preset. Raises ConfigError."""
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
    _ask(tree)
    for path, block, keys in settled(tree.value):
        found += drop_keys(path, block, keys)
    tree.problems += [Problem(at, tree.line(at), problem) for at, problem in found]
    if PRESET in tree.value:
        raise problems_error(where, tree.problems)
    return tree


def _ask(tree: Tree) -> None:
    """Read a block `statistics` as the `train` block of a job that asks, with its raw records."""
    if STATISTICS not in tree.value:
        return
    if "train" in tree.value:
        return  # it learns, and asks beside
    block = tree.value.pop(STATISTICS)
    tree.written["train"] = STATISTICS
    tree.lines |= {("train", *at[1:]): n for at, n in tree.lines.items() if at[:1] == (STATISTICS,)}
    tree.value["train"] = block
    if isinstance(block, dict):
        for key in ("epsilon", "every_rounds"):
            if block.pop(key, None) is not None:
                text = "is of statistics beside train; in place of train set privacy.epsilon"
                tree.problems.append(Problem((STATISTICS, key), tree.line((STATISTICS, key)), text))
        tree.value["train"] = {"method": STATISTICS, "rounds": least_rounds(block), **block}
    data = expanded(block, tree.value.get("data"))
    if data is None and isinstance(tree.value.get("data"), dict):  # reported as problems of train
        data = {"classes": 2, "input_shape": [1], **tree.value["data"]}
        data.pop("schema", None)
    if data is not None:
        tree.value["data"] = data


def line_of(path: Path, key: str) -> int:
    """Return the line of a dotted key in a file, or of the nearest block around it."""
    return read_tree(read(path)).line(tuple(key.split(".")))


def job_schema(model: type[Job] = Job) -> Schema:
    """Return the JSON Schema (2020-12) of a job file with `model`, for editors."""
    schema = with_preset(model.model_json_schema())
    forms = [{"$ref": f"#/$defs/{one}"} for one in ("StatisticsParameters", "StatisticsBlock")]
    asks = {"anyOf": forms, "description": "Statistics in place of `train`, or beside it."}
    return {
        **schema,
        "properties": {**schema["properties"], STATISTICS: asks},
        "required": [key for key in schema["required"] if key != "train"],
    }


def _file_schema() -> Schema:
    schema = job_schema()
    return {**schema, "properties": {**schema["properties"], LOCAL_RUN: {}}}
