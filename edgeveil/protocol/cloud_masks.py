"""The cloud's questions about masks to a cell's proxy, one at a time, and the answer on its way."""

from __future__ import annotations

import hashlib

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_tasks import CloudSettings, timer_name
from edgeveil.protocol.messages import (
    Ack,
    BlobPart,
    CheckMasks,
    MaskSums,
    Offer,
    Signer,
    Unmask,
    encode_inner,
)
from edgeveil.protocol.transfer import Fetch, check_fetchable, first_data


class MaskArrivals:
    """At most one question of a job. The timer `unmask` says it again until the answer is whole;
    then it is in `masks`.
    """

    def __init__(self, cell: str, signer: Signer, settings: CloudSettings, job_id: bytes) -> None:
        self._proxy, self._signer, self._settings = fx.ProxyAddress(cell), signer, settings
        self._timer = timer_name("unmask", job_id, cell)
        self._asked: CheckMasks | Unmask | None = None
        self._answer: Fetch[MaskSums] | None = None
        self.masks: bytes | None = None

    def ask(self, asked: CheckMasks | Unmask) -> list[fx.Effect]:
        """Begin with this question."""
        self._asked, self._answer, self.masks = asked, None, None
        return self.send()

    def drop(self) -> list[fx.Effect]:
        """The answer was used, or nobody needs it any more."""
        self._asked, answer, self._answer, self.masks = None, self._answer, None, None
        told = [self._ack(answer.header)] if answer else []
        return [fx.CancelTimer(self._timer), *told]

    @property
    def question(self) -> bytes:
        """What names the question in the proxy's answers; empty without one."""
        return b"" if self._asked is None else hashlib.sha256(encode_inner(self._asked)).digest()

    def send(self) -> list[fx.Effect]:
        """Say it (again), or ask for what is missing of the answer."""
        if self._asked is None or self.masks is not None:
            return []
        again = fx.SetTimer(self._timer, self._settings.resend_s)
        if self._answer is None:
            return [fx.Send(self._proxy, self._signer.note(self._asked)), again]
        need = self._answer.next_need(timer=True)
        if self._answer.idle_looks > 1:  # the proxy may have begun anew and know of no answer
            self._answer = None
        return [fx.Send(self._proxy, need), again] if need else [again]

    def offer(self, offer: Offer, header: MaskSums) -> list[fx.Effect]:
        """An answer is offered (again). One to another question is of no use here."""
        if self._asked is None or header.question != self.question or header.at != self._asked.at:
            return [self._ack(header)]
        check_fetchable(offer, header.blob, self._settings.blob_bytes)
        if self._answer is None or self._answer.header != header:
            self._answer = Fetch(offer, header, self._settings.blob_bytes)
        if self.masks is not None:
            return []  # they are being used
        complete = False
        for part in first_data(offer, header.blob):
            complete = self._answer.add(part)
        return self._whole(self._answer) if complete else []

    def knows(self, digest: bytes) -> bool:
        """Whether parts of this name are of the answer."""
        return self._answer is not None and self._answer.header.blob.digest == digest

    def part(self, part: BlobPart) -> list[fx.Effect] | None:
        """A part of the answer; None if it is of something else."""
        answer = self._answer
        if answer is None or answer.header.blob.digest != part.blob:
            return None
        if part.index in answer.assembly:
            return []
        if answer.add(part):
            return self._whole(answer)
        need = answer.next_need(timer=False)
        return [fx.Send(self._proxy, need)] if need else []

    def _whole(self, answer: Fetch[MaskSums]) -> list[fx.Effect]:
        try:
            self.masks = answer.assembly.finish()
        except ProtocolError:
            self._answer = None
            raise
        return [fx.CancelTimer(self._timer)]

    def _ack(self, header: MaskSums) -> fx.Effect:
        return fx.Send(self._proxy, self._signer.note(Ack(header.blob.digest, "held")))
