"""Device machine: fetch, open, consent and work, upload, until the upload was counted.

The host does the work; the machine decides freshness, answers and resends. Rounds are in
`device_round.py`; this file has fetches, known jobs, releases and presence.

**Broadcasts.** A round that arrives before its job is kept, the newest of each job, until the job
is known or the round is over. A release is installed unless a newer one is known or it has the tag
of another data set. Rounds older than the newest release are refused: a cloud with lower numbers
could not release its model here, and an answer would waste budget. All state is bounded: a stalled
fetch or the oldest job gives way.

**Reports.** The device reports the outcome of each release that requests it once, at a time in the
first half of the soak time that is derived from device and release only, so that neither the time
nor the existence of a report reveals the outcome. Devices that could not open the release, or have
another data set, send a dummy. Reports are sealed at that time, to include later failures.

**Presence.** While its owner's conditions do not hold (`Command("leave")`, `Command("come")`), a
device takes nothing new, but finishes its work before it sends `Bye`. After a key of the cloud was
replaced (`TakeTrust`), state from under the old key is discarded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgeveil.crypto.buckets import bucket_of
from edgeveil.crypto.keys import SealingKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.messages import KNOWS_CHECKS, Hello
from edgeveil.protocol.sealed import JobPackage, Package, ReleasePackage


@dataclass(frozen=True)
class FindStanza:
    """Work: find a stanza for this device. Returns `StanzaLook` or `WorkFailed`."""

    manifest: m.Manifest
    stanzas: bytes


@dataclass(frozen=True)
class StanzaLook:
    found: bool


@dataclass(frozen=True)
class InstallJob:
    """Work: store a job and its graph. Returns `Installation` or `WorkFailed`."""

    manifest: m.Manifest
    package: JobPackage


@dataclass(frozen=True)
class Installation:
    """Result of durable work without a value."""


@dataclass(frozen=True)
class InstallRelease:
    """Work: switch to the final model. Returns `Installation` or `WorkFailed`."""

    manifest: m.Manifest
    package: ReleasePackage


@dataclass(frozen=True)
class AdoptRelease:
    """Work: take the new sequence of the installed release. Returns as `InstallRelease`."""

    manifest: m.Manifest


@dataclass(frozen=True)
class CountElsewhere:
    """Work: count answers of a copy of this device. Returns `Installation` or `WorkFailed`."""

    behind: m.Behind


@dataclass(frozen=True)
class SealReport:
    """Work: seal a release's outcome, reading no record. Returns `MadeReport` or `WorkFailed`."""

    manifest: m.Manifest


@dataclass(frozen=True)
class MadeReport:
    """Report or an indistinguishable dummy."""

    sealed: bytes


@dataclass(frozen=True)
class ApplyStatement:
    """Work: store a statement, leave a withdrawn release. Returns `StatementApplied`."""

    statement: m.ReleaseStatement


@dataclass(frozen=True)
class StatementApplied:
    """Result of `ApplyStatement`; `left`: the installed release was withdrawn."""

    left: bool


@dataclass(frozen=True)
class JobClosed:
    """End of a job by the cloud's `status`, or `forgotten`; only this fact is kept."""

    job_id: bytes
    status: str


@dataclass(frozen=True)
class CloudEpoch:
    """Replacement of the cloud's keys: earlier numbers and marks are void."""

    epoch: int


@dataclass(frozen=True)
class SealingKeyAcknowledged:
    """The proxy acknowledged the newest sealing key."""


@dataclass(frozen=True)
class ReportDue:
    manifest: m.Manifest


@dataclass(frozen=True)
class ReportSettled:
    sequence: int


AT_ONCE = 64  # concurrent fetches, up to two of a round
RECORD_TIMEOUTS = 8  # without progress, before a commit record is given up

HeaderTest = Callable[[m.BroadcastHeader], bool]


