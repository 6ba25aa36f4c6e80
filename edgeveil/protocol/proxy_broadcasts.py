"""The cloud's broadcasts at the proxy: taken part by part, checked, kept, passed on.

Theory of operation. A broadcast is one of four kinds: a job's announcement, a round, its commit
record, a release. Of each there is one place (`_slot`), and a second, different text for a place is
refused as a fork. It comes part by part to the disk; when all is there the host checks the digest
and makes it durable, and only then is it acknowledged, does a round open, and do devices hear of
it: identical bytes for all. Only the newest stays (`_supersedes`): a release replaces the one
before, a round the job's earlier rounds and their commit, and what is still coming in gives way to
what supersedes it. Devices that come late are told what is kept, and may ask for parts, within
bounds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import (
    BlobPart,
    BroadcastHeader,
    Close,
    Commit,
    Envelope,
    ExchangeId,
    Manifest,
    Need,
    Note,
    Offer,
    RoundKey,
)
from edgeveil.protocol.proxy_rounds import ProxyRounds
from edgeveil.protocol.proxy_tasks import (
    BroadcastDropped,
    BroadcastPart,
    JobEnded,
    KeepBroadcast,
    KeptBroadcast,
    ProxyContext,
)
from edgeveil.protocol.transfer import (
    NEED_LIMIT,
    Fetch,
    answer_need,
    check_fetchable,
    first_data,
    sends,
)


class Broadcasts:
    """What the cloud broadcasts, kept for devices. A complete round's manifest opens the round.

    All of it lies on the disk; here are headers and marks of what has come.
    """

    def __init__(
        self,
        context: ProxyContext,
        rounds: ProxyRounds,
        serving: Serving,
        withdrawn: Callable[[Manifest], bool],
        unmasked: Callable[[Manifest], str],
    ) -> None:
        """`withdrawn` says whether the cloud has taken a release back, `unmasked` why a round can
        not be summed under masks (again), or ""."""
        self._context, self._rounds, self._serving = context, rounds, serving
        self._withdrawn, self._unmasked = withdrawn, unmasked
        self.arriving: dict[bytes, Fetch[BroadcastHeader]] = {}  # by blob digest

    @property
    def cached_bytes(self) -> int:
        """Disk taken by broadcasts, or promised to those under way."""
        kept = sum(_cost_bytes(k.signed, k.header) for k in self._context.memory.kept.values())
        return kept + sum(_cost_bytes(f.offer.header, f.header) for f in self.arriving.values())

    # --- from the cloud ---

    def offer(self, offer: Offer) -> list[fx.Effect]:
        """The cloud offers a broadcast, perhaps with the whole blob inside."""
        header = self._context.keys.cloud_header(offer.header)
        if not isinstance(header, Manifest | Commit):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        for kept in self._believed():
            if _slot(kept.header) == _slot(header):
                if kept.signed.payload == offer.header.payload:
                    return [fx.Send(fx.CloudAddress(), self._context.ack(digest, "held"))]
                return self._refuse(digest, "forked_manifest")
        reason = self._why_not(header)
        if reason:
            return self._refuse(digest, reason)
        check_fetchable(offer, header.blob, self._context.settings.blob_bytes)
        out = self._forget_fetches(lambda fetch: _overtakes(header, fetch))
        if digest not in self.arriving:
            if self._bytes_with(offer.header, header) > self._context.settings.cache_bytes:
                return [*out, *self._refuse(digest, "cache_full")]
            limit_bytes = self._context.settings.blob_bytes
            self.arriving[digest] = Fetch(offer, header, limit_bytes, keep=False)
        fetch = self.arriving[digest]
        for part in first_data(offer, header.blob):
            out += self._put(fetch, part)
        if fetch.assembly.complete:
            return out
        return [*out, fx.SetTimer("repair", self._context.settings.repair_s)]

    def _bytes_with(self, signed: Envelope, header: BroadcastHeader) -> int:
        """What the cache would hold with this broadcast, and without those that it ends."""
        kept = self._context.memory.kept.values()
        over = sum(_cost_bytes(k.signed, k.header) for k in kept if _supersedes(header, k.header))
        return self.cached_bytes - over + _cost_bytes(signed, header)

    def _why_not(self, header: BroadcastHeader) -> str:
        """The reason to refuse a broadcast, or an empty string."""
        kind = header.kind
        if kind != "release" and header.at.job_id in self._context.memory.ended:
            return "closed_job"
        if isinstance(header, Commit):
            return ""
        if kind == "release" and self._withdrawn(header):
            return "withdrawn_release"
        if kind != "round":
            kept = [one.header for one in self._believed()]
            newer = [h for h in kept if isinstance(h, Manifest) and h.sequence > header.sequence]
            over = any(_supersedes(header, old) for old in newer)
            return f"replayed_{kind}" if over else ""
        if (header.at.exchange, header.at.attempt) < self._rounds.newest(header.at.job_id):
            return "replayed_round"
        if header.selected < max(header.min_batch, self._context.settings.min_batch_floor):
            return "selected_below_floor"
        if not self._rounds.fits(header):
            return "spool_too_small_for_cover"
        return self._unmasked(header)

    def _believed(self) -> Iterator[KeptBroadcast]:
        """What is kept and signed with a key that still counts: a leaked one's holds up nothing."""
        for kept in self._context.memory.kept.values():
            with suppress(ProtocolError):
                self._context.keys.cloud_header(kept.signed)
                yield kept

    def _forget_fetches(self, over: Callable[[Fetch[BroadcastHeader]], bool]) -> list[fx.Effect]:
        """The cloud has moved on: what it no longer offers cannot be completed."""
        gone = [digest for digest, fetch in self.arriving.items() if over(fetch)]
        for digest in gone:
            del self.arriving[digest]
        return [fx.Persist(BroadcastDropped(digest)) for digest in gone]

    def _refuse(self, digest: bytes, reason: str) -> list[fx.Effect]:
        return [
            fx.Refuse(reason),
            fx.Send(fx.CloudAddress(), self._context.ack(digest, "refused", reason)),
        ]

    def part(self, part: BlobPart) -> list[fx.Effect]:
        """A part of a broadcast under way."""
        fetch = self.arriving.get(part.blob)
        if fetch is None or part.index in fetch.assembly:
            return []
        out = self._put(fetch, part)
        need = fetch.next_need(timer=False)
        return [*out, fx.Send(fx.CloudAddress(), need)] if need else out

    def _put(self, fetch: Fetch[BroadcastHeader], part: BlobPart) -> list[fx.Effect]:
        """A part goes to the disk; the whole is checked there."""
        if part.index in fetch.assembly:
            return []
        complete = fetch.add(part)
        offset = part.index * fetch.header.blob.part_bytes
        out: list[fx.Effect] = [fx.Persist(BroadcastPart(part.blob, offset, part.data))]
        if complete:
            out.append(fx.Work(KeepBroadcast(fetch.offer.header, fetch.header)))
        return out

    def kept(self, task: KeepBroadcast, result: object) -> list[fx.Effect]:
        """The whole blob is here: say so, open the round, pass it on."""
        header, digest = task.header, task.header.blob.digest
        fetch = self.arriving.get(digest)
        if fetch is None or fetch.header != header:  # it was overtaken meanwhile
            known = fetch is not None or digest in self._context.memory.kept
            return [] if known else [fx.Persist(BroadcastDropped(digest))]
        del self.arriving[digest]
        if not isinstance(result, KeptBroadcast):
            reason = result.reason if isinstance(result, fx.WorkFailed) else "bad_digest"
            return [fx.Persist(BroadcastDropped(digest)), fx.Refuse(reason)]
        at = header.at
        if isinstance(header, Commit) and (at.exchange, at.attempt) < self._rounds.newest(
            at.job_id
        ):
            # The next round came while this was checked; who is there still hears it.
            told = [fx.Send(fx.CloudAddress(), self._context.ack(digest, "held"))]
            passed = self._serving.pass_on(fx.AllDevices(), result)
            return [*told, *passed, fx.Persist(BroadcastDropped(digest))]
        late = self._why_not(header)
        if late:
            return [fx.Persist(BroadcastDropped(digest)), *self._refuse(digest, late)]
        out: list[fx.Effect] = self._make_room(header)
        self._context.memory.kept[digest] = result
        out += [fx.Persist(result), fx.Send(fx.CloudAddress(), self._context.ack(digest, "held"))]
        if isinstance(header, Commit):
            out += self._rounds.drop(header.at)
        elif header.kind == "round":
            out += self._rounds.begin(header)
        return out + self._serving.pass_on(fx.AllDevices(), result)

    def _make_room(self, header: BroadcastHeader) -> list[fx.Effect]:
        """A new round of a job ends its earlier ones; of broadcasts only the newest stays.

        A round that is committed takes no more seeds: what opens them goes.
        """
        memory = self._context.memory
        if isinstance(header, Commit):
            closed = [d for d, k in memory.kept.items() if k.header.at == header.at]
            memory.kept |= {digest: replace(memory.kept[digest], key=None) for digest in closed}
        memory.kept = {d: k for d, k in memory.kept.items() if not _supersedes(header, k.header)}
        return self._rounds.drop_job(header.at.job_id) if header.kind == "round" else []

    def close(self, close: Close, note: Note) -> list[fx.Effect]:
        """A job ended: forget all of it but the release, tell the devices, say that we heard."""
        memory, job_id = self._context.memory, close.job_id
        out: list[fx.Effect] = []
        if job_id not in memory.ended:
            out += self._rounds.drop_job(job_id)
            out += self._forget_fetches(lambda fetch: fetch.header.at.job_id == job_id)
            memory.kept = {
                digest: kept
                for digest, kept in memory.kept.items()
                if kept.header.at.job_id != job_id or kept.header.kind == "release"
            }
            memory.ended[job_id] = note
            if any(job == job_id for job, _ in memory.unmasked):
                memory.summed.add(job_id)
                memory.unmasked = {k: v for k, v in memory.unmasked.items() if k[0] != job_id}
            while len(memory.ended) > self._context.settings.ended_kept:
                del memory.ended[next(iter(memory.ended))]
            out += [fx.Persist(JobEnded(job_id, note)), fx.Send(fx.AllDevices(), note)]
        digest = hashlib.sha256(note.body.payload).digest()
        return [*out, fx.Send(fx.CloudAddress(), self._context.ack(digest, "held"))]

    def repair(self) -> list[fx.Effect]:
        """Ask the cloud for what did not come."""
        if not self.arriving:
            return []
        needs = [fetch.next_need(timer=True) for fetch in self.arriving.values()]
        out: list[fx.Effect] = [fx.Send(fx.CloudAddress(), need) for need in needs if need]
        return [*out, fx.SetTimer("repair", self._context.settings.repair_s)]


