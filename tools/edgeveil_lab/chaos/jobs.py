"""Keeps the cloud at work: a job whenever none waits or runs, and `resume` for one that pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from edgeveil.errors import EdgeVeilError
from edgeveil_tools.cloud_client import Cloud

ENDED = ("completed", "failed", "cancelled")


class Jobs:
    """The jobs of one cloud, over its HTTP control, which may be away at any moment.

    What is known of them is read anew at every look: an answer to a submission may be lost.
    """

    def __init__(self, connect: Callable[[], Cloud], job_yaml: bytes) -> None:
        self._connect, self._yaml = connect, job_yaml
        self._client: Cloud | None = None
        self.known: list[dict[str, Any]] = []
        self.committed = 0  # exchanges of the jobs that go on
        self.resumed: Counter[str] = Counter()

    def look(self) -> bool:
        """Ask for the state of all jobs; False while the cloud does not answer."""
        with suppress(EdgeVeilError):
            client = self._cloud()
            self.known = client.list()
            for job in self.known:
                if job["status"] == "paused":
                    client.resume(job["id"])
                    self.resumed[job["id"]] += 1
            going = [job["id"] for job in self.known if job["status"] not in ENDED]
            self.committed = sum(len(client.job(job)["exchanges"]) for job in going)
            return True
        return False

    def submit(self) -> None:
        """Queue one more; the next look tells whether it came through."""
        with suppress(EdgeVeilError):
            self._cloud().submit_yaml(self._yaml)

    @property
    def idle(self) -> bool:
        """Whether every known job has ended."""
        return all(job["status"] in ENDED for job in self.known)

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs have each status."""
        return dict(Counter(job["status"] for job in self.known))

    @property
    def mark(self) -> tuple[object, ...]:
        """Something that changes whenever a job gets on; a resumption alone does not count."""
        ended = sum(job["status"] in ENDED for job in self.known)
        return len(self.known), ended, self.committed

    def _cloud(self) -> Cloud:
        self._client = self._client or self._connect()
        return self._client
