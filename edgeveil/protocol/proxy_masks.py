"""What the proxy gives back of masks: their sum over one choice of uploads, once for each exchange.

Theory of operation. Devices seal the seeds of their masks to the proxy's key of the round, and it
keeps them with the batch, in the batch's order. The cloud, which sees nothing but masked numbers,
says which uploads it counts, and is answered with the sum of their masks. The difference between
the sums of two choices would show what stands in one and not in the other, so an exchange is
unmasked for one choice: it is durable before the first sum leaves, the same question gets the same
answer, another is refused for ever, and so is another attempt at the exchange. Of a job that has
ended the proxy forgets the end some time, but never that it was unmasked: one that began once more
under its old name would bring the same numbers again from devices that did not hear of the end. A
choice of fewer uploads than the round's floor is refused too, and a round whose uploads are dealt
into sets, each summed by itself, unless every set has the proxy's own floor.

Before its choice the cloud asks for the check of each upload's mask, so that it can leave out those
whose mask is not that of their seed. It discloses the factors of the check for that, and only those
are taken to which the round's manifest commits: they are the factors of the devices' own checks,
from which the cloud can compute the same number where a device is honest. There is one answer for
each batch, which follows from the seeds, so nothing of it is kept. What the cloud then says of
uploads that do not fit is shown to the operator under their senders' names, and does nothing else.

Only the choice is kept, not the sums: they follow from it and from the seeds. The cloud asks again
and again until it has them, so nothing here waits.
"""

from __future__ import annotations

import hashlib

from edgeveil.crypto.keys import CheckKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import (
    Ack,
    CheckMasks,
    Envelope,
    Manifest,
    MaskSums,
    Misfits,
    Need,
    Unmask,
)
from edgeveil.protocol.proxy_rounds import Collection, CollectionState, ProxyRounds
from edgeveil.protocol.proxy_tasks import (
    CheckSeeds,
    ProxyContext,
    RoundUnmasked,
    SumMasks,
    SummedMasks,
)
from edgeveil.protocol.sealed import MaskedVector, check_factors, chosen_of, dealt, masked_vectors
from edgeveil.protocol.transfer import answer_need, describe, part_bytes, sends

MISFIT = "misfit"  # an upload that does not fit its mask, or its round, by the cloud's word


