"""Broadcasts of the cloud at the proxy: receive part by part, verify, store, serve to devices.

**Broadcasts.** A broadcast is a job's announcement, a round, its commit record or a release. A
second, different one of the same kind and round is refused as a fork. Parts are written to disk;
the host verifies the digest and makes the blob durable, and only then is it acknowledged, its round
opened and the blob served: identical bytes to all devices. Of a data set the newest release is
kept, of a job the newest announcement, round and record (`_supersedes`). Without room, the oldest
releases of other data sets are dropped. Late devices are offered the stored broadcasts.

**Releases.** A device's report on a release is kept in memory and acknowledged once the cloud has
it; devices repeat reports, so a restart loses none. Reports are handed over sorted by ciphertext,
at least a batch's minimum at once, and never for a release to fewer devices: the cloud's counts
never concern a single device. The cloud's newest statement on releases is stored, broadcast, and
sent to each connecting device; a withdrawn release is not served."""

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
    """Bytes of a broadcast at `offset`, durable with its `KeepBroadcast`."""

    digest: bytes
    offset: int
    data: bytes


@dataclass(frozen=True)
class KeepBroadcast:
    """Work: verify and store a broadcast. Returns `KeptBroadcast` or `WorkFailed`."""

    signed: m.Envelope
    header: m.BroadcastHeader


@dataclass(frozen=True)
class BroadcastDropped:
    """Removal of a broadcast that is incomplete or stored only by its work."""

    digest: bytes


@dataclass(frozen=True)
class ReleaseReplaced:
    """Removal of a release for a newer one of its data set, or for its room."""

    digest: bytes


@dataclass(frozen=True)
class ReleaseStated:
    """Newest statement of the cloud on releases; withdrawn blobs `gone` may be deleted."""

    note: m.Note
    gone: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class JobEnded:
    job_id: bytes
    note: m.Note


_FRAME_BYTES = 1024  # of a note, without its reports
_EACH_BYTES = m.REPORT_BYTES + 8
_AT_ONCE = 4096


@dataclass
class _Reports:
    """Reports on one release, by device."""

    waiting: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)  # (note digest, sealed)
    held: set[str] = field(default_factory=set)  # devices with a report at the cloud
    under_way: tuple[m.Note, dict[str, tuple[bytes, bytes]]] | None = None


