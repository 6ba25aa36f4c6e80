"""Masked uploads go on to the cloud while their round is open.

Theory of operation. To the cloud a masked segment is uniform numbers, so it need not wait for the
others of its round. Uploads that are held are dealt in lots: the host puts a lot's masked segments,
in an order of its own, behind those of the lots before, in what is called the round's stream, and
the cloud is told how long that is by now (`Arrived`). It asks for parts as far as it has room for
them, and opens them as they come. Whatever of this is lost costs time alone: the batch that follows
begins with the stream, under the same name, and is asked for and checked as every batch.

Of an upload the cloud learns in which lot it came. A lot is worth its own message (`lot_bytes`) and
has at least as many uploads as this proxy's own floor, the last one too: so many are held back.
Rounds that bring less than that have no stream, and their batch stands in one random order.

Nothing here is durable. A proxy that starts again begins another stream, of all that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Arrived, Blob, ExchangeId, Need
from edgeveil.protocol.proxy_tasks import (
    HeldUpload,
    ProxyContext,
    StreamedUploads,
    StreamUploads,
)
from edgeveil.protocol.transfer import answer_need, part_bytes

if TYPE_CHECKING:
    from edgeveil.protocol.proxy_rounds import Collection


@dataclass
class _Stream:
    """`waiting` are held uploads that are in no lot yet, as `StreamUploads` has them."""

    waiting: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    begun: bool = False
    closed: bool = False
    at_work: bool = False
    there: StreamedUploads | None = None


class RoundStreams:
    """The streams of all open rounds under masks."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self._streams: dict[ExchangeId, _Stream] = {}

    def held(self, collection: Collection, index: int, held: HeldUpload) -> list[fx.Effect]:
        """Upload `index` of a round is durable."""
        return self._add(collection, [(index, held)])

    def resume(self, collection: Collection) -> list[fx.Effect]:
        """The round's uploads are from before the process."""
        return self._add(collection, enumerate(collection.uploads.values()))

    def _add(
        self, collection: Collection, uploads: Iterable[tuple[int, HeldUpload]]
    ) -> list[fx.Effect]:
        masked = [(i, held.slot, held.groups) for i, held in uploads if held.seed is not None]
        if not masked:
            return []
        stream = self._streams.setdefault(collection.manifest.at, _Stream())
        stream.waiting += masked
        return self._deal(collection, stream)

    def close(self, at: ExchangeId) -> bool:
        """The round takes no more; whether it has a stream. What is told of it may be asked for
        until the batch is there.
        """
        stream = self._streams.get(at)
        if stream is None:
            return False
        stream.closed = True
        return stream.begun

    def end(self, at: ExchangeId) -> None:
        """The batch has it all, or nobody needs it."""
        self._streams.pop(at, None)

    def done(
        self, collection: Collection | None, task: StreamUploads, result: object
    ) -> list[fx.Effect]:
        """A lot is in the stream, or could not be put there."""
        stream = self._streams.get(task.at)
        if stream is None or stream.closed or collection is None:  # it comes with the batch
            return []
        stream.at_work = False
        if not isinstance(result, StreamedUploads):  # they come with a later lot, or the batch
            stream.waiting[:0] = task.uploads
            return [fx.Report("stream_failed", {"round": task.at.exchange}, task.at)]
        stream.there = result
        told: list[fx.Effect] = []
        if (blob := self._blob(result)).size_bytes:
            note = self._context.signer.note(Arrived(task.at, blob))
            told.append(fx.Send(fx.CloudAddress(), note))
        return told + self._deal(collection, stream)

    def need(self, need: Need) -> list[fx.Effect] | None:
        """The cloud asks for parts of a stream; None if it is for something else."""
        for stream in self._streams.values():
            if stream.there is not None and stream.there.name == need.blob:
                blob, data = self._blob(stream.there), stream.there.data
                return answer_need(fx.CloudAddress(), need, blob, data)
        return None

    def _blob(self, there: StreamedUploads) -> Blob:
        """Its whole parts, which stay as they are."""
        each = part_bytes(self._context.settings.packet_bytes)
        return Blob(there.name, len(there.data) // each * each, each)

    def _deal(self, collection: Collection, stream: _Stream) -> list[fx.Effect]:
        settings = self._context.settings
        least = settings.min_batch_floor
        count = len(stream.waiting) - least
        enough = count >= least and count * collection.masked_bytes >= settings.lot_bytes
        if stream.at_work or not enough:
            return []
        stream.begun = stream.at_work = True
        lot, stream.waiting = stream.waiting[:count], stream.waiting[count:]
        task = StreamUploads(
            collection.manifest.at,
            collection.segment_bytes,
            collection.slot_bytes,
            tuple(lot),
            collection.masked,
            keep_order=not collection.manifest.shuffled,
        )
        return [fx.Work(task, task.at)]
