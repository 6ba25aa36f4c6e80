"""`edgeveil job show --watch --track`: log a job of a cloud, by its stored events."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from edgeveil.errors import EdgeVeilError
from edgeveil.jobs import compile_canonical
from edgeveil_tools.cloud_client import Cloud
from edgeveil_tools.result import privacy_of_plan
from edgeveil_tools.tracking.feed import Tracking, check_target


def tracked(
    cloud: Cloud, job: str, targets: Iterable[str], events: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, Any]]:
    """Yield the events while logging them; at the end log the job's text and model."""
    targets = list(targets)
    for target in targets:
        check_target(target)
    canonical, planned = cloud.content(job), dict[str, Any]()
    with suppress(EdgeVeilError):  # without the job's parts log only its text
        plan = compile_canonical(canonical)
        planned = privacy_of_plan(plan, plan.quote())
    content = json.loads(canonical)
    tracking, last = Tracking(targets, job, content, planned), dict[str, Any]()
    for event in events:
        tracking.take(event)
        last = event["data"] if event["type"].startswith("job_") else last
        _print(tracking.complaints())
        yield event
    status = cloud.job(job)["status"]
    with tempfile.TemporaryDirectory(prefix="edgeveil-track-") as name:
        text, model = Path(name) / "job.yaml", Path(name) / "model.onnx"
        text.write_text(yaml.safe_dump(content, sort_keys=False), "utf-8")
        with suppress(EdgeVeilError):  # no model, or a read-only token
            model.write_bytes(cloud.model(job))
        accuracy = (last.get("final") or {}).get("accuracy")
        privacy, final = last.get("privacy") or {}, {"final.accuracy": accuracy}
        _print(tracking.close(status, privacy, final, [text, model]))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)
