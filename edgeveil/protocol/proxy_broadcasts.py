"""The cloud's broadcasts at the proxy: taken part by part, checked, kept, passed on.

Theory of operation. A broadcast is a job's announcement, a round, its commit record, or a release.
A second, different text of one kind and number is refused as a fork. It comes part by part to the
disk; the host checks the digest and makes it durable, and only then is it acknowledged, does a
round open, and do devices hear of it: identical bytes for all. Only the newest stays
(`_supersedes`): of a data set its release, of a job its round and its commit record, so a record
outlives the next round. Without room the releases of other data sets give way, the oldest first.
Devices that come late are told what is kept, and may ask for parts, within bounds (`Serving`).

A device's report on a release is kept in memory alone and acknowledged when the cloud has it: a
proxy that starts anew loses nothing, as devices repeat it. Reports are handed over together, at
least as many as a batch has, sorted by their ciphertext, and of no release that was sealed for
fewer devices: what the cloud counts is never one device's. Of the cloud's statements on releases
the newest is kept, passed on, and sent to whoever comes; a withdrawn release is served no more."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.proxy_rounds import KeptBroadcast, ProxyContext, ProxyMasks, ProxyRounds


@dataclass(frozen=True)
class BroadcastPart:
    """Some of a broadcast's bytes, to be put at `offset`; durable with its `KeepBroadcast`."""

    digest: bytes
    offset: int
    data: bytes


@dataclass(frozen=True)
class KeepBroadcast:
    """Work: check the digest, make it durable. Result `KeptBroadcast` or `WorkFailed`."""

    signed: m.Envelope
    header: m.BroadcastHeader


@dataclass(frozen=True)
class BroadcastDropped:
    """A broadcast that was under way, or kept by its work alone, is of no use any more."""

    digest: bytes


@dataclass(frozen=True)
class ReleaseReplaced:
    """A kept release gave its place to a newer one of its data set, or to what needed its room."""

    digest: bytes


@dataclass(frozen=True)
class ReleaseStated:
    """The cloud's newest statement on releases; the blobs of those that it withdrew may go."""

    note: m.Note
    gone: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JobEnded:
    job_id: bytes
    note: m.Note


_FRAME_BYTES = 1024  # of a note, beside its reports
_EACH_BYTES = m.REPORT_BYTES + 8
_AT_ONCE = 4096


@dataclass
class _Reports:
    """Of one release: what each device said, by its note's digest, and what the cloud has."""

    waiting: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)  # (note digest, sealed)
    told: dict[str, bytes] = field(default_factory=dict)  # device -> its note's digest
    under_way: tuple[m.Note, dict[str, tuple[bytes, bytes]]] | None = None