class _Fetches:
    """Offered blobs by digest; a complete one is passed to `complete` once and forgotten.

    If it `stays`, it is passed on when it is offered again. Of a manifest in pieces the stanzas are
    fetched first; the ciphertext is requested once it is needed (`fetch_ciphertext`)."""

    def __init__(
        self,
        context: dr.DeviceContext,
        sealing: Sequence[SealingKey],  # keys of the stanza buckets to fetch; none: all
        stays: HeaderTest,
        complete: Callable[[m.BroadcastHeader, bytes, bool], fx.Effects],
    ) -> None:
        """`complete` gets a header, its data, and whether the data are its stanzas only."""
        self._settings, self._backoff, self._sealing = context.settings, context.backoff, sealing
        self._stays, self._complete = stays, complete
        self.under_way: dict[bytes, tr.Fetch[m.BroadcastHeader]] = {}

    def make_room(
        self, offer: m.Offer, header: m.BroadcastHeader, over: HeaderTest = lambda _header: False
    ) -> None:
        """Drop obsolete and stalled fetches. Raises `too_many_fetches`, changing nothing."""
        kept = {d: f for d, f in self.under_way.items() if f.header == header or not over(f.header)}
        if not offer.data and all(fetch.header != header for fetch in kept.values()):
            still = sorted((f.idle_timeouts, d) for d, f in kept.items() if f.idle_timeouts)
            room_bytes = self._settings.fetch_bytes - header.blob.size_bytes
            while (
                len(kept) >= AT_ONCE or sum(f.blob.size_bytes for f in kept.values()) > room_bytes
            ):
                if not still:
                    raise ProtocolError("too_many_fetches")
                stalled = kept[still.pop()[1]].header
                kept = {d: f for d, f in kept.items() if f.header != stalled}
        self.under_way = kept

    def has(self, header: m.BroadcastHeader) -> bool:
        return any(fetch.header == header for fetch in self.under_way.values())

    def begin(
        self, offer: m.Offer, header: m.BroadcastHeader
    ) -> tr.Fetch[m.BroadcastHeader] | None:
        """Begin or continue a fetch; returns None if the stanzas are complete."""
        limit_bytes = self._settings.blob_bytes
        out_of_band = offer.out_of_band and bool(self._settings.blob_urls)
        if offer.data or not isinstance(header, m.Manifest) or not header.pieces:
            new = tr.Fetch[m.BroadcastHeader](offer, header, limit_bytes, out_of_band=out_of_band)
            return self.under_way.setdefault(header.blob.digest, new)
        stanzas = header.pieces[0]
        for piece in () if self.has(header) else header.pieces:
            bucketed, ciphertext = piece == stanzas and header.buckets > 1, piece != stanzas
            mine = {bucket_of(key, header.buckets) for key in self._sealing} if bucketed else ()
            large = out_of_band and piece.size_bytes >= tr.LEAST_BYTES and not bucketed
            only = frozenset(mine) or None
            self.under_way[piece.digest] = tr.Fetch[m.BroadcastHeader](
                offer,
                header,
                limit_bytes,
                blob=piece,
                idle=ciphertext,
                only=only,
                out_of_band=large,
            )
        return self.under_way.get(stanzas.digest)

    def offer(self, offer: m.Offer, header: m.BroadcastHeader, *, ask: bool = True) -> fx.Effects:
        """Take inline data and `ask` for the remainder. Raises `bad_part`, `bad_digest`."""
        fetch = self.begin(offer, header)
        if fetch is not None and fetch.blob == header.blob:
            for part in tr.first_data(offer, header.blob):
                fetch.add(part)
        out: fx.Effects = []
        for one in list(self.under_way.values()) if ask else ():
            if one.header == header and one.out_of_band:
                out += _request(one.next_need(timer=False))
        return out + self._finish(fetch) if fetch and fetch.complete else out

    def pull(self, offer: m.Offer, header: m.BroadcastHeader, piece: m.Blob) -> fx.Effects:
        new = tr.Fetch[m.BroadcastHeader](offer, header, self._settings.blob_bytes, blob=piece)
        need = self.under_way.setdefault(piece.digest, new).wake(b"")
        return _request(need if need and need.indices else None)

    def begin_fetch(self, at: m.BlobAt) -> fx.Effects:
        """Fetch a requested blob from a URL. Raises ProtocolError `foreign_url`."""
        fetch = self.under_way.get(at.blob)
        return [] if fetch is None else tr.begin_fetch(fetch, at, self._settings.blob_urls)

    def end_fetch(self, task: tr.FetchOutOfBand, result: object) -> fx.Effects:
        fetch = self.under_way.get(task.blob.digest)
        if fetch is None:
            return []
        failed = tr.end_fetch(fetch, result)
        if fetch.complete and not fetch.idle and not self._stays(fetch.header):
            return self._finish(fetch)
        return failed

    def fetch_ciphertext(self, manifest: m.Manifest, stanzas: bytes) -> fx.Effects:
        """Request the ciphertext unless it was dropped. Raises ProtocolError `bad_digest`."""
        fetch = self.under_way.get(manifest.pieces[1].digest)
        if fetch is None or fetch.header != manifest:
            return []
        need = fetch.wake(stanzas)
        if fetch.complete:
            return self._finish(fetch)
        return [*_request(need), fx.SetTimer("repair", self._settings.repair_s)]

    def part(self, part: m.BlobPart) -> fx.Effects:
        fetch = self.under_way.get(part.blob)
        if fetch is None:
            return []  # parts are broadcast: most are for other devices
        again = part.index in fetch
        if fetch.add(part) and not fetch.idle:
            if not self._stays(fetch.header):
                return self._finish(fetch)
            if not again:
                fetch.finish()  # verifies the digest, or drops the parts
            return []
        return _request(fetch.next_need(timer=False))

    def repair(self) -> fx.Effects:
        """Request missing parts with growing intervals; give up a stalled record."""
        self.under_way = {
            digest: fetch
            for digest, fetch in self.under_way.items()
            if fetch.header.kind != "commit" or fetch.idle_timeouts < RECORD_TIMEOUTS
        }
        if not self.under_way:
            return []
        fetches = self.under_way.values()
        out = [effect for fetch in fetches for effect in _request(fetch.next_need(timer=True))]
        timeouts = max(fetch.idle_timeouts for fetch in fetches)
        wait_s = self._backoff.wait_s(self._settings.repair_s, timeouts, self._settings.waits_cap_s)
        return [*out, fx.SetTimer("repair", wait_s)]

    def forget(self, over: HeaderTest) -> None:
        self.under_way = {d: f for d, f in self.under_way.items() if not over(f.header)}

    def _finish(self, fetch: tr.Fetch[m.BroadcastHeader]) -> fx.Effects:
        data, header = fetch.before + fetch.finish(), fetch.header
        del self.under_way[fetch.blob.digest]
        if isinstance(header, m.Manifest) and fetch.blob in header.pieces[:1]:
            return self._complete(header, data, True)
        self.forget(lambda old: old == header)  # its pieces, if it arrived whole
        return self._complete(header, data, False)


