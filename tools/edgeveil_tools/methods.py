"""`edgeveil methods`: every name of every table, with what stands behind it."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

from edgeveil.data.partition import PARTITIONS
from edgeveil.data.sources import SOURCES
from edgeveil.errors import UsageError
from edgeveil.evaluation.cluster_labels import LABELLERS
from edgeveil.evaluation.clustering import EVALUATIONS, SILHOUETTES
from edgeveil.jobs.job import Encrypt, Proxy
from edgeveil.jobs.presets import PRESETS
from edgeveil.parts.aggregation import AGGREGATIONS
from edgeveil.parts.features import FEATURES, PcaParameters
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import MODELS
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.table import MECHANISMS
from edgeveil.registry import nearest
from edgeveil_tools.methods_about import FAMILIES, About
from edgeveil_tools.methods_about_data import FAMILIES as DATA_FAMILIES
from edgeveil_tools.methods_about_presets import PRESETS as ABOUT_PRESETS

_MIN_WIDTH = 60
_MAX_WIDTH = 110
_OWN_STATUS = "–"
ABOUT = {**FAMILIES, **DATA_FAMILIES, "preset": ABOUT_PRESETS}
_UNKNOWN = About("not stated", "not stated", "not stated", note="not stated")


@dataclass(frozen=True)
class Entry:
    """One name; `family` is the key of a job file that takes it, or what kind of thing it is.

    `privacy` is `proven`, `claimed`, `none`, or null where the name makes no release of its own.
    """

    family: str
    name: str
    summary: str
    source: str
    needs: str
    reveals: str
    privacy: str | None
    note: str


def entries() -> list[Entry]:
    """All names, family by family, as their tables list them."""
    return [_entry(family, name, text) for family, name, text in _named()]


def methods(names: list[str], *, as_json: bool) -> int:
    """Print all entries, or those of these names or families. UsageError for an unknown one."""
    found = _chosen(entries(), names)
    if as_json:
        print(json.dumps([asdict(entry) for entry in found], ensure_ascii=False, indent=2))
        return 0
    width = min(max(shutil.get_terminal_size().columns, _MIN_WIDTH), _MAX_WIDTH)
    family = ""
    for entry in found:
        if entry.family != family:
            print(f"{'' if not family else chr(10)}{entry.family}")
            family = entry.family
        print(_shown(entry, width))
    return 0


def _named() -> Iterator[tuple[str, str, str]]:
    """Family, name and the text that stands beside the name in the code."""
    for family, table, key in (
        ("train.method", METHODS, "method"),
        ("update", STAGES, "name"),
        ("aggregation", AGGREGATIONS, "name"),
        ("model", MODELS, "name"),
        ("features", FEATURES, "name"),
    ):
        for name in table:
            yield family, name, _described(table[name].parameters, key)
    for name in get_args(PcaParameters.model_fields["name"].annotation):
        yield "features", name, ""
    functions: tuple[tuple[str, Any], ...] = (
        ("local_run.partition", PARTITIONS),
        ("unsupervised.eval_type", EVALUATIONS),
        ("unsupervised.silhouette", SILHOUETTES),
        ("unsupervised.labels", LABELLERS),
        ("mechanism", MECHANISMS),
    )
    for family, table in functions:
        for name in table:
            yield family, name, _first_line(table[name])
    for family, block, key in (
        ("proxy.shuffle", Proxy, "shuffle"),
        ("encrypt.privacy_eval_type", Encrypt, "privacy_eval_type"),
    ):
        for name in get_args(block.model_fields[key].annotation):
            yield family, name, ""
    for family, names in (("local_run.data.source", SOURCES), ("preset", PRESETS)):
        for name in names:
            yield family, name, ""


def _described(parameters: Any, key: str) -> str:
    return str(parameters.model_fields[key].description or "")


def _first_line(function: Callable[..., Any]) -> str:
    text = str(function.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())


def _entry(family: str, name: str, text: str) -> Entry:
    about = ABOUT[family].get(name, _UNKNOWN)
    summary = about.summary or text
    return Entry(
        family, name, summary, about.source, about.needs, about.reveals, about.privacy, about.note
    )


def _chosen(found: list[Entry], names: list[str]) -> list[Entry]:
    known = {entry.name for entry in found} | {entry.family for entry in found}
    for name in names:
        if name not in known:
            raise UsageError(f"unknown name '{name[:64]}'", fix=nearest(name[:64], sorted(known)))
    return [e for e in found if not names or e.name in names or e.family in names]


def _shown(entry: Entry, width: int) -> str:
    status = entry.privacy or _OWN_STATUS
    if entry.note:
        status += f" ({entry.note})"
    lines = [f"  {entry.name}"]
    for label, text in (
        ("what", entry.summary),
        ("source", entry.source),
        ("needs", entry.needs),
        ("reveals", entry.reveals),
        ("privacy", status),
    ):
        lines += textwrap.wrap(
            text, width, initial_indent=f"    {label:<8}", subsequent_indent=" " * 12
        )
    return "\n".join(lines)