class ProxyReleases:
    """Reports and the statement. One timer, `reports`."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self._of: dict[m.RoundId, _Reports] = {}

    def report(self, device: str, report: m.ReleaseReport, note: m.Note) -> list[fx.Effect]:
        """A device's report, verified to be its own. Raises ProtocolError `wrong_size`."""
        digest = hashlib.sha256(note.body.payload).digest()
        release = self._release(report.at)
        if release is None:
            return [self._ack(device, digest, "closed")]
        if len(report.sealed) != m.REPORT_BYTES:
            raise ProtocolError("wrong_size")
        self._of = {at: one for at, one in self._of.items() if self._release(at)}
        reports = self._of.setdefault(report.at, _Reports())
        if device in reports.told:  # the first one counts
            return [self._ack(device, digest, "held")]
        if reports.under_way is not None and device in reports.under_way[1]:
            return []
        reports.waiting.setdefault(device, (digest, report.sealed))
        out = self._hand_over(release) if self._all_said(reports) else []
        return [*out, fx.SetTimer("reports", self._context.settings.resend_s)]

    def look(self) -> list[fx.Effect]:
        out: list[fx.Effect] = []
        for at, reports in self._of.items():
            release = self._release(at)
            if reports.under_way is not None:
                out.append(fx.Send(fx.CloudAddress(), reports.under_way[0]))
            elif release is not None:
                out += self._hand_over(release)
        return [*out, fx.SetTimer("reports", self._context.settings.resend_s)] if out else []

    def acknowledged(self, ack: m.Ack) -> list[fx.Effect] | None:
        """The cloud has what was handed over, and its devices hear so; None for anything else."""
        for at, reports in self._of.items():
            if reports.under_way is None:
                continue
            note, handed = reports.under_way
            if hashlib.sha256(note.body.payload).digest() != ack.blob:
                continue
            reports.under_way = None
            reports.told |= {device: digest for device, (digest, _) in handed.items()}
            told = [self._ack(device, digest, "held") for device, (digest, _) in handed.items()]
            release = self._release(at)
            more = self._hand_over(release) if release else []
            again = fx.SetTimer("reports", self._context.settings.resend_s)
            return [*told, *more, *([again] if more else [])]
        return None

    def _hand_over(self, release: m.Manifest) -> list[fx.Effect]:
        reports, context = self._of[release.at], self._context
        floor = context.settings.min_batch_floor
        # The last few follow once nobody is left for whom they could wait.
        rest = reports.told and self._all_said(reports)
        few = len(reports.waiting) < (1 if rest else floor) or release.selected < floor
        if few or reports.under_way is not None:
            return []
        most = min(_AT_ONCE, (context.settings.packet_bytes - _FRAME_BYTES) // _EACH_BYTES)
        handed = dict(sorted(reports.waiting.items(), key=lambda one: one[1][1])[: max(most, 1)])
        for device in handed:
            del reports.waiting[device]
        sealed = tuple(sealed for _, sealed in handed.values())
        note = context.signer.note(m.ReleaseReports(release.at, sealed))
        reports.under_way = note, handed
        return [fx.Send(fx.CloudAddress(), note)]

    def _all_said(self, reports: _Reports) -> bool:
        return len(reports.waiting) + len(reports.told) >= len(self._context.online)

    def _release(self, at: m.RoundId) -> m.Manifest | None:
        for kept in self._context.memory.kept.values():
            header = kept.header
            if isinstance(header, m.Manifest) and header.at == at and m.wants_reports(header):
                return header
        return None

    def _ack(self, device: str, digest: bytes, status: str) -> fx.Effect:
        return self._context.ack(fx.DeviceAddress(device), digest, status)

    def stated(self, said: m.ReleaseStatement, note: m.Note) -> list[fx.Effect]:
        """Keep and pass on. Raises `replayed_statement` or `far_sequence`."""
        memory = self._context.memory
        if self._context.is_far(said.number):
            raise ProtocolError("far_sequence")
        known = self.number()
        if said.number < known:
            raise ProtocolError("replayed_statement")
        digest = hashlib.sha256(note.body.payload).digest()
        held = self._context.ack(fx.CloudAddress(), digest, "held")
        if said.number == known:
            return [held]
        memory.statement = note
        releases = {d: k.header for d, k in memory.kept.items() if k.header.kind == "release"}
        gone = [d for d, header in releases.items() if header.sequence in said.withdrawn]
        for blob in gone:
            del memory.kept[blob]
        return [fx.Persist(ReleaseStated(note, tuple(gone))), held, fx.Send(fx.AllDevices(), note)]

    def welcome(self, device: str) -> list[fx.Effect]:
        note = self._context.memory.statement
        return [fx.Send(fx.DeviceAddress(device), note)] if note else []

    def withdrawn(self, header: m.Manifest) -> bool:
        said = self._said()
        return said is not None and header.sequence in said.withdrawn

    def number(self) -> int:
        """Of the newest statement; -1 without one."""
        said = self._said()
        return -1 if said is None else said.number

    def _said(self) -> m.ReleaseStatement | None:
        """The newest statement, if its key counts and a clock can have given it."""
        note = self._context.memory.statement
        with suppress(ProtocolError):
            said = self._context.keys.cloud_body(note.body) if note else None
            if isinstance(said, m.ReleaseStatement) and not self._context.is_far(said.number):
                return said
        return None


UNKNOWN_RELEASE_KEY = "unknown_release_key"
SEALING_MS = 600_000  # between the number of a job's announcement and its coming


class Broadcasts:
    """What the cloud broadcasts, kept on the disk. A round's manifest opens the round."""

    def __init__(
        self,
        context: ProxyContext,
        rounds: ProxyRounds,
        serving: Serving,
        releases: ProxyReleases,
        masks: ProxyMasks,
    ) -> None:
        self._context, self._rounds, self._serving = context, rounds, serving
        self._releases, self._masks = releases, masks
        self.arriving: dict[bytes, tr.Fetch[m.BroadcastHeader]] = {}  # by blob digest

    @property
    def cached_bytes(self) -> int:
        kept = sum(_cost_bytes(k.signed, k.header) for k in self._context.memory.kept.values())
        return kept + sum(_cost_bytes(f.offer.header, f.header) for f in self.arriving.values())

    def offer(self, offer: m.Offer) -> list[fx.Effect]:
        header = self._context.keys.cloud_header(offer.header)
        if not isinstance(header, m.Manifest | m.Commit):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        for kept in self._believed():
            if (kept.header.kind, kept.header.at) == (header.kind, header.at):  # one of each
                if kept.signed.payload == offer.header.payload:
                    return [self._context.ack(fx.CloudAddress(), digest, "held")]
                return self._refuse(digest, "forked_manifest")
        reason = self._why_not(header)
        if reason == UNKNOWN_RELEASE_KEY and self._context.reading_trust:
            return []  # the root may name it: the cloud sends this again
        if reason:
            return self._refuse(digest, reason)
        if header.blob.size_bytes > self._context.settings.blob_bytes:  # and the cloud hears of it
            return self._refuse(digest, "oversized_blob")
        tr.check_fetchable(offer, header.blob, self._context.settings.blob_bytes)
        if isinstance(header, m.Manifest):
            tr.check_pieces(header, self._context.settings.blob_bytes)
        else:
            tr.check_record(header)
        out = self._forget_fetches(lambda fetch: _overtakes(header, fetch))
        if digest not in self.arriving:
            ended = self._ended(offer.header, header)
            if not self._fits(offer.header, header, ended):
                return [*out, *self._refuse(digest, "cache_full")]
            limit_bytes = self._context.settings.blob_bytes
            beside = offer.beside and bool(self._context.settings.blob_urls)
            fetch = tr.Fetch(offer, header, limit_bytes, keep=False, beside=beside)
            self.arriving[digest] = fetch
            if beside and (need := fetch.next_need(timer=False)):
                out.append(fx.Send(fx.CloudAddress(), need))
        fetch = self.arriving[digest]
        for part in tr.first_data(offer, header.blob):
            out += self._put(fetch, part)
        if fetch.complete:
            return out
        return [*out, fx.SetTimer("repair", self._context.settings.repair_s)]

    def _ended(self, signed: m.Envelope, header: m.BroadcastHeader) -> set[bytes]:
        """The blobs that go where this broadcast is kept: what it supersedes; with a release also
        those whose key counts no more; then releases of other data sets, the oldest first, if they
        are too many or take room that it needs. The newest of all releases stays."""
        kept, most = self._context.memory.kept, self._context.settings.releases_kept
        ended = {d for d, k in kept.items() if _supersedes(header, k.header)}
        releases = [d for d, k in kept.items() if k.header.kind == "release" and d not in ended]
        is_release = header.kind == "release"
        if is_release:
            believed = {one.header.blob.digest for one in self._believed()}
            ended.update(d for d in releases if d not in believed)
            releases = [d for d in releases if d in believed]
        while len(releases) + is_release > 1 and (
            len(releases) + is_release > most or not self._fits(signed, header, ended)
        ):
            ended.add(releases.pop(0))
        return ended

    def _fits(self, signed: m.Envelope, header: m.BroadcastHeader, ended: set[bytes]) -> bool:
        gone = [self._context.memory.kept[digest] for digest in ended]
        left = self.cached_bytes - sum(_cost_bytes(k.signed, k.header) for k in gone)
        return left + _cost_bytes(signed, header) <= self._context.settings.cache_bytes

    def _why_not(self, header: m.BroadcastHeader) -> str:
        kind = header.kind
        if kind != "release" and header.at.job_id in self._context.memory.ended:
            return "closed_job"
        if isinstance(header, m.Commit):
            at, others = header.at, (kept.header for kept in self._believed())
            later = (c.at for c in others if c.kind == "commit" and c.at.job_id == at.job_id)
            replayed = any((at.round, at.attempt) < (o.round, o.attempt) for o in later)
            return "replayed_commit" if replayed else ""
        if self._context.is_far(header.sequence):
            return "far_sequence"
        if kind == "release" and self._releases.withdrawn(header):
            return "withdrawn_release"
        if kind == "job" and (ahead := self._no_end(header)):
            return ahead
        if kind != "round":
            kept = [one.header for one in self._believed()]
            newer = [h for h in kept if isinstance(h, m.Manifest) and h.sequence > header.sequence]
            over = any(_supersedes(header, old) for old in newer)
            return f"replayed_{kind}" if over else ""
        if (header.at.round, header.at.attempt) < self._rounds.newest(header.at.job_id):
            return "replayed_round"
        if header.selected < max(header.min_batch, self._context.settings.min_batch_floor):
            return "selected_below_floor"
        if not self._rounds.fits(header):
            return "spool_too_small_for_cover"
        return self._masks.why_not(header)

    def _no_end(self, job: m.Manifest) -> str:
        """Why what a job uploads, or its release, would not be taken, or "". Numbers follow the
        cloud's clock, so what was said while the job was sealed is passed over."""
        context, latest = self._context, job.sequence + SEALING_MS
        limits, least = context.settings, max(job.min_batch, context.settings.min_batch_floor)
        if job.release_proof and not context.keys.will_take_release(job):
            return UNKNOWN_RELEASE_KEY
        if job.broadcast_bytes + job.stanza_bytes > limits.blob_bytes:
            return "oversized_broadcast"
        if job.upload_bytes > limits.upload_bytes:
            return "oversized_upload"
        if least * job.upload_bytes > limits.spool_bytes:
            return "spool_too_small"
        if limits.cover_window_s and len(context.online) * job.upload_bytes > limits.spool_bytes:
            return "spool_too_small_for_cover"
        if self._releases.number() > latest:
            return "replayed_statement"
        kept = [one.header for one in self._believed()]
        of_it = [h for h in kept if isinstance(h, m.Manifest) and h.kind == "release"]
        later = any(h.sequence > latest and _data_set(h) == job.data_set for h in of_it)
        return "replayed_release" if later else ""

    def _believed(self) -> Iterator[KeptBroadcast]:
        """What is kept under a key that still counts and a number of a clock."""
        for kept in self._context.memory.kept.values():
            header = kept.header
            if isinstance(header, m.Manifest) and self._context.is_far(header.sequence):
                continue
            with suppress(ProtocolError):
                self._context.keys.cloud_header(kept.signed)
                yield kept

    def _forget_fetches(
        self, over: Callable[[tr.Fetch[m.BroadcastHeader]], bool]
    ) -> list[fx.Effect]:
        """The cloud has moved on: what it no longer offers cannot be completed."""
        gone = [digest for digest, fetch in self.arriving.items() if over(fetch)]
        for digest in gone:
            del self.arriving[digest]
        return [fx.Persist(BroadcastDropped(digest)) for digest in gone]

    def _refuse(self, digest: bytes, reason: str) -> list[fx.Effect]:
        return [fx.Refuse(reason), self._context.ack(fx.CloudAddress(), digest, "refused", reason)]

    def part(self, part: m.BlobPart) -> list[fx.Effect]:
        fetch = self.arriving.get(part.blob)
        if fetch is None or part.index in fetch:
            return []
        out = self._put(fetch, part)
        need = fetch.next_need(timer=False)
        return [*out, fx.Send(fx.CloudAddress(), need)] if need else out

    def lies_at(self, at: m.BlobAt) -> list[fx.Effect]:
        """Where a broadcast may be had. Raises ProtocolError `foreign_url`."""
        fetch = self.arriving.get(at.blob)
        return [] if fetch is None else tr.begin_fetch(fetch, at, self._context.settings.blob_urls)

    def came_beside(self, task: tr.FetchBeside, result: object) -> list[fx.Effect]:
        fetch = self.arriving.get(task.blob.digest)
        if fetch is None:
            known = task.blob.digest in self._context.memory.kept
            return [] if known else [fx.Persist(BroadcastDropped(task.blob.digest))]
        failed = tr.end_fetch(fetch, result)
        if fetch.complete:
            return [fx.Work(KeepBroadcast(fetch.offer.header, fetch.header))]
        return failed

    def _put(self, fetch: tr.Fetch[m.BroadcastHeader], part: m.BlobPart) -> list[fx.Effect]:
        """A part goes to the disk; the whole is checked there."""
        if part.index in fetch:
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
        late = self._why_not(header)
        if late:
            return [fx.Persist(BroadcastDropped(digest)), *self._refuse(digest, late)]
        out: list[fx.Effect] = self._make_room(task.signed, header)
        self._context.memory.kept[digest] = result
        out += [fx.Persist(result), self._context.ack(fx.CloudAddress(), digest, "held")]
        if isinstance(header, m.Commit):
            out += self._rounds.drop(header.at)
        elif header.kind == "round":
            out += self._rounds.begin(header)
        return out + self._serving.pass_on(fx.AllDevices(), result)

    def _make_room(self, signed: m.Envelope, header: m.BroadcastHeader) -> list[fx.Effect]:
        """A round ends the job's earlier ones; a commit ends its round's key."""
        memory = self._context.memory
        if isinstance(header, m.Commit):
            closed = [d for d, k in memory.kept.items() if k.header.at == header.at]
            memory.kept |= {digest: replace(memory.kept[digest], key=None) for digest in closed}
        ended = self._ended(signed, header)
        gone = {d: k for d, k in memory.kept.items() if d in ended}
        memory.kept = {d: k for d, k in memory.kept.items() if d not in ended}
        out = self._rounds.drop_job(header.at.job_id) if header.kind == "round" else []
        own = header.blob.digest  # of one that was sealed to the same bytes the file goes on
        replaced = [d for d, k in gone.items() if k.header.kind == "release" and d != own]
        return [*out, *(fx.Persist(ReleaseReplaced(digest)) for digest in replaced)]

    def close(self, close: m.Close, note: m.Note) -> list[fx.Effect]:
        """A job ended: forget all but its release and its last record; tell devices."""
        memory, job_id = self._context.memory, close.job_id
        out: list[fx.Effect] = []
        if job_id not in memory.ended:
            out += self._rounds.drop_job(job_id)
            out += self._forget_fetches(lambda fetch: fetch.header.at.job_id == job_id)
            memory.kept = {
                digest: kept
                for digest, kept in memory.kept.items()
                if kept.header.at.job_id != job_id or kept.header.kind in ("release", "commit")
            }
            memory.ended[job_id] = note
            if any(job == job_id for job, _ in memory.unmasked):
                memory.summed.add(job_id)
                memory.unmasked = {k: v for k, v in memory.unmasked.items() if k[0] != job_id}
            while len(memory.ended) > self._context.settings.ended_kept:
                forgotten = next(iter(memory.ended))
                del memory.ended[forgotten]
                memory.kept = {
                    digest: kept
                    for digest, kept in memory.kept.items()
                    if kept.header.at.job_id != forgotten or kept.header.kind == "release"
                }
            out += [fx.Persist(JobEnded(job_id, note)), fx.Send(fx.AllDevices(), note)]
        digest = hashlib.sha256(note.body.payload).digest()
        return [*out, self._context.ack(fx.CloudAddress(), digest, "held")]

    def repair(self) -> list[fx.Effect]:
        """Ask the cloud for what did not come."""
        if not self.arriving:
            return []
        needs = [fetch.next_need(timer=True) for fetch in self.arriving.values()]
        out: list[fx.Effect] = [fx.Send(fx.CloudAddress(), need) for need in needs if need]
        return [*out, fx.SetTimer("repair", self._context.settings.repair_s)]


def _cost_bytes(signed: m.Envelope, header: m.BroadcastHeader) -> int:
    return header.blob.size_bytes + len(signed.payload)


def _overtakes(new: m.BroadcastHeader, fetch: tr.Fetch[m.BroadcastHeader]) -> bool:
    """Whether a fetch is of no use from now on. One that is only being checked may still be; of a
    record that the next round finds incomplete the cloud has no more."""
    old = fetch.header
    gone = new.kind == "round" and old.kind == "commit" and new.at.job_id == old.at.job_id
    return new != old and (gone or _supersedes(new, old)) and not fetch.complete


def _supersedes(new: m.BroadcastHeader, old: m.BroadcastHeader) -> bool:
    """Of a data set only the newest release stays; of a job its announcement, round and commit."""
    if new.kind == "release":
        return old.kind == "release" and _data_set(new) == _data_set(old)
    return new.kind == old.kind and new.at.job_id == old.at.job_id


def _data_set(header: m.BroadcastHeader) -> bytes:
    return header.data_set if isinstance(header, m.Manifest) else b""


# What every device gets of a round that is not for all of them, its record among it: within these
# bounds, the whole of either.
UNSELECTED_BYTES = 8192
RECORD_BYTES = 1280
# To who comes: a record ends an upload before the next round would take its place.
_ORDER = {"job": 0, "commit": 1, "round": 2, "release": 3}


@dataclass(frozen=True)
class _Served:
    """What a device was sent of a blob, in its last two requests, and until when that counts."""

    blob: bytes
    until_s: float = 0.0
    last: frozenset[int] = frozenset()
    before: frozenset[int] = frozenset()


def _pieces(kept: KeptBroadcast) -> Iterator[tuple[m.Blob, tr.Data]]:
    """The stanzas and the stream of a broadcast that is not for everybody, or a record's pieces."""
    start = 0
    for piece in tr.pieces_of(kept.header):
        yield piece, tr.Piece(kept.data, start, piece.size_bytes)
        start += piece.size_bytes


class Serving:
    """Serves what the proxy's memory keeps to devices; only slices of it are read."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self._served: dict[str, _Served] = {}  # of admitted devices alone
        self._wanted: dict[str, float] = {}  # likewise: until when no job is sent again
        settings = context.settings
        self.shown = tr.ShownBlobs(context.signer, settings.beside_bytes, settings.beside_s)

    def pass_on(self, to: fx.Address, kept: KeptBroadcast) -> list[fx.Effect]:
        """Offer it; to all at once with the whole of a small one. Of a round that is not for
        everybody only its stanzas go to all (each bucket to its devices), unless all cover for
        those who need the rest. Who answered asks for its piece of a record; under cover all get
        the whole."""
        header, limit, key = kept.header, self._context.settings, self._key(to, kept)
        pushed, packet_bytes = [(header.blob, kept.data)], limit.packet_bytes
        pieces = list(_pieces(kept))
        if pieces and isinstance(header, m.Manifest):
            for_all = header.kind != "round" or limit.cover_window_s
            pushed = pieces if for_all else pieces[:1]
            packet_bytes = min(packet_bytes, UNSELECTED_BYTES - RECORD_BYTES)
        elif pieces and not limit.cover_window_s:
            pushed, packet_bytes = [], min(packet_bytes, RECORD_BYTES)
        if tr.fits_offer(kept.signed, kept.data, packet_bytes):
            return [*key, fx.Send(to, m.Offer(kept.signed, kept.data[:]))]
        beside = any(self.shown.takes(piece) for piece, _ in (pieces or pushed))
        out: list[fx.Effect] = [*key, fx.Send(to, m.Offer(kept.signed, beside=beside))]
        if not isinstance(to, fx.AllDevices):
            return out
        level = header.buckets if isinstance(header, m.Manifest) else 1
        for piece, data in pushed:
            bucketed = level > 1 and piece is pushed[0][0]
            small = piece.size_bytes <= limit.push_bytes and not self.shown.takes(piece)
            if bucketed or small:
                out += [
                    fx.Send(fx.BucketAddress(level, part.index) if bucketed else to, part)
                    for part in tr.parts(piece, data)
                ]
        return out

    def _key(self, to: fx.Address, kept: KeptBroadcast) -> list[fx.Effect]:
        if kept.key is None:
            return []
        public, memory = kept.key.public().to_bytes(), self._context.memory.name
        told = m.RoundKey(kept.header.at, public, memory)
        return [fx.Send(to, self._context.signer.note(told))]

    def need(self, device: str, need: m.Need, now_s: float) -> list[fx.Effect]:
        """An admitted device asks for parts; what is still on its way is not sent again."""
        if self._context.registry.verify_key(device) is None:
            raise ProtocolError("unknown_signer")
        blob, data = self._found(need.blob)
        if need.beside:
            told = self.shown.answer(fx.DeviceAddress(device), blob, data, now_s)
            if told is not None:
                return told
        served = self._served.get(device)
        if served is None or served.blob != need.blob or now_s >= served.until_s:
            served = _Served(need.blob)
        sent = served.last | served.before
        fresh = frozenset(sorted(set(need.indices) - sent)[: tr.NEED_LIMIT])
        if not fresh:
            return []
        until_s = now_s + self._context.settings.need_repeat_s
        self._served[device] = _Served(need.blob, until_s, fresh, served.last)
        asked = m.Need(need.blob, tuple(fresh))
        return tr.answer_need(fx.DeviceAddress(device), asked, blob, data)

    def _found(self, digest: bytes) -> tuple[m.Blob, tr.Data]:
        """A kept blob, or a piece of one. Raises ProtocolError `unknown_blob`."""
        for kept in reversed(self._context.memory.kept.values()):  # all ask for the newest
            for blob, data in chain(((kept.header.blob, kept.data),), _pieces(kept)):
                if blob.digest == digest:
                    return blob, data
        raise ProtocolError("unknown_blob")

    def want(self, device: str, job_id: bytes, now_s: float) -> list[fx.Effect]:
        """An admitted device asks for a job; raises ProtocolError `want_too_often`."""
        if now_s < self._wanted.get(device, 0.0):
            raise ProtocolError("want_too_often")
        self._wanted[device] = now_s + self._context.settings.want_repeat_s
        kept = [k for k in self._context.memory.kept.values() if k.header.at.job_id == job_id]
        jobs = [k for k in kept if k.header.kind == "job"]
        return [effect for job in jobs for effect in self.pass_on(fx.DeviceAddress(device), job)]

    def welcome(self, device: str, open_rounds: Container[m.RoundId]) -> list[fx.Effect]:
        """What a device that just came should know, jobs first."""
        memory, out = self._context.memory, list[fx.Effect]()
        for kept in sorted(memory.kept.values(), key=lambda k: _ORDER[k.header.kind]):
            kind, at = kept.header.kind, kept.header.at
            closed = kind == "round" and at not in open_rounds
            if not closed and (kind == "release" or at.job_id not in memory.ended):
                out += self.pass_on(fx.DeviceAddress(device), kept)
        return out + [fx.Send(fx.DeviceAddress(device), note) for note in memory.ended.values()]