class ProxyReleases:
    """Reports on releases and the cloud's statement, with one timer `reports`."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self._reports: dict[m.RoundId, _Reports] = {}

    def report(self, device: str, report: m.ReleaseReport, note: m.Note) -> fx.Effects:
        """Accept a device's verified report. Raises ProtocolError `wrong_size`."""
        digest = hashlib.sha256(note.body.payload).digest()
        release = self._release(report.at)
        if release is None:
            return [self._ack(device, digest, "closed")]
        if len(report.sealed) != m.REPORT_BYTES:
            raise ProtocolError("wrong_size")
        self._reports = {at: one for at, one in self._reports.items() if self._release(at)}
        reports = self._reports.setdefault(report.at, _Reports())
        if device in reports.held:  # the first one counts
            return [self._ack(device, digest, "held")]
        if reports.under_way is not None and device in reports.under_way[1]:
            return []
        reports.waiting.setdefault(device, (digest, report.sealed))
        out = self._hand_over(release) if self._all_reported(reports) else []
        return [*out, fx.SetTimer("reports", self._context.settings.resend_s)]

    def resend(self) -> fx.Effects:
        out: fx.Effects = []
        for at, reports in self._reports.items():
            release = self._release(at)
            if reports.under_way is not None:
                out.append(fx.Send(fx.CloudAddress(), reports.under_way[0]))
            elif release is not None:
                out += self._hand_over(release)
        return [*out, fx.SetTimer("reports", self._context.settings.resend_s)] if out else []

    def acknowledged(self, ack: m.Ack) -> fx.Effects | None:
        """Acknowledge handed-over reports to their devices; returns None for other acks."""
        for at, reports in self._reports.items():
            if reports.under_way is None:
                continue
            note, handed = reports.under_way
            if hashlib.sha256(note.body.payload).digest() != ack.blob:
                continue
            reports.under_way = None
            reports.held.update(handed)
            acks = [self._ack(device, digest, "held") for device, (digest, _) in handed.items()]
            release = self._release(at)
            more = self._hand_over(release) if release else []
            again = fx.SetTimer("reports", self._context.settings.resend_s)
            return [*acks, *more, *([again] if more else [])]
        return None

    def _hand_over(self, release: m.Manifest) -> fx.Effects:
        reports, context = self._reports[release.at], self._context
        floor = context.settings.min_batch_floor
        # The last few are handed over once all connected devices have reported.
        last = reports.held and self._all_reported(reports)
        few = len(reports.waiting) < (1 if last else floor) or release.selected < floor
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

    def _all_reported(self, reports: _Reports) -> bool:
        return len(reports.waiting) + len(reports.held) >= len(self._context.online)

    def _release(self, at: m.RoundId) -> m.Manifest | None:
        for kept in self._context.memory.kept.values():
            header = kept.header
            if isinstance(header, m.Manifest) and header.at == at and m.wants_reports(header):
                return header
        return None

    def _ack(self, device: str, digest: bytes, status: str) -> fx.Effect:
        return self._context.ack(fx.DeviceAddress(device), digest, status)

    def set_statement(self, new: m.ReleaseStatement, note: m.Note) -> fx.Effects:
        """Store and broadcast a statement. Raises `replayed_statement` or `far_sequence`."""
        memory = self._context.memory
        if self._context.is_far(new.number):
            raise ProtocolError("far_sequence")
        known = self.statement_number()
        if new.number < known:
            raise ProtocolError("replayed_statement")
        digest = hashlib.sha256(note.body.payload).digest()
        held = self._context.ack(fx.CloudAddress(), digest, "held")
        if new.number == known:
            return [held]
        memory.statement = note
        releases = {d: k.header for d, k in memory.kept.items() if k.header.kind == "release"}
        gone = [d for d, header in releases.items() if header.sequence in new.withdrawn]
        for blob in gone:
            del memory.kept[blob]
        return [fx.Persist(ReleaseStated(note, tuple(gone))), held, fx.Send(fx.AllDevices(), note)]

    def welcome(self, device: str) -> fx.Effects:
        note = self._context.memory.statement
        return [fx.Send(fx.DeviceAddress(device), note)] if note else []

    def withdrawn(self, header: m.Manifest) -> bool:
        statement = self._statement()
        return statement is not None and header.sequence in statement.withdrawn

    def statement_number(self) -> int:
        """Return the number of the newest statement, by default -1."""
        statement = self._statement()
        return -1 if statement is None else statement.number

    def _statement(self) -> m.ReleaseStatement | None:
        """Return the newest statement if its key is valid and its number plausible."""
        note = self._context.memory.statement
        with suppress(ProtocolError):
            body = self._context.keys.cloud_body(note.body) if note else None
            if isinstance(body, m.ReleaseStatement) and not self._context.is_far(body.number):
                return body
        return None


UNKNOWN_RELEASE_KEY = "unknown_release_key"
SEALING_MS = 600_000  # maximum age of a job's number on receipt