class ProxyMasks:
    """Answers the cloud's questions for sums of masks."""

    def __init__(self, context: ProxyContext, rounds: ProxyRounds) -> None:
        self._context, self._rounds = context, rounds
        self._at_work: bytes = b""  # the question whose masks are being added up, or checked
        self._ready: tuple[MaskSums, bytes] | None = None  # the newest answer

    def asked(self, asked: Unmask | CheckMasks, signed: Envelope) -> list[fx.Effect]:
        """The cloud asks for the sums of the masks of its choice, or for the checks of all."""
        question = hashlib.sha256(signed.payload).digest()
        try:
            task = self._task(asked, question)
        except ProtocolError as error:
            told = self._context.ack(question, "refused", error.reason)
            return [fx.Refuse(error.reason), fx.Send(fx.CloudAddress(), told)]
        key, memory = (asked.at.job_id, asked.at.exchange), self._context.memory
        out: list[fx.Effect] = []
        if isinstance(asked, Unmask) and key not in memory.unmasked:
            memory.unmasked[key] = RoundUnmasked(asked.at, question)
            out.append(fx.Persist(memory.unmasked[key]))
        if self._ready is not None and self._ready[0].question == question:
            return [*out, *self._offer(*self._ready)]
        if self._at_work == question:
            return out
        self._at_work = question
        return [*out, fx.Work(task)]

    def _task(self, asked: Unmask | CheckMasks, question: bytes) -> SumMasks | CheckSeeds:
        """What is to be computed. Raises ProtocolError: why the question is not answered."""
        memory, at = self._context.memory, asked.at
        collection, batch = self._rounds.collections.get(at), memory.batches.get(at)
        known = memory.unmasked.get((at.job_id, at.exchange))
        same = isinstance(asked, CheckMasks) or (known is not None and known.question == question)
        if known is not None and (known.at != at or not same):
            raise ProtocolError("unmasked_already")
        handing_over = collection and collection.state is CollectionState.HANDING_OVER
        if collection is None or batch is None or not handing_over:
            raise ProtocolError("unknown_round")
        if batch.batch.blob.digest != asked.batch or not batch.seeds:
            raise ProtocolError("unknown_batch")
        vectors = _vectors(collection)
        if isinstance(asked, CheckMasks):
            check_factors(collection.manifest, CheckKey(asked.key))
            return CheckSeeds(at, question, vectors, batch.seeds, CheckKey(asked.key))
        chosen = chosen_of(asked.chosen, len(batch.seeds))
        sets = dealt(chosen, collection.manifest.sets)
        if min(map(len, sets)) < collection.floor // len(sets) or len(chosen) < collection.floor:
            raise ProtocolError("choice_below_floor")
        seeds = tuple(tuple(batch.seeds[index] for index in members) for members in sets)
        return SumMasks(at, question, vectors, seeds)

    def misfits(self, said: Misfits) -> list[fx.Effect]:
        """The cloud says which uploads do not fit. Raises ProtocolError `malformed_choice`.

        Counted once: their senders' places are forgotten with it.
        """
        collection = self._rounds.collections.get(said.at)
        batch = self._context.memory.batches.get(said.at)
        if collection is None or batch is None or batch.batch.blob.digest != said.batch:
            return []
        senders, collection.senders = collection.senders, ()
        places = chosen_of(said.places, len(senders)) if senders else []  # an earlier process knew
        return [fx.Refuse(MISFIT, fx.DeviceAddress(senders[place])) for place in places]

    def summed(self, task: SumMasks | CheckSeeds, result: object) -> list[fx.Effect]:
        """The masks are added up, or checked."""
        self._at_work = b""
        if not isinstance(result, SummedMasks):  # the cloud will ask again
            return [fx.Report("masks_not_summed", {"round": task.at.exchange})]
        blob = describe(result.data, part_bytes(self._context.settings.packet_bytes))
        self._ready = (MaskSums(task.at, task.question, blob), result.data)
        summed = isinstance(task, SumMasks)
        uploads = sum(map(len, task.sets)) if isinstance(task, SumMasks) else len(task.seeds)
        what = {"round": task.at.exchange, "uploads": uploads}
        report = fx.Report("unmasked" if summed else "masks_checked", what)
        return [report, *self._offer(*self._ready)]

    def _offer(self, sums: MaskSums, data: bytes) -> list[fx.Effect]:
        settings = self._context.settings
        signed = self._context.signer.header(sums)
        push = len(data) <= settings.push_bytes
        return sends(fx.CloudAddress(), signed, sums.blob, data, settings.packet_bytes, push=push)

    def need(self, need: Need) -> list[fx.Effect] | None:
        """The cloud asks for parts of the sums; None if it is for something else."""
        if self._ready is None or self._ready[0].blob.digest != need.blob:
            return None
        return answer_need(fx.CloudAddress(), need, self._ready[0].blob, self._ready[1])

    def why_not(self, header: Manifest) -> str:
        """The reason to refuse a round's broadcast, or ""."""
        memory, at = self._context.memory, header.at
        known = memory.unmasked.get((at.job_id, at.exchange))
        over = bool(header.masked) and at.job_id in memory.summed
        if over or (known is not None and known.at != at):
            return "unmasked_already"
        try:
            masked_vectors(header.at, header.groups, header.masked)
        except ProtocolError as error:
            return error.reason
        floor = self._context.settings.min_batch_floor
        small = header.sets > 1 and header.min_batch < header.sets * floor
        return "sets_below_floor" if small else ""

    def acknowledged(self, ack: Ack) -> bool:
        """Whether the cloud says that it has the sums: they are of no use any more."""
        ready = self._ready
        if ready is None or ready[0].blob.digest != ack.blob:
            return False
        at, self._ready = ready[0].at, None
        collection = self._rounds.collections.get(at)
        if collection is not None and (at.job_id, at.exchange) in self._context.memory.unmasked:
            collection.senders = ()  # the sums are there: nothing more is said of single uploads
        return True


def _vectors(collection: Collection) -> tuple[MaskedVector, ...]:
    manifest = collection.manifest
    return masked_vectors(manifest.at, manifest.groups, manifest.masked)
