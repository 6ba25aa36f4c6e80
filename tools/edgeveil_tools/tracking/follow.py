"""The jobs of a cloud on their way to trackers, by its stored events: a process beside it.

What logs to others' servers holds no key of the cloud's and shares no memory with it.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from edgeveil.errors import EdgeVeilError
from edgeveil.jobs import compile_canonical
from edgeveil_tools.cloud_client import Cloud
from edgeveil_tools.result import privacy_of, write_whole
from edgeveil_tools.tracking.course import Tracking, tracked
from edgeveil_tools.tracking.tracker import TrackedRun, TrackTarget

LOOK_S = 1.0
_MOST_AWAY = 30  # looks in a row without an answer before that is told

Say = Callable[[str], None]


class JobFollower:
    """Logs every job that has not ended when it comes, and all that are submitted later.

    `kept` names those under way, so that another process goes on with them.
    """

    def __init__(
        self, cloud: Cloud, targets: Sequence[TrackTarget], say: Say, kept: Path | None = None
    ) -> None:
        self._cloud, self._targets, self._say, self._kept = cloud, targets, say, kept
        self._under_way: dict[str, Tracking] = {}
        self._after: dict[str, int] = {}
        self._passed: set[str] = set()  # ended, here or before anybody looked
        self._first, self._away = True, 0

    def run(self, stop: threading.Event) -> None:
        """Until stopped; a cloud that is away is waited for."""
        while not stop.is_set():
            try:
                self.look()
                self._away = 0
            except (EdgeVeilError, OSError) as error:
                self._away += 1
                if self._away == _MOST_AWAY:
                    self._say(f"The cloud does not answer and is waited for: {error}")
            stop.wait(LOOK_S)
        for tracking in self._under_way.values():
            tracking.leave()

    def look(self) -> None:
        """Take what is new. Raises EdgeVeilError where the cloud is away."""
        earlier = self._begun_before() if self._first else set()
        for job in self._cloud.list():
            known = job["id"] in self._under_way or job["id"] in self._passed
            if self._first and job["ended_at"] is not None and job["id"] not in earlier:
                self._passed.add(job["id"])
            elif not known:
                self._begin(job["id"])
        self._first = False
        for name, tracking in list(self._under_way.items()):
            self._take(name, tracking)

    def _begin(self, job: str) -> None:
        self._under_way[job] = Tracking(self._targets, _run_of(job, self._cloud.content(job)))
        self._after[job] = 0
        self._keep()

    def _take(self, job: str, tracking: Tracking) -> None:
        for event in self._cloud.events(job, self._after[job]):
            self._after[job] = int(event["seq"])
            tracking.take(event)
        for line in tracking.complaints():
            self._say(f"{job}: {line}")
        if tracking.ended:
            with self._files(job, tracking) as files:
                accuracy = tracking.final.get("accuracy")
                found = {} if accuracy is None else {"final.accuracy": float(accuracy)}
                for line in tracking.close(tracking.ended, tracking.privacy, found, files):
                    self._say(f"{job}: {line}")
            del self._under_way[job], self._after[job]
            self._passed.add(job)
            self._keep()

    @contextmanager
    def _files(self, job: str, tracking: Tracking) -> Iterator[list[Path]]:
        """The job's text, and the model of one that completed."""
        with tempfile.TemporaryDirectory(prefix="edgeveil-track-") as name:
            folder = Path(name)
            plain = json.loads(self._cloud.content(job))
            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
            write_whole(folder / "job.yaml", text.encode())
            if tracking.ended == "completed":
                with suppress(EdgeVeilError):  # a token for reading alone fetches no model
                    write_whole(folder / "model.onnx", self._cloud.model(job))
            yield [folder / "job.yaml", folder / "model.onnx"]

    def _begun_before(self) -> set[str]:
        if self._kept is None:
            return set()
        try:
            return {str(one) for one in json.loads(self._kept.read_bytes())}
        except (OSError, ValueError, TypeError):
            return set()

    def _keep(self) -> None:
        if self._kept is not None:
            write_whole(self._kept, json.dumps(sorted(self._under_way)).encode(), mode=0o600)


def _run_of(job: str, canonical: bytes) -> TrackedRun:
    """Parameters and planned guarantees; of a job with parts that are not here its text alone."""
    try:
        plan = compile_canonical(canonical)
    except EdgeVeilError:
        return tracked(job, json.loads(canonical), {}, job)
    planned = privacy_of(plan.quote(), plan.epsilon_per_inference, plan.softmax_event().unit)
    return tracked(job, json.loads(canonical), planned, job)