class Broadcasts:
    """Broadcasts of the cloud, stored on disk; a round's manifest opens the round."""

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

    def offer(self, offer: m.Offer) -> fx.Effects:
        header = self._context.keys.cloud_header(offer.header)
        if not isinstance(header, m.Manifest | m.Commit):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        for kept in self._trusted():
            if (kept.header.kind, kept.header.at) == (header.kind, header.at):  # one of each
                if kept.signed.payload == offer.header.payload:
                    return [self._context.ack(fx.CloudAddress(), digest, "held")]
                return self._refuse(digest, "forked_manifest")
        reason = self._why_not(header)
        if reason == UNKNOWN_RELEASE_KEY and self._context.reading_trust:
            return []  # the root may name the key: the cloud repeats the offer
        if reason:
            return self._refuse(digest, reason)
        if header.blob.size_bytes > self._context.settings.blob_bytes:
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
            out_of_band = offer.out_of_band and bool(self._context.settings.blob_urls)
            fetch = tr.Fetch(offer, header, limit_bytes, keep=False, out_of_band=out_of_band)
            self.arriving[digest] = fetch
            if out_of_band and (need := fetch.next_need(timer=False)):
                out.append(fx.Send(fx.CloudAddress(), need))
        fetch = self.arriving[digest]
        for part in tr.first_data(offer, header.blob):
            out += self._put(fetch, part)
        if fetch.complete:
            return out
        return [*out, fx.SetTimer("repair", self._context.settings.repair_s)]

    def _ended(self, signed: m.Envelope, header: m.BroadcastHeader) -> set[bytes]:
        """Return the blobs that this broadcast replaces; the newest release stays.

        These are superseded ones; for a release also releases under invalid keys, then the oldest
        releases of other data sets if there are too many or their room is needed."""
        kept, most = self._context.memory.kept, self._context.settings.releases_kept
        ended = {d for d, k in kept.items() if _supersedes(header, k.header)}
        releases = [d for d, k in kept.items() if k.header.kind == "release" and d not in ended]
        is_release = header.kind == "release"
        if is_release:
            believed = {one.header.blob.digest for one in self._trusted()}
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
            at, others = header.at, (kept.header for kept in self._trusted())
            later = (c.at for c in others if c.kind == "commit" and c.at.job_id == at.job_id)
            replayed = any((at.round, at.attempt) < (o.round, o.attempt) for o in later)
            return "replayed_commit" if replayed else ""
        if self._context.is_far(header.sequence):
            return "far_sequence"
        if kind == "release" and self._releases.withdrawn(header):
            return "withdrawn_release"
        if kind == "job" and (refusal := self._why_not_job(header)):
            return refusal
        if kind != "round":
            kept = [one.header for one in self._trusted()]
            newer = [h for h in kept if isinstance(h, m.Manifest) and h.sequence > header.sequence]
            replayed = any(_supersedes(header, old) for old in newer)
            return f"replayed_{kind}" if replayed else ""
        if (header.at.round, header.at.attempt) < self._rounds.newest(header.at.job_id):
            return "replayed_round"
        if header.selected < max(header.min_batch, self._context.settings.min_batch_floor):
            return "selected_below_floor"
        if not self._rounds.fits(header):
            return "spool_too_small_for_cover"
        return self._masks.why_not(header)

    def _why_not_job(self, job: m.Manifest) -> str:
        """Return why a job's uploads or release would be refused later, or ""."""
        # Numbers follow the cloud's clock: ignore those issued while the job was sealed.
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
        if self._releases.statement_number() > latest:
            return "replayed_statement"
        kept = [one.header for one in self._trusted()]
        releases = [h for h in kept if isinstance(h, m.Manifest) and h.kind == "release"]
        later = any(h.sequence > latest and _data_set(h) == job.data_set for h in releases)
        return "replayed_release" if later else ""

    def _trusted(self) -> Iterator[KeptBroadcast]:
        """Iterate over broadcasts with a currently valid key and a plausible number."""
        for kept in self._context.memory.kept.values():
            header = kept.header
            if isinstance(header, m.Manifest) and self._context.is_far(header.sequence):
                continue
            with suppress(ProtocolError):
                self._context.keys.cloud_header(kept.signed)
                yield kept

    def _forget_fetches(self, over: Callable[[tr.Fetch[m.BroadcastHeader]], bool]) -> fx.Effects:
        """Drop incomplete broadcasts that the cloud no longer offers."""
        gone = [digest for digest, fetch in self.arriving.items() if over(fetch)]
        for digest in gone:
            del self.arriving[digest]
        return [fx.Persist(BroadcastDropped(digest)) for digest in gone]

    def _refuse(self, digest: bytes, reason: str) -> fx.Effects:
        return [fx.Refuse(reason), self._context.ack(fx.CloudAddress(), digest, "refused", reason)]

    def part(self, part: m.BlobPart) -> fx.Effects:
        fetch = self.arriving.get(part.blob)
        if fetch is None or part.index in fetch:
            return []
        out = self._put(fetch, part)
        need = fetch.next_need(timer=False)
        return [*out, fx.Send(fx.CloudAddress(), need)] if need else out

    def begin_fetch(self, at: m.BlobAt) -> fx.Effects:
        """Fetch a broadcast from a URL. Raises ProtocolError `foreign_url`."""
        fetch = self.arriving.get(at.blob)
        return [] if fetch is None else tr.begin_fetch(fetch, at, self._context.settings.blob_urls)

    def end_fetch(self, task: tr.FetchOutOfBand, result: object) -> fx.Effects:
        fetch = self.arriving.get(task.blob.digest)
        if fetch is None:
            known = task.blob.digest in self._context.memory.kept
            return [] if known else [fx.Persist(BroadcastDropped(task.blob.digest))]
        failed = tr.end_fetch(fetch, result)
        if fetch.complete:
            return [fx.Work(KeepBroadcast(fetch.offer.header, fetch.header))]
        return failed

    def _put(self, fetch: tr.Fetch[m.BroadcastHeader], part: m.BlobPart) -> fx.Effects:
        if part.index in fetch:
            return []
        complete = fetch.add(part)
        offset = part.index * fetch.header.blob.part_bytes
        out: fx.Effects = [fx.Persist(BroadcastPart(part.blob, offset, part.data))]
        if complete:
            out.append(fx.Work(KeepBroadcast(fetch.offer.header, fetch.header)))
        return out

    def kept(self, task: KeepBroadcast, result: object) -> fx.Effects:
        """Acknowledge the stored blob, open its round and serve it."""
        header, digest = task.header, task.header.blob.digest
        fetch = self.arriving.get(digest)
        if fetch is None or fetch.header != header:  # overtaken meanwhile
            known = fetch is not None or digest in self._context.memory.kept
            return [] if known else [fx.Persist(BroadcastDropped(digest))]
        del self.arriving[digest]
        if not isinstance(result, KeptBroadcast):
            reason = result.reason if isinstance(result, fx.WorkFailed) else "bad_digest"
            return [fx.Persist(BroadcastDropped(digest)), fx.Refuse(reason)]
        if late := self._why_not(header):
            return [fx.Persist(BroadcastDropped(digest)), *self._refuse(digest, late)]
        out: fx.Effects = self._make_room(task.signed, header)
        self._context.memory.kept[digest] = result
        out += [fx.Persist(result), self._context.ack(fx.CloudAddress(), digest, "held")]
        if isinstance(header, m.Commit):
            out += self._rounds.drop(header.at)
        elif header.kind == "round":
            out += self._rounds.begin(header)
        return out + self._serving.pass_on(fx.AllDevices(), result)

    def _make_room(self, signed: m.Envelope, header: m.BroadcastHeader) -> fx.Effects:
        """Drop superseded broadcasts and rounds; a commit deletes its round's key."""
        memory = self._context.memory
        if isinstance(header, m.Commit):
            closed = [d for d, k in memory.kept.items() if k.header.at == header.at]
            memory.kept |= {digest: replace(memory.kept[digest], key=None) for digest in closed}
        ended = self._ended(signed, header)
        gone = {d: k for d, k in memory.kept.items() if d in ended}
        memory.kept = {d: k for d, k in memory.kept.items() if d not in ended}
        out = self._rounds.drop_job(header.at.job_id) if header.kind == "round" else []
        own = header.blob.digest  # a release sealed to the same bytes keeps its file
        replaced = [d for d, k in gone.items() if k.header.kind == "release" and d != own]
        return [*out, *(fx.Persist(ReleaseReplaced(digest)) for digest in replaced)]

    def close(self, close: m.Close, note: m.Note) -> fx.Effects:
        """End a job: delete all but its release and last record, and notify devices."""
        memory, job_id = self._context.memory, close.job_id
        out: fx.Effects = []
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
            memory.halves = {k: v for k, v in memory.halves.items() if k[0] != job_id}
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

    def repair(self) -> fx.Effects:
        if not self.arriving:
            return []
        needs = [fetch.next_need(timer=True) for fetch in self.arriving.values()]
        out: fx.Effects = [fx.Send(fx.CloudAddress(), need) for need in needs if need]
        return [*out, fx.SetTimer("repair", self._context.settings.repair_s)]


