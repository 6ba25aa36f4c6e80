"""What the cloud says until a cell's proxy confirms it: a broadcast, the ends of jobs."""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from edgeveil.crypto.keys import sign
from edgeveil.crypto.labels import RELEASE_AHEAD
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import CloudSettings, timer_name
from edgeveil.protocol.messages import (
    Close,
    Manifest,
    Need,
    Note,
    Signer,
    decode_body,
    proof_of_releases,
)
from edgeveil.protocol.transfer import LentData, ShowBlob, ShownBlobs, answer_need, sends


class OutgoingBroadcast:
    """The broadcast that is offered until the proxy holds it, at most one; one timer."""

    def __init__(
        self, cell: str, signer: Signer, releases: Signer, settings: CloudSettings, timer: str
    ) -> None:
        self._proxy = fx.ProxyAddress(cell)
        self._signer, self._releases, self._settings = signer, releases, settings
        self._timer = timer
        self._manifest: Manifest | None = None
        self._data = LentData(b"")
        self.shown = ShownBlobs(signer, settings.beside_bytes, settings.beside_s)

    def offer(self, manifest: Manifest, data: bytes) -> list[fx.Effect]:
        """Begin with this one, in place of the one before."""
        self.drop()
        self._manifest, self._data = manifest, LentData(data)
        return self.send(push=manifest.blob.size_bytes <= self._settings.push_bytes)

    def drop(self) -> None:
        """The proxy holds it, or nobody needs it any more."""
        self._data.take_back()
        self._manifest = None

    def send(self, *, push: bool = False) -> list[fx.Effect]:
        """Say it (again); the proxy asks for parts that did not come with the first offer."""
        if self._manifest is None:
            return []
        manifest = self._manifest
        if manifest.kind == "job":
            proof = sign(self._releases.key, RELEASE_AHEAD, proof_of_releases(manifest))
            manifest = replace(manifest, release_proof=proof)
        signer = self._releases if manifest.kind == "release" else self._signer
        signed, packet_bytes = signer.header(manifest), self._settings.packet_bytes
        blob = manifest.blob
        packets = sends(
            self._proxy,
            signed,
            blob,
            self._data,
            packet_bytes,
            push=push,
            beside=self.shown.takes(blob),
        )
        return [*packets, fx.SetTimer(self._timer, self._settings.resend_s)]

    @property
    def sequence(self) -> int:
        """Of the broadcast under way; -1 without one."""
        return self._manifest.sequence if self._manifest else -1

    def is_blob(self, digest: bytes) -> bool:
        """Whether this is the digest of the broadcast under way."""
        return self._manifest is not None and self._manifest.blob.digest == digest

    def lends(self, task: ShowBlob) -> bool:
        """Whether these are the bytes that a store is to show."""
        return task.data is self._data

    def answer(self, need: Need, now_s: float) -> list[fx.Effect]:
        """The parts asked for, or where they lie.

        Raises ProtocolError `unknown_blob` or `bad_index`.
        """
        if self._manifest is None or not self.is_blob(need.blob):
            raise ProtocolError("unknown_blob")
        if need.beside:
            told = self.shown.answer(self._proxy, self._manifest.blob, self._data, now_s)
            if told is not None:
                return told
        return answer_need(self._proxy, need, self._manifest.blob, self._data)


class JobEnds:
    """Ends of jobs, told until the proxy confirms them, since owners' reserved budgets wait for it;
    one timer, `close`, for all.
    """

    def __init__(self, cell: str, signer: Signer, settings: CloudSettings) -> None:
        self._proxy, self._signer, self._settings = fx.ProxyAddress(cell), signer, settings
        self._timer = timer_name("close", cell=cell)
        self._open: dict[bytes, Note] = {}
        self._wait_s = settings.resend_s

    def tell(self, job_id: bytes, status: str) -> list[fx.Effect]:
        """A job has ended as `status`."""
        self._open[job_id] = self._signer.note(Close(job_id, status))  # type: ignore[arg-type]
        self._wait_s = self._settings.resend_s
        return self.send()

    def sign_anew(self) -> list[fx.Effect]:
        """The key that signed them is believed no more."""
        told = [decode_body(note.body) for note in self._open.values()]
        ends = [body for body in told if isinstance(body, Close)]
        self._open = {end.job_id: self._signer.note(end) for end in ends}
        self._wait_s = self._settings.resend_s
        return self.send()

    def send(self) -> list[fx.Effect]:
        """Say all of them (again), ever more rarely."""
        if not self._open:
            return []
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._settings.close_cap_s)
        notes = [fx.Send(self._proxy, note) for note in self._open.values()]
        return [*notes, fx.SetTimer(self._timer, wait_s)]

    def confirmed(self, digest: bytes) -> list[fx.Effect] | None:
        """The proxy acknowledged a note of this digest; None if it is none of these."""
        for job_id, note in self._open.items():
            if hashlib.sha256(note.body.payload).digest() == digest:
                del self._open[job_id]
                return [] if self._open else [fx.CancelTimer(self._timer)]
        return None
