"""What comes to a device: blobs on their way to it, and the jobs that it knows.

Both are bounded. A blob that stands still gives way to a new one; of too many jobs the oldest ends
here. A round that comes before its job is kept, each job's newest, and its package fetched, until
the job is known or the round is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

from edgeveil.crypto.buckets import bucket_of
from edgeveil.crypto.keys import SealingKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.beside import LEAST_BYTES, FetchBeside, begin_fetch, end_fetch
from edgeveil.protocol.device_tasks import CLOSED_KEPT, DeviceMemory, DeviceSettings, JobClosed
from edgeveil.protocol.messages import (
    Blob,
    BlobAt,
    BlobPart,
    BroadcastHeader,
    Close,
    Manifest,
    Offer,
    Signer,
    Want,
)
from edgeveil.protocol.transfer import Backoff, Fetch, first_data

AT_ONCE = 64  # blobs under way, of a round up to two
RECORD_LOOKS = 8  # in which nothing came, before a round's record is given up

FetchedBlob = tuple[BroadcastHeader, bytes]


@dataclass(frozen=True)
class FetchedStanzas:
    """What is to be looked through before the rest of a manifest in pieces is of use."""

    manifest: Manifest
    stanzas: bytes


HeaderTest = Callable[[BroadcastHeader], bool]


class Fetches:
    """Offered blobs by digest. What is complete is handed out once and forgotten.

    What stays, such as a round that came before its job, is handed out when it is offered again.
    Of a manifest in pieces the stanzas are handed out first; its stream is asked for, and then
    handed out with them as one blob, once they are found to be of use (`go_on`).
    """

    def __init__(
        self, settings: DeviceSettings, backoff: Backoff, sealing: Sequence[SealingKey] = ()
    ) -> None:
        """`sealing` are the keys that this device's stanzas are sealed to: it looks in the buckets
        of these alone (none: in all)."""
        self._settings, self._backoff, self._sealing = settings, backoff, sealing
        self.under_way: dict[bytes, Fetch[BroadcastHeader]] = {}

    def make_room(
        self,
        offer: Offer,
        header: BroadcastHeader,
        over: HeaderTest = lambda _header: False,
    ) -> None:
        """Be ready to fetch: what is `over` is forgotten, what stands still gives way to the new.

        Raises ProtocolError `too_many_fetches`, and changes nothing, if what is under way moves.
        """
        kept = {d: f for d, f in self.under_way.items() if f.header == header or not over(f.header)}
        if not offer.data and all(fetch.header != header for fetch in kept.values()):
            still = sorted((f.idle_looks, d) for d, f in kept.items() if f.idle_looks)
            while not self._fits(kept, header.blob.size_bytes):
                if not still:
                    raise ProtocolError("too_many_fetches")
                stalled = kept[still.pop()[1]].header
                kept = {d: f for d, f in kept.items() if f.header != stalled}
        self.under_way = kept

    def _fits(self, others: dict[bytes, Fetch[BroadcastHeader]], size_bytes: int) -> bool:
        claimed = sum(fetch.blob.size_bytes for fetch in others.values())
        return len(others) < AT_ONCE and claimed + size_bytes <= self._settings.fetch_bytes

    def has(self, header: BroadcastHeader) -> bool:
        """Whether the blob, or a piece of it, is under way."""
        return any(fetch.header == header for fetch in self.under_way.values())

    def offer(self, offer: Offer, header: BroadcastHeader) -> FetchedBlob | FetchedStanzas | None:
        """Begin a fetch that there is room for, or go on with it; complete if all is in the offer.

        Raises ProtocolError `bad_part` or `bad_digest`.
        """
        if not offer.data and isinstance(header, Manifest) and header.pieces:
            return self._offer_pieces(offer, header)
        digest = header.blob.digest
        fetch = self.under_way.get(digest) or Fetch(
            offer, header, self._settings.blob_bytes, beside=self._may_come_beside(offer)
        )
        self.under_way[digest] = fetch
        for part in first_data(offer, header.blob):
            fetch.add(part)
        return self._finish(fetch) if fetch.assembly.complete else None

    def pull(self, offer: Offer, header: BroadcastHeader, piece: Blob) -> list[fx.Effect]:
        """Ask for a piece alone, which is handed out as if it were the blob."""
        fetch = self.under_way.get(piece.digest) or Fetch(
            offer, header, self._settings.blob_bytes, blob=piece
        )
        self.under_way[piece.digest] = fetch
        need = fetch.wake(b"")
        return [fx.Send(fx.ProxyAddress(), need)] if need and need.indices else []

    def _offer_pieces(self, offer: Offer, header: Manifest) -> FetchedBlob | FetchedStanzas | None:
        stanzas, stream = header.pieces
        if not self.has(header):
            for piece in (stanzas, stream):
                self.under_way[piece.digest] = Fetch[BroadcastHeader](
                    offer,
                    header,
                    self._settings.blob_bytes,
                    blob=piece,
                    idle=piece is stream,
                    only=self._buckets(header) if piece is stanzas else None,
                    beside=self._may_come_beside(offer)
                    and piece.size_bytes >= LEAST_BYTES
                    and not (piece is stanzas and header.buckets > 1),
                )
        front = self.under_way.get(stanzas.digest)
        return self._finish(front) if front and front.assembly.complete else None

    def _may_come_beside(self, offer: Offer) -> bool:
        return offer.beside and bool(self._settings.blob_urls)

    def ask(self, header: BroadcastHeader) -> list[fx.Effect]:
        """What of it does not come by itself is asked for at once."""
        fetches = [one for one in self.under_way.values() if one.header == header and one.beside]
        needs = [need for one in fetches if (need := one.next_need(timer=False))]
        return [fx.Send(fx.ProxyAddress(), need) for need in needs]

    def lies_at(self, at: BlobAt) -> list[fx.Effect]:
        """A blob that was asked for may be had beside the broker. Raises ProtocolError
        `foreign_url`."""
        fetch = self.under_way.get(at.blob)
        return [] if fetch is None else begin_fetch(fetch, at, self._settings.blob_urls)

    def came_beside(
        self, task: FetchBeside, result: object, stays: HeaderTest
    ) -> FetchedBlob | FetchedStanzas | list[fx.Effect]:
        """It has come, or did not: the whole blob, unless it `stays`, or what follows."""
        fetch = self.under_way.get(task.blob.digest)
        if fetch is None:
            return []
        failed = end_fetch(fetch, result)
        if fetch.assembly.complete and not fetch.idle and not stays(fetch.header):
            return self._finish(fetch)
        return failed

    def looks_in(self, level: int, index: int) -> bool:
        """Whether stanzas for this device may be in that bucket."""
        return any(bucket_of(key, level) == index for key in self._sealing)

    def _buckets(self, manifest: Manifest) -> frozenset[int] | None:
        if manifest.buckets == 1 or not self._sealing:
            return None
        return frozenset(bucket_of(key, manifest.buckets) for key in self._sealing)

    def go_on(
        self, manifest: Manifest, stanzas: bytes
    ) -> FetchedBlob | FetchedStanzas | list[fx.Effect]:
        """The stream is of use: the whole blob, or what to ask for. Nothing where it was given up.

        Raises ProtocolError `bad_digest`.
        """
        _, stream = manifest.pieces
        fetch = self.under_way.get(stream.digest)
        if fetch is None or fetch.header != manifest:
            return []
        need = fetch.wake(stanzas)
        if fetch.assembly.complete:
            return self._finish(fetch)
        timer = fx.SetTimer("repair", self._settings.repair_s)
        return [*([fx.Send(fx.ProxyAddress(), need)] if need else []), timer]

    def part(
        self, part: BlobPart, stays: Callable[[BroadcastHeader], bool]
    ) -> FetchedBlob | FetchedStanzas | list[fx.Effect]:
        """Take a part: the whole blob, unless it `stays`, or what to ask for next."""
        fetch = self.under_way.get(part.blob)
        if fetch is None:
            return []  # parts are broadcast: most are of no interest here
        again = part.index in fetch.assembly
        if fetch.add(part) and not fetch.idle:
            if not stays(fetch.header):
                return self._finish(fetch)
            if not again:
                fetch.assembly.finish()  # checks it: what is not the blob is forgotten
            return []
        need = fetch.next_need(timer=False)
        return [fx.Send(fx.ProxyAddress(), need)] if need else []

    def repair(self) -> list[fx.Effect]:
        """Ask for what did not come; look again later, ever more rarely while nothing comes.

        A record that does not come is gone: the proxy keeps a job's newest.
        """
        self.under_way = {
            digest: fetch
            for digest, fetch in self.under_way.items()
            if fetch.header.kind != "commit" or fetch.idle_looks < RECORD_LOOKS
        }
        if not self.under_way:
            return []
        fetches = self.under_way.values()
        needs = [need for fetch in fetches if (need := fetch.next_need(timer=True))]
        looks = max(fetch.idle_looks for fetch in fetches)
        wait_s = self._backoff.wait_s(self._settings.repair_s, looks, self._settings.waits_cap_s)
        return [
            *(fx.Send(fx.ProxyAddress(), need) for need in needs),
            fx.SetTimer("repair", wait_s),
        ]

    def brings_job(self, job_id: bytes) -> bool:
        """Whether this job's package is under way."""
        headers = (fetch.header for fetch in self.under_way.values())
        return any(header.kind == "job" and header.at.job_id == job_id for header in headers)

    def forget(self, over: HeaderTest) -> None:
        """Stop fetching what is over: a fetch that cannot end must not take a place for good."""
        self.under_way = {d: f for d, f in self.under_way.items() if not over(f.header)}

    def _finish(self, fetch: Fetch[BroadcastHeader]) -> FetchedBlob | FetchedStanzas:
        data, header = fetch.before + fetch.assembly.finish(), fetch.header
        del self.under_way[fetch.blob.digest]
        if isinstance(header, Manifest) and fetch.blob in header.pieces[:1]:
            return FetchedStanzas(header, data)
        self.forget(lambda old: old == header)  # its pieces, where it came as a whole
        return header, data