def _cost_bytes(signed: m.Envelope, header: m.BroadcastHeader) -> int:
    return header.blob.size_bytes + len(signed.payload)


def _overtakes(new: m.BroadcastHeader, fetch: tr.Fetch[m.BroadcastHeader]) -> bool:
    """Return whether a fetch is obsolete; one that is being verified is not."""
    # The cloud no longer offers a record that is incomplete when the next round arrives.
    old = fetch.header
    gone = new.kind == "round" and old.kind == "commit" and new.at.job_id == old.at.job_id
    return new != old and (gone or _supersedes(new, old)) and not fetch.complete


def _supersedes(new: m.BroadcastHeader, old: m.BroadcastHeader) -> bool:
    """Return whether `new` replaces `old`, of its data set or job."""
    if new.kind == "release":
        return old.kind == "release" and _data_set(new) == _data_set(old)
    return new.kind == old.kind and new.at.job_id == old.at.job_id


def _data_set(header: m.BroadcastHeader) -> bytes:
    return header.data_set if isinstance(header, m.Manifest) else b""


# A round with unselected devices, and its record, are sent whole up to these sizes.
UNSELECTED_BYTES = 8192
RECORD_BYTES = 1280
# For a connecting device: a record settles an upload before the next round would replace it.
_ORDER = {"job": 0, "commit": 1, "round": 2, "release": 3}