def _request(need: m.Need | None) -> fx.Effects:
    return [fx.Send(fx.ProxyAddress(), need)] if need else []


CLOSED_KEPT = 1000  # ended jobs in memory; the ledger keeps all jobs of this device
UNHEARD_TRIES = 3  # unanswered hellos before the owner is notified
LATER_CAP_S = 600.0  # maximum accepted delay
REPORT_CAP_S = 600.0  # maximum interval between two tries of a report
_SLUG = re.compile(r"[a-z0-9_]{1,64}")


class DeviceMachine:
    """One device, with timers `hello`, `key`, `repair`, `want` and `report` besides its rounds'."""

    def __init__(
        self,
        signer: m.Signer,
        keys: m.PeerKeys,
        memory: dr.DeviceMemory,
        settings: dr.DeviceSettings | None = None,
        data_set: bytes = b"",
        sealing: Sequence[SealingKey] = (),
    ) -> None:
        """`data_set` is the tag of its data (default: accepts releases for any)."""
        self._data_set, self._sealing, self._now_s = data_set, sealing, 0.0
        self.signer, self.keys = signer, keys
        self.memory, self.settings = memory, settings or dr.DeviceSettings()
        self._backoff = tr.Backoff(signer.name)
        context = dr.DeviceContext(signer, memory, self.settings, self._backoff)
        self.rounds = dr.DeviceRounds(context)
        self.fetches = _Fetches(context, sealing, self._is_ahead, self._complete)
        self._trust_at_work = False  # the host verifies metadata
        # By job, the digest of a package that is not for this device, or that the host opens.
        self._foreign: dict[bytes, bytes] = {}
        self._job_at_work: dict[bytes, bytes] = {}
        # Rounds ahead of their job, by job, and their end.
        self._ahead: dict[bytes, tuple[m.Manifest, m.Offer, float]] = {}
        self._want_tries = 0
        # Newest offered release, perhaps not installed yet.
        self._newest_release = m.known_number(memory.release_sequence)
        self._report: m.Note | None = None
        self._report_tries = 0
        self._hello_tries = 0
        self._hello = b""  # digest of the unacknowledged hello
        self._away = False  # by its owner's conditions, perhaps after the current round
        self._greeted = False
        self._hello_requested = False  # by the proxy, since the last hello
        # A device that counts its answers waits until the proxy confirms the count.
        self._hello_acknowledged = memory.answered < 0

    @property
    def at(self) -> m.RoundId | None:
        """Round that was active last: fetched, worked on, or with an upload."""
        last = self.rounds.last
        return last.at if last else None

    @property
    def state(self) -> dr.DeviceState:
        last = self.rounds.last
        return last.state if last else dr.DEVICE_STATES.start

    @property
    def unheard(self) -> bool:
        """Whether the proxy answered none of several hellos."""
        return bool(self._hello) and self._hello_tries > UNHEARD_TRIES

    def subscribes_to(self, bucket: fx.BucketAddress) -> bool:
        return any(bucket_of(key, bucket.level) == bucket.index for key in self._sealing)

    def handle(self, event: fx.Event, now_s: float) -> fx.Effects:
        self._now_s = now_s
        try:
            out = self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]
        if self._away and self._greeted and not self.rounds.under_way:
            self._greeted, self._hello = False, b""
            out = [*out, fx.CancelTimer("hello"), self._note_to_proxy(m.Bye(self.signer.name))]
        return out

    def _handle(self, event: fx.Event) -> fx.Effects:
        match event:
            case fx.PeerConnected():
                self._report_tries = 0
                again = [*self.rounds.connected(), *self._report_again()]
                return [*self._send_key(), *self._greet(), *again]
            case fx.PeerSilent():
                return self._greet()
            case fx.MessageReceived(message=m.Offer() as offer):
                return self._offer(offer)
            case fx.MessageReceived(message=m.BlobPart() as part):
                return self.fetches.part(part)
            case fx.MessageReceived(message=m.Need() as need):
                sender = self.rounds.with_upload(need.blob)
                item = sender.item if sender else None
                if item is None:
                    return []
                return tr.answer_need(fx.ProxyAddress(), need, item.upload.blob, item.data)
            case fx.MessageReceived(message=m.Note(body=envelope)):
                return self._note(envelope)
            case fx.MessageReceived(message=m.TrustMetadata() as metadata):
                if self.keys.versions == (0, 0):
                    raise ProtocolError("unexpected_metadata")
                if self._trust_at_work:  # one at a time: the next hello brings the others
                    return []
                self._trust_at_work = True
                return [fx.Work(fx.TakeTrust(metadata))]
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
            case fx.Command(request="leave"):
                self._away = True
            case fx.Command(request="come") if self._away:
                self._away = False
                return [*self._send_key(), *self._greet()]
            case fx.Command(request="stop"):
                return [self._note_to_proxy(m.Bye(self.signer.name))]
        return []

    def _note_to_proxy(self, body: m.Bye | m.Want) -> fx.Effect:
        return fx.Send(fx.ProxyAddress(), self.signer.note(body))

    def _offer(self, offer: m.Offer) -> fx.Effects:
        header = self.keys.cloud_header(offer.header)
        if not isinstance(header, m.Manifest | m.Commit):
            raise ProtocolError("unexpected_header")
        job_id = header.at.job_id
        round_ = self.rounds.of(job_id)
        if isinstance(header, m.Commit):
            return self._record(offer, header, round_) if round_ else []
        if header.sequence >= m.FAR_NUMBER:
            raise ProtocolError("far_sequence")
        tr.check_fetchable(offer, header.blob, self.settings.blob_bytes)
        tr.check_pieces(header, self.settings.blob_bytes)
        at_hand = header.kind == "round" and round_ is not None and header.at == round_.at
        if (self._away or not self._hello_acknowledged) and not at_hand:
            return []  # offered again after the next hello if still open
        if header.kind == "release":
            return self._release(offer, header)
        if job_id in self.memory.closed:
            raise ProtocolError("closed_job")
        if header.kind == "job":
            tried = (self._foreign.get(job_id), self._job_at_work.get(job_id))
            known = job_id in self.memory.jobs or header.blob.digest in tried
            return [] if known else self._fetch(offer, header)
        if header.sequence < self._newest_release:
            raise ProtocolError("outdated_round")
        if self._is_ahead(header):
            return self._keep_ahead(offer, header)
        mark = dr.ManifestMark(header.at, hashlib.sha256(offer.header.payload).digest())
        round_ = self.rounds.take_up(job_id)
        if round_.is_new(mark):
            if header.masked and not self.rounds.context.round_key(header):
                raise ProtocolError("no_round_key")
            self.fetches.make_room(offer, header, over=lambda old: _is_over(old, round_))
            return [*round_.begin(header, mark, self._now_s), *self._fetch(offer, header)]
        if round_.state is dr.DeviceState.FETCHING and self.fetches.has(header):
            # A repeated offer may have the blob inline.
            return self.fetches.offer(offer, header, ask=False)
        return []

    def _release(self, offer: m.Offer, header: m.Manifest) -> fx.Effects:
        tags = {header.data_set, self._data_set}
        if len(tags) == 2 and b"" not in tags:  # a dummy, unless another report is due
            return [] if self.memory.report_due else self._report_due(header)
        if header.sequence < self._newest_release:
            raise ProtocolError("replayed_release")
        if header.sequence == self.memory.release_sequence:
            return []  # installed
        if header.package_digest == self.memory.release_package:
            self._newest_release = header.sequence
            return [fx.Work(AdoptRelease(header))]
        self.fetches.make_room(offer, header, over=lambda old: old.kind == "release")
        self._newest_release = header.sequence
        return self._fetch(offer, header)

    def _record(self, offer: m.Offer, commit: m.Commit, round_: dr.DeviceRound) -> fx.Effects:
        """Fetch a commit record that awaits an upload, or the piece with its marks."""
        answer = round_.awaited(commit.at)
        if answer is None:
            return []
        tr.check_fetchable(offer, commit.blob, self.settings.blob_bytes)
        tr.check_record(commit)
        if offer.data or not commit.pieces or round_.cover.on:
            return self._fetch(offer, commit)
        self.fetches.make_room(offer, commit)
        request = self.fetches.pull(offer, commit, tr.piece_for(commit, answer.marks))
        return [*request, fx.SetTimer("repair", self.settings.repair_s)]

    def _fetch(self, offer: m.Offer, header: m.BroadcastHeader) -> fx.Effects:
        self.fetches.make_room(offer, header)
        timer = fx.SetTimer("repair", self.settings.repair_s)
        return [timer, *self.fetches.offer(offer, header)]

    def _complete(self, header: m.BroadcastHeader, data: bytes, stanzas: bool) -> fx.Effects:
        round_ = self.rounds.of(header.at.job_id) if header.kind in ("round", "commit") else None
        if isinstance(header, m.Commit):
            return round_.committed(header, data) if round_ else []
        if stanzas:
            if self._covers(header):
                return self.fetches.fetch_ciphertext(header, data)
            return [fx.Work(FindStanza(header, data))]
        if header.kind == "round":
            return round_.complete(header, data, self._now_s) if round_ else []
        if header.kind == "job":
            self._job_at_work[header.at.job_id] = header.blob.digest
        return [fx.Work(dr.OpenPackage(header, data))]

    def _covers(self, manifest: m.Manifest) -> bool:
        """Return whether all devices fetch the ciphertext; hides a release's canary."""
        if manifest.kind == "release":
            return True
        round_ = self.rounds.of(manifest.at.job_id) if manifest.kind == "round" else None
        return round_ is not None and round_.cover.on

    def _done(self, task: object, result: object) -> fx.Effects:
        match task, result:
            case fx.TakeTrust(), _:
                return self._trust_taken(result)
            case tr.FetchOutOfBand() as transfer, _:
                return self.fetches.end_fetch(transfer, result)
            case tr.PutOutOfBand() as put, _:
                digest = put.blob.digest
                senders = [one for one in self.rounds if one.store_put.in_progress == digest]
                return [effect for one in senders for effect in one.end_put(put, result)]
            case FindStanza(manifest=manifest), _ if not self.fetches.has(manifest):
                return []  # dropped meanwhile, or arrived whole
            case FindStanza(manifest=manifest, stanzas=stanzas), StanzaLook(found=found):
                if found or self._covers(manifest):
                    return self.fetches.fetch_ciphertext(manifest, stanzas)
                self.fetches.forget(lambda old: old == manifest)
                return self._not_for_me(manifest)
            case FindStanza(manifest=manifest), fx.WorkFailed(reason=reason):
                self.fetches.forget(lambda old: old == manifest)
                return [*self._not_for_me(manifest), *_failed(reason)]
            case dr.OpenPackage(manifest=manifest), dr.OpenedPackage() as opened:
                if round_ := self.rounds.of(manifest.at.job_id):
                    round_.fix_window(manifest, opened)
                return self._opened(manifest, opened.package)
            case (dr.OpenPackage() | InstallJob()) as work, fx.WorkFailed(reason=reason):
                return [*self._not_for_me(work.manifest), *_failed(reason)]
            case InstallJob(manifest=manifest), Installation():
                return self._learned(manifest.at.job_id)
            case dr.ComputeAnswer() as work, answer:
                round_ = self.rounds.of(work.manifest.at.job_id)
                after = round_.answered(work.manifest, answer, self._now_s) if round_ else []
                return after + self.rounds.worked(work, answer, self._now_s)
            case dr.SealDummies(manifest=manifest), answer:
                round_ = self.rounds.of(manifest.at.job_id)
                return (
                    round_.answered(manifest, answer, self._now_s, dummies=True) if round_ else []
                )
            case (InstallRelease() | AdoptRelease()) as work, Installation():
                release, memory = work.manifest, self.memory
                if release.sequence >= m.known_number(memory.release_sequence):
                    memory.release_sequence = release.sequence
                    memory.release_package = release.package_digest
                data = {"job_id": release.at.job_id.hex()}
                new = isinstance(work, InstallRelease)
                report = [fx.Report("model_installed", data)] if new else []
                return [*report, *self._report_due(release)]
            case CountElsewhere(behind=behind), Installation():
                self.memory.answered = max(self.memory.answered, behind.answered)
                return [fx.Report("was_behind", {}), *self._greet()]
            case (InstallRelease() | AdoptRelease()) as work, fx.WorkFailed(reason=reason):
                self._newest_release = m.known_number(self.memory.release_sequence)
                return [*_failed(reason), *self._report_due(work.manifest)]
            case SealReport(manifest=manifest), MadeReport(sealed=report):
                if manifest != self.memory.report_due or self._report is not None:
                    return []
                self._report = self.signer.note(m.ReleaseReport(manifest.at, report))
                return self._send_report()
            case ApplyStatement(statement=new), StatementApplied(left=left):
                self.memory.statement = max(new.number, m.known_number(self.memory.statement))
                if not left:
                    return []
                self.memory.release_package = b""
                return [fx.Report("release_withdrawn", {})]
            case _, fx.WorkFailed(reason=reason):
                return _failed(reason)
        return []

    def _opened(self, manifest: m.Manifest, package: Package | None) -> fx.Effects:
        if package is None:
            return self._not_for_me(manifest)
        if manifest.kind == "job":
            if isinstance(package, JobPackage):
                return [fx.Work(InstallJob(manifest, package))]
            return [*self._not_for_me(manifest), fx.Refuse("malformed_package")]
        if manifest.kind == "release" and isinstance(package, ReleasePackage):
            fresh = manifest.sequence >= self._newest_release
            return [fx.Work(InstallRelease(manifest, package))] if fresh else []
        return self.rounds.opened(manifest, package, self._now_s)

    def _not_for_me(self, manifest: m.Manifest) -> fx.Effects:
        job_id = manifest.at.job_id
        if manifest.kind == "release":
            return self._report_due(manifest)
        if manifest.kind == "round":
            round_ = self.rounds.of(job_id)
            return round_.not_for_me(manifest) if round_ else []
        # A job that is not for this device, or that it cannot train, is not fetched again.
        self._job_at_work.pop(job_id, None)
        self._foreign[job_id] = manifest.blob.digest
        if len(self._foreign) > self.settings.jobs:
            del self._foreign[next(iter(self._foreign))]
        return self._take_up_ahead(job_id)

    def _is_ahead(self, header: m.BroadcastHeader) -> bool:
        job_id = header.at.job_id
        known = job_id in self.memory.jobs or job_id in self._foreign
        return header.kind == "round" and not known

    def _keep_ahead(self, offer: m.Offer, round_: m.Manifest) -> fx.Effects:
        job_id = round_.at.job_id
        self.fetches.make_room(offer, round_, lambda old: self._is_ahead_of(job_id, old))
        before = self._ahead.pop(job_id, None)
        if before is not None and before[0] == round_ and not offer.data:
            offer = before[1]
        until_s = self._now_s + round_.deadline_s + round_.grace_s
        self._ahead[job_id], self._want_tries = (round_, offer, until_s), 0
        if len(self._ahead) > self.settings.jobs:
            self._give_up_ahead(next(iter(self._ahead)))
        out = self._want()
        if offer.data or self.fetches.has(round_):
            return out
        self.fetches.begin(offer, round_)
        return [*out, fx.SetTimer("repair", self.settings.repair_s)]

    def _is_ahead_of(self, job_id: bytes, header: m.BroadcastHeader) -> bool:
        return header.at.job_id == job_id and self._is_ahead(header)

    def _give_up_ahead(self, job_id: bytes) -> None:
        del self._ahead[job_id]
        self.fetches.forget(lambda old: self._is_ahead_of(job_id, old))

    def _want(self) -> fx.Effects:
        """Request missing jobs with growing intervals until their rounds are over."""
        for job_id, (_, _, until_s) in list(self._ahead.items()):
            if self._now_s > until_s:
                self._give_up_ahead(job_id)
        if not self._ahead:
            return []
        settings, tries = self.settings, self._want_tries
        wait_s = self._backoff.wait_s(settings.resend_s, tries, settings.waits_cap_s)
        self._want_tries += 1
        headers = [fetch.header for fetch in self.fetches.under_way.values()]
        coming = {one.at.job_id for one in headers if one.kind == "job"} | set(self._job_at_work)
        wanted = [self._note_to_proxy(m.Want(job)) for job in self._ahead if job not in coming]
        return [*wanted, fx.SetTimer("want", wait_s)]

    def _take_up_ahead(self, job_id: bytes) -> fx.Effects:
        waiting = self._ahead.pop(job_id, None)
        return self._offer(waiting[1]) if waiting else []

    def _learned(self, job_id: bytes) -> fx.Effects:
        """Add a stored job; beyond `settings.jobs` the oldest one ends."""
        memory = self.memory
        self._job_at_work.pop(job_id, None)
        if job_id in memory.closed:  # it ended meanwhile
            return [fx.Persist(JobClosed(job_id, "forgotten")), *self._take_up_ahead(job_id)]
        self._foreign.pop(job_id, None)
        memory.jobs[job_id] = None
        at_hand = {round_.job_id for round_ in self.rounds if not round_.is_over}
        others = [job for job in memory.jobs if job != job_id and job not in at_hand]
        surplus = max(0, len(memory.jobs) - self.settings.jobs)
        out = [self._end_job(job, "forgotten") for job in others[:surplus]]
        return out + self._take_up_ahead(job_id)

    def _end_job(self, job_id: bytes, status: str) -> fx.Effect:
        memory = self.memory
        memory.closed[job_id] = None
        if len(memory.closed) > CLOSED_KEPT:
            del memory.closed[next(iter(memory.closed))]
        for known in (memory.jobs, memory.seen, self._foreign, self._job_at_work, self._ahead):
            known.pop(job_id, None)
        return fx.Persist(JobClosed(job_id, status))

    def _report_due(self, release: m.Manifest) -> fx.Effects:
        due = self.memory.report_due
        of_same = due is not None and due.data_set == release.data_set
        newest = m.known_number(due.sequence if due and of_same else self.memory.reported)
        if not m.wants_reports(release) or release.sequence <= newest:
            return []
        self.memory.report_due, self._report, self._report_tries = release, None, 0
        return [fx.Persist(ReportDue(release)), *self._report_again()]

    def _report_again(self) -> fx.Effects:
        release = self.memory.report_due
        if release is None:
            return []
        if self._report is not None:
            return self._send_report()
        seed = hashlib.sha256(self.signer.name.encode() + m.encode_inner(release)).digest()
        return [fx.SetTimer("report", release.deadline_s * int.from_bytes(seed[:6]) / 2**48)]

    def _send_report(self) -> fx.Effects:
        due = self.memory.report_due
        if due is None:
            return []
        if self._report is None:
            return [fx.Work(SealReport(due))]
        wait_s = self._backoff.wait_s(self.settings.resend_s, self._report_tries, REPORT_CAP_S)
        self._report_tries += 1
        return [fx.Send(fx.ProxyAddress(), self._report), fx.SetTimer("report", wait_s)]

    def _greet(self) -> fx.Effects:
        self._hello_tries = 0
        return self._send_hello()

    def _send_hello(self) -> fx.Effects:
        """Send a hello, repeated with growing intervals until acknowledged; not while away."""
        if self._away:
            return []
        self._greeted, settings = True, self.settings
        hello = Hello(self.signer.name, *self.keys.versions, self.memory.answered, KNOWS_CHECKS)
        note = self.signer.note(hello)
        self._hello = _digest(note.body)
        wait_s = self._backoff.wait_s(settings.repair_s, self._hello_tries, settings.waits_cap_s)
        self._hello_tries += 1
        out: fx.Effects = [fx.Send(fx.ProxyAddress(), note), fx.SetTimer("hello", wait_s)]
        unheard = self._hello_tries == UNHEARD_TRIES + 1
        return [*out, fx.Report("unheard", {"tries": UNHEARD_TRIES})] if unheard else out

    def _hello_in(self, delay_s: float) -> fx.Effects:
        if self._away:
            return []
        self._hello_tries = 0
        return [fx.SetTimer("hello", delay_s)]

    def _send_key(self) -> fx.Effects:
        new = self.memory.new_sealing
        if new is None or self._away:
            return []
        # Separate timer: the proxy may accept the hello, but refuse another key this soon.
        again = fx.SetTimer("key", m.NEW_KEY_EVERY_S + 1.0)
        return [fx.Send(fx.ProxyAddress(), self.signer.note(new)), again]

    def _note(self, envelope: m.Envelope) -> fx.Effects:
        if envelope.signer == "cloud":
            body = self.keys.cloud_body(envelope)
            if isinstance(body, m.Close):
                return self._close(body)
            if not isinstance(body, m.ReleaseStatement):
                raise ProtocolError("unexpected_body")
            if body.number >= m.FAR_NUMBER:
                raise ProtocolError("far_sequence")
            if body.number < m.known_number(self.memory.statement):
                raise ProtocolError("replayed_statement")
            return [fx.Work(ApplyStatement(body))] if body.number != self.memory.statement else []
        match m.verified_body(envelope, "proxy", self.keys.proxy):
            case m.Here(spread_s=spread_s):
                # At its own time in the spread, so that the fleet is spread out.
                self._hello_requested = self._hello_requested or not self._away
                share = int(self.signer.name[:8], 16) / 2**32
                return self._hello_in(min(spread_s, LATER_CAP_S) * share)
            case m.Later(delay_s=delay_s):
                return self._hello_in(min(delay_s, LATER_CAP_S))
            case m.Behind() as behind:
                # A reply to another hello may be replayed.
                return [fx.Work(CountElsewhere(behind))] if behind.hello == self._hello else []
            case m.Cover() as cover:
                self.rounds.request_cover(cover)
                return []
            case m.RoundKey() as key:
                self.rounds.set_round_key(key)
                return []
            case m.BlobAt(put=True) as at:
                sender = self.rounds.with_upload(at.blob)
                return sender.begin_put(at) if sender else []
            case m.BlobAt() as at:
                return self.fetches.begin_fetch(at)
            case m.Ack() as ack:
                return self._acknowledged(ack)
        raise ProtocolError("unexpected_body")

    def _acknowledged(self, ack: m.Ack) -> fx.Effects:
        memory, due = self.memory, self.memory.report_due
        new = memory.new_sealing
        if new is not None and hashlib.sha256(m.encode_inner(new)).digest() == ack.blob:
            memory.new_sealing = None
            return [fx.Persist(SealingKeyAcknowledged())]
        if due and self._report and _digest(self._report.body) == ack.blob:
            memory.report_due, memory.reported, self._report = None, due.sequence, None
            return [fx.Persist(ReportSettled(due.sequence)), fx.CancelTimer("report")]
        if ack.blob == self._hello:
            self._hello, self._hello_acknowledged = b"", True
            return [fx.CancelTimer("hello")]
        sent = self.rounds.with_upload(ack.blob)
        return sent.acknowledged(ack) if sent else []

    def _close(self, close: m.Close) -> fx.Effects:
        job_id = close.job_id
        if job_id in self.memory.closed:
            return []
        ended = self._end_job(job_id, close.status)
        # Its last commit record may still arrive.
        self.fetches.forget(lambda old: old.kind in ("job", "round") and old.at.job_id == job_id)
        data = {"job_id": job_id.hex(), "status": close.status}
        round_ = self.rounds.of(job_id)
        return [*(round_.job_closed() if round_ else []), ended, fx.Report("job_closed", data)]

    def _trust_taken(self, result: object) -> fx.Effects:
        self._trust_at_work = False
        if not isinstance(result, m.PeerKeys):
            reason = result.reason if isinstance(result, fx.WorkFailed) else ""
            # The proxy sends intermediate roots once a hello shows the gap.
            return [*_failed(reason), *(self._greet() if reason == "metadata_gap" else [])]
        memory, self.keys = self.memory, result
        report = fx.Report("trust_changed", {"version": result.versions[1]})
        if result.epoch <= memory.epoch:
            return [report]
        memory.epoch, memory.release_sequence, self._newest_release = result.epoch, -1, -1
        memory.seen.clear()
        memory.statement, memory.reported, memory.report_due = -1, -1, None
        memory.release_package = b""
        self.fetches.forget(lambda _old: True)
        return [fx.Persist(CloudEpoch(result.epoch)), report]

    def _timer(self, name: str) -> fx.Effects:
        match name:
            case "hello":
                if self._away:
                    return []
                # First hello since the proxy connected and requested it: it may lack uploads.
                requested, self._hello_requested = self._hello_requested, False
                rounds = list(self.rounds) if requested else []
                missed = [effect for round_ in rounds for effect in round_.offer_again()]
                return [*self._send_key(), *self._send_hello(), *missed]
            case "key":
                return self._send_key()
            case "repair":
                return self.fetches.repair()
            case "report":
                return self._send_report()
            case "want":
                return self._want()
            case _ if name == dr.TURN:
                return self.rounds.next_turn(self._now_s)
        kind, _, job = name.partition("/")
        round_ = self.rounds.of(bytes.fromhex(job)) if job else None
        if round_ is None:
            return []
        match kind:
            case "resend":
                return round_.resend()
            case "deadline" if (out := round_.expired()) is not None:
                mine = round_.job_id
                self.fetches.forget(lambda old: old.kind == "round" and old.at.job_id == mine)
                return out
        return []


def _digest(envelope: m.Envelope) -> bytes:
    return hashlib.sha256(envelope.payload).digest()


def _is_over(fetched: m.BroadcastHeader, round_: dr.DeviceRound) -> bool:
    """Return whether this round ends the fetch; not one of the last answer's record."""
    if fetched.at.job_id != round_.job_id:
        return False
    if isinstance(fetched, m.Commit):
        return round_.awaited(fetched.at) is None
    return fetched.kind == "round"


def _failed(reason: str) -> fx.Effects:
    """Return a refusal by slug; a sentence is only reported to the owner."""
    if _SLUG.fullmatch(reason):
        return [fx.Refuse(reason)]
    return [fx.Refuse("failed_work"), fx.Report("failed_work", {"why": reason})]