class KnownJobs:
    """Which jobs a device knows, which have ended, and the rounds that wait for their jobs.

    Changes `memory` together with the effects that say so. One timer, `want`.
    """

    def __init__(
        self,
        signer: Signer,
        memory: DeviceMemory,
        settings: DeviceSettings,
        backoff: Backoff,
        fetches: Fetches,
    ) -> None:
        self._signer, self._memory, self._settings, self._backoff = (
            signer,
            memory,
            settings,
            backoff,
        )
        self._fetches = fetches
        self._foreign: dict[bytes, bytes] = {}  # of no use to this device -> the package's digest
        self._at_work: dict[bytes, bytes] = {}  # the host opens or learns it -> likewise
        self._waiting: dict[bytes, tuple[Manifest, Offer, float]] = {}  # rounds, and until when
        self._tries = 0

    def check_open(self, job_id: bytes) -> None:
        """Raise ProtocolError `closed_job` if this device knows that the job has ended."""
        if job_id in self._memory.closed:
            raise ProtocolError("closed_job")

    def fresh(self, announced: Manifest) -> bool:
        """Whether to fetch a job's package."""
        job_id = announced.at.job_id
        tried = (self._foreign.get(job_id), self._at_work.get(job_id))
        return job_id not in self._memory.jobs and announced.blob.digest not in tried

    def complete(self, announced: Manifest) -> None:
        """A package is here. The host is at a job's until `learned` or `of_no_use`."""
        if announced.kind == "job":
            self._at_work[announced.at.job_id] = announced.blob.digest

    def ready(self, job_id: bytes) -> bool:
        """Whether a round of this job can be taken up: the job is known, or of no use here."""
        return job_id in self._memory.jobs or job_id in self._foreign

    # --- rounds that wait ---

    def is_ahead(self, header: BroadcastHeader) -> bool:
        """Whether it is a round of a job that is not known yet."""
        return header.kind == "round" and not self.ready(header.at.job_id)

    def ahead(self, offer: Offer, round_: Manifest, now_s: float) -> list[fx.Effect]:
        """Keep such a round, take what is pushed of its package, and see to its job.

        Raises ProtocolError `too_many_fetches`.
        """
        job_id = round_.at.job_id
        self._fetches.make_room(
            offer, round_, lambda old: self.is_ahead(old) and old.at.job_id == job_id
        )
        before = self._waiting.pop(job_id, None)
        if before is not None and before[0] == round_ and not offer.data:
            offer = before[1]
        until_s = now_s + round_.deadline_s + round_.grace_s
        self._waiting[job_id], self._tries = (round_, offer, until_s), 0
        if len(self._waiting) > self._settings.jobs:
            self._give_up(next(iter(self._waiting)))
        out = self.want_again(now_s)
        if offer.data or self._fetches.has(round_):
            return out
        self._fetches.offer(offer, round_)
        return [*out, fx.SetTimer("repair", self._settings.repair_s)]

    def want_again(self, now_s: float) -> list[fx.Effect]:
        """Ask for jobs that are not coming, ever more rarely until the rounds are over."""
        for job_id in [job for job, (_, _, until_s) in self._waiting.items() if now_s > until_s]:
            self._give_up(job_id)
        if not self._waiting:
            return []
        settings = self._settings
        wait_s = self._backoff.wait_s(settings.resend_s, self._tries, settings.waits_cap_s)
        self._tries += 1
        wanted = [
            Want(job_id)
            for job_id in self._waiting
            if not (job_id in self._at_work or self._fetches.brings_job(job_id))
        ]
        notes = [fx.Send(fx.ProxyAddress(), self._signer.note(want)) for want in wanted]
        return [*notes, fx.SetTimer("want", wait_s)]

    def _give_up(self, job_id: bytes) -> None:
        del self._waiting[job_id]
        self._fetches.forget(lambda old: self.is_ahead(old) and old.at.job_id == job_id)

    def released(self, job_id: bytes) -> Offer | None:
        """The round that waited for this job, once."""
        waiting = self._waiting.pop(job_id, None)
        return None if waiting is None else waiting[1]

    # --- what becomes of a job ---

    def learned(self, job_id: bytes, at_hand: Set[bytes]) -> list[fx.Effect]:
        """The host holds the job. Of more than `settings.jobs` the oldest one ends here.

        Its end was not heard, or the cloud runs too many at once; one with a round `at_hand` is
        not taken.
        """
        self._at_work.pop(job_id, None)
        if job_id in self._memory.closed:  # it ended while the host was at it
            return [fx.Persist(JobClosed(job_id, "forgotten"))]
        self._foreign.pop(job_id, None)
        self._memory.jobs[job_id] = None
        others = [job for job in self._memory.jobs if job != job_id and job not in at_hand]
        surplus = max(0, len(self._memory.jobs) - self._settings.jobs)
        return [effect for job in others[:surplus] for effect in self._end(job, "forgotten")]

    def of_no_use(self, announced: Manifest) -> None:
        """The package is not for this device, or nothing it can learn: not to be fetched again."""
        self._at_work.pop(announced.at.job_id, None)
        self._foreign[announced.at.job_id] = announced.blob.digest
        if len(self._foreign) > self._settings.jobs:
            del self._foreign[next(iter(self._foreign))]

    def closed(self, close: Close) -> list[fx.Effect]:
        """The job has ended; nothing if that was known."""
        return [] if close.job_id in self._memory.closed else self._end(close.job_id, close.status)

    def _end(self, job_id: bytes, status: str) -> list[fx.Effect]:
        memory = self._memory
        memory.closed[job_id] = None
        if len(memory.closed) > CLOSED_KEPT:
            del memory.closed[next(iter(memory.closed))]
        memory.jobs.pop(job_id, None)
        memory.seen.pop(job_id, None)
        self._foreign.pop(job_id, None)
        self._at_work.pop(job_id, None)
        self.released(job_id)
        return [fx.Persist(JobClosed(job_id, status))]
