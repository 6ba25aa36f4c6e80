"""Ends of jobs, told until the proxy confirms them: owners' reserved budgets wait for it."""

from __future__ import annotations

import hashlib

from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import CloudSettings
from edgeveil.protocol.envelope import Signer
from edgeveil.protocol.messages import Close, Note


class Ends:
    """The ends that nobody has confirmed yet, by job; one timer, `close`, for all."""

    def __init__(self, signer: Signer, settings: CloudSettings) -> None:
        self._signer, self._settings = signer, settings
        self._open: dict[bytes, Note] = {}
        self._wait_s = settings.resend_s

    def tell(self, job_id: bytes, status: str) -> list[fx.Effect]:
        """A job has ended as `status`."""
        self._open[job_id] = self._signer.note(Close(job_id, status))  # type: ignore[arg-type]
        self._wait_s = self._settings.resend_s
        return self.send()

    def send(self) -> list[fx.Effect]:
        """Say all of them (again), ever more rarely."""
        if not self._open:
            return []
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._settings.close_cap_s)
        notes = [fx.Send(fx.Proxy(), note) for note in self._open.values()]
        return [*notes, fx.SetTimer("close", wait_s)]

    def confirmed(self, digest: bytes) -> list[fx.Effect] | None:
        """The proxy acknowledged a note of this digest; None if it is none of these."""
        for job_id, note in self._open.items():
            if hashlib.sha256(note.body.payload).digest() == digest:
                del self._open[job_id]
                return [] if self._open else [fx.CancelTimer("close")]
        return None