def _slot(header: BroadcastHeader) -> tuple[str, ExchangeId]:
    """The place of which there is only one: a second, different header there is a fork."""
    return header.kind, header.at


def _cost_bytes(signed: Envelope, header: BroadcastHeader) -> int:
    return header.blob.size_bytes + len(signed.payload)


def _overtakes(new: BroadcastHeader, fetch: Fetch[BroadcastHeader]) -> bool:
    """Whether a fetch is of no use from now on. One that is only being checked may still be."""
    old = fetch.header
    return new != old and _supersedes(new, old) and not fetch.assembly.complete


def _supersedes(new: BroadcastHeader, old: BroadcastHeader) -> bool:
    """Only the newest release stays; of a job, its announcement, newest round and its commit."""
    same_job = new.at.job_id == old.at.job_id
    match new.kind:
        case "release":
            return old.kind == "release"
        case "job":
            return same_job and old.kind == "job"
        case "round":
            return same_job and old.kind in ("round", "commit")
    return False


# --- to devices ------------------------------------------------------------------------------

_ORDER = {"job": 0, "round": 1, "release": 2, "commit": 3}


@dataclass(frozen=True)
class _Served:
    """What a device was sent of a blob, in its last two requests, and until when that counts."""

    blob: bytes
    until_s: float = 0.0
    last: frozenset[int] = frozenset()
    before: frozenset[int] = frozenset()


