"""What a tracker is told, and which there are: MLflow, TensorBoard, Weights & Biases offline.

A tracker's library is loaded when it is first used, in the thread that feeds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from edgeveil.errors import MissingExtraError, UsageError

Metrics = Mapping[str, float]


@dataclass(frozen=True)
class TrackedRun:
    """A job as a tracker knows it. `key`: its id at a cloud, "" where nobody goes on with it."""

    name: str
    parameters: Mapping[str, str | float | bool]
    key: str = ""


@dataclass(frozen=True)
class RunOutcome:
    """How it ended: `completed`, `failed` or `cancelled`; facts in words, and files to keep."""

    status: str
    facts: Mapping[str, str]
    metrics: Metrics
    files: Sequence[Path] = ()


class Tracker(Protocol):
    """Writes one run. Its methods are called one after the other, in one thread."""

    def begin(self, run: TrackedRun) -> None:
        """The run and its parameters."""
        ...

    def log(self, metrics: Metrics, step: int) -> None:
        """Figures of a round; `step` 0 is all before round 1."""
        ...

    def end(self, outcome: RunOutcome) -> None:
        """Nothing comes after it."""
        ...


@dataclass(frozen=True)
class TrackTarget:
    """One `--track`: a scheme of `_MODULES`, and where to."""

    scheme: str
    where: str

    @classmethod
    def parse(cls, text: str) -> TrackTarget:
        """Raises UsageError for another scheme, MissingExtraError without its library."""
        scheme, colon, where = text.partition(":")
        if scheme not in _MODULES or not where:
            what = f"unknown scheme '{scheme}'" if colon else "names no scheme"
            if scheme in _MODULES:
                what = "names no place"
            raise UsageError(
                what, where=f"--track {hidden(text)}", fix=f"write one of {', '.join(EXAMPLES)}"
            )
        library = _MODULES[scheme][1]
        if find_spec(library) is None:
            raise MissingExtraError(
                f"needs {library}, which is not installed",
                where=f"--track {hidden(text)}",
                fix="pip install 'edgeveil[track]'",
            )
        return cls(scheme, where)

    def tracker(self) -> Tracker:
        """A new one, its library loaded."""
        module = import_module(f"edgeveil_tools.tracking.{_MODULES[self.scheme][0]}")
        made: Tracker = module.open_tracker(self.where)
        return made

    def __str__(self) -> str:
        return hidden(f"{self.scheme}:{self.where}")


EXAMPLES = ("mlflow:http://HOST:5000", "tensorboard:DIR", "wandb-offline:DIR")
_MODULES = {
    "mlflow": ("mlflow_run", "mlflow"),
    "tensorboard": ("tensorboard_run", "tensorboard"),
    "wandb-offline": ("wandb_run", "wandb"),
}


def hidden(text: str) -> str:
    """The text without a password that a URL in it holds."""
    return re.sub(r"://\S*@", "://…@", text)  # one with @ or / in it, too


def flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str | float | bool]]:
    """Nested mappings as `block.key`; lists as JSON, but of mappings, which are numbered."""
    for key, value in plain.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        elif isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            yield from flat({str(n): one for n, one in enumerate(value)}, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, json.dumps(value)
        else:
            yield name, value if isinstance(value, bool | int | float) else str(value or "")