@dataclass(frozen=True)
class _Served:
    """Parts of a blob in a device's last two requests, remembered until `until_s`."""

    blob: bytes
    until_s: float = 0.0
    last: frozenset[int] = frozenset()
    before: frozenset[int] = frozenset()


def _pieces(kept: KeptBroadcast) -> Iterator[tuple[m.Blob, tr.Data]]:
    start = 0
    for piece in kept.header.pieces:
        yield piece, tr.Piece(kept.data, start, piece.size_bytes)
        start += piece.size_bytes


class Serving:
    """Serves stored broadcasts to devices, reading only the requested slices."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self._served: dict[str, _Served] = {}  # only of admitted devices
        self._wanted: dict[str, float] = {}  # likewise; no job before this time
        settings = context.settings
        self.shown = tr.ShownBlobs(context.signer, settings.out_of_band_bytes, settings.url_valid_s)

    def pass_on(self, to: fx.Address, kept: KeptBroadcast) -> fx.Effects:
        """Offer a broadcast, pushing its parts to all devices if it is small.

        Of a round with unselected devices only stanzas are pushed (each bucket to its devices), of
        a record nothing, as devices request their pieces; with cover traffic everything is pushed.
        """
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
        out_of_band = any(self.shown.takes(piece) for piece, _ in (pieces or pushed))
        out: fx.Effects = [*key, fx.Send(to, m.Offer(kept.signed, out_of_band=out_of_band))]
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

    def _key(self, to: fx.Address, kept: KeptBroadcast) -> fx.Effects:
        if kept.key is None:
            return []
        public, memory = kept.key.public().to_bytes(), self._context.memory.name
        key = m.RoundKey(kept.header.at, public, memory)
        return [fx.Send(to, self._context.signer.note(key))]

    def need(self, device: str, need: m.Need, now_s: float) -> fx.Effects:
        """Send requested parts to a device, except those sent to it recently."""
        if self._context.registry.verify_key(device) is None:
            raise ProtocolError("unknown_signer")
        blob, data = self._found(need.blob)
        if need.out_of_band:
            answer = self.shown.answer(fx.DeviceAddress(device), blob, data, now_s)
            if answer is not None:
                return answer
        served = self._served.get(device)
        if served is None or served.blob != need.blob or now_s >= served.until_s:
            served = _Served(need.blob)
        sent = served.last | served.before
        fresh = frozenset(sorted(set(need.indices) - sent)[: tr.NEED_LIMIT])
        if not fresh:
            return []
        until_s = now_s + self._context.settings.need_repeat_s
        self._served[device] = _Served(need.blob, until_s, fresh, served.last)
        unsent = m.Need(need.blob, tuple(fresh))
        return tr.answer_need(fx.DeviceAddress(device), unsent, blob, data)

    def _found(self, digest: bytes) -> tuple[m.Blob, tr.Data]:
        """Return a stored blob or piece with its data. Raises ProtocolError `unknown_blob`."""
        for kept in reversed(
            self._context.memory.kept.values()
        ):  # most requests are for the newest
            for blob, data in chain(((kept.header.blob, kept.data),), _pieces(kept)):
                if blob.digest == digest:
                    return blob, data
        raise ProtocolError("unknown_blob")

    def want(self, device: str, job_id: bytes, now_s: float) -> fx.Effects:
        """Offer a job to a device. Raises ProtocolError `want_too_often`."""
        if now_s < self._wanted.get(device, 0.0):
            raise ProtocolError("want_too_often")
        self._wanted[device] = now_s + self._context.settings.want_repeat_s
        kept = [k for k in self._context.memory.kept.values() if k.header.at.job_id == job_id]
        jobs = [k for k in kept if k.header.kind == "job"]
        return [effect for job in jobs for effect in self.pass_on(fx.DeviceAddress(device), job)]

    def welcome(self, device: str, open_rounds: Container[m.RoundId]) -> fx.Effects:
        """Offer all current broadcasts to a newly connected device, jobs first."""
        memory, out = self._context.memory, fx.Effects()
        for kept in sorted(memory.kept.values(), key=lambda k: _ORDER[k.header.kind]):
            kind, at = kept.header.kind, kept.header.at
            closed = kind == "round" and at not in open_rounds
            if not closed and (kind == "release" or at.job_id not in memory.ended):
                out += self.pass_on(fx.DeviceAddress(device), kept)
        return out + [fx.Send(fx.DeviceAddress(device), note) for note in memory.ended.values()]