class Serving:
    """Serves what the proxy's memory keeps to devices; only slices of it are read."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self._served: dict[str, _Served] = {}  # of admitted devices alone
        self._wanted: dict[str, float] = {}  # likewise: until when no job is sent again

    def pass_on(self, to: fx.Address, kept: KeptBroadcast) -> list[fx.Effect]:
        """The broadcast's offer; to all at once, the whole of one that is small."""
        blob, limit = kept.header.blob, self._context.settings
        push = isinstance(to, fx.AllDevices) and blob.size_bytes <= limit.push_bytes
        key = self._key(to, kept)
        return [*key, *sends(to, kept.signed, blob, kept.data, limit.packet_bytes, push=push)]

    def _key(self, to: fx.Address, kept: KeptBroadcast) -> list[fx.Effect]:
        """What the seeds of a masked round are sealed to, ahead of it."""
        if kept.key is None:
            return []
        public, memory = kept.key.public().to_bytes(), self._context.memory.name
        told = RoundKey(kept.header.at, public, memory)
        return [fx.Send(to, self._context.signer.note(told))]

    def need(self, device: str, need: Need, now_s: float) -> list[fx.Effect]:
        """An admitted device asks for parts; what is still on its way is not sent again."""
        if self._context.registry.verify_key(device) is None:
            raise ProtocolError("unknown_signer")
        kept = self._context.memory.kept.get(need.blob)
        if kept is None:
            raise ProtocolError("unknown_blob")
        served = self._served.get(device)
        if served is None or served.blob != need.blob or now_s >= served.until_s:
            served = _Served(need.blob)
        sent = served.last | served.before
        fresh = frozenset(sorted(set(need.indices) - sent)[:NEED_LIMIT])
        if not fresh:
            return []
        until_s = now_s + self._context.settings.need_repeat_s
        self._served[device] = _Served(need.blob, until_s, fresh, served.last)
        asked = Need(need.blob, tuple(fresh))
        return answer_need(fx.DeviceAddress(device), asked, kept.header.blob, kept.data)

    def want(self, device: str, job_id: bytes, now_s: float) -> list[fx.Effect]:
        """An admitted device asks for a job; raises ProtocolError `want_too_often`."""
        if now_s < self._wanted.get(device, 0.0):
            raise ProtocolError("want_too_often")
        self._wanted[device] = now_s + self._context.settings.want_repeat_s
        kept = [k for k in self._context.memory.kept.values() if k.header.at.job_id == job_id]
        jobs = [k for k in kept if k.header.kind == "job"]
        return [effect for job in jobs for effect in self.pass_on(fx.DeviceAddress(device), job)]

    def welcome(self, device: str, open_rounds: Container[ExchangeId]) -> list[fx.Effect]:
        """What a device that just came should know, jobs first.

        A round that takes no more uploads is not among it: work for it would be for nothing.
        """
        memory, out = self._context.memory, list[fx.Effect]()
        for kept in sorted(memory.kept.values(), key=lambda k: _ORDER[k.header.kind]):
            if kept.header.kind != "round" or kept.header.at in open_rounds:
                out += self.pass_on(fx.DeviceAddress(device), kept)
        return out + [fx.Send(fx.DeviceAddress(device), note) for note in memory.ended.values()]
