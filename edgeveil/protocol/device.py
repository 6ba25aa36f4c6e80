"""The device's machine: fetch, open, consent and work, upload, until it was counted.

Theory of operation. The work itself (opening stanzas, pricing, training, sealing) is done by the
host, which tells the result; the machines decide what is fresh, what is answered, and when to send
again. This one takes what comes and gives it to whose business it is: jobs and blobs on their way
to `device_jobs.py`, the rounds at hand, one of each job, to `device_rounds.py`, their states and
guards to `device_round.py`, what is said of releases beside them to `device_releases.py`.

Three kinds of broadcast come from the cloud, each signed, each fetched as a blob and opened by the
host. A *job* is for every enrolled device and is learnt once. A *round* is for those who can open
it; one that comes before its job waits for it (`KnownJobs.ahead`). A *release* is put in use unless
a newer one was heard of; those that are tagged for other data sets than this device's are passed
over, and stand before nothing. Rounds from before the newest release are refused, since a cloud
whose numbers have fallen behind could not bring its model here in the end, and to answer would
spend budget for nothing. What is older than what was seen, or a second text of the same, is refused
(`is_new`). The proxy's notes acknowledge an upload, ask for a hello or for cover traffic; the
cloud's end a job.

A device whose owner's conditions do not hold is not there (`Command("leave")`, `Command("come")`):
it takes up nothing new and greets nobody, but what it has begun it ends before it says `Bye`.

Whom it believes may change at any moment, by metadata that the offline root signed (`TakeTrust`).
Where a key of the cloud's was replaced, what was heard under the one before counts no more.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from edgeveil.crypto.keys import SealingKey
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.beside import FetchBeside, PutBeside
from edgeveil.protocol.commit_record import check_record, piece_for
from edgeveil.protocol.device_jobs import FetchedBlob, FetchedStanzas, Fetches, KnownJobs
from edgeveil.protocol.device_releases import DeviceReleases
from edgeveil.protocol.device_round import DEVICE_STATES, DeviceRound, DeviceState
from edgeveil.protocol.device_rounds import TURN, DeviceRounds
from edgeveil.protocol.device_tasks import (
    AdoptRelease,
    ApplyStatement,
    CloudEpoch,
    ComputeAnswer,
    CountElsewhere,
    DeviceMemory,
    DeviceSettings,
    FindStanza,
    Installation,
    InstallJob,
    InstallRelease,
    MadeReport,
    ManifestMark,
    NoAnswer,
    OpenedPackage,
    OpenPackage,
    SealDummies,
    SealedAnswer,
    SealingKeyTold,
    SealReport,
    StanzaLook,
    StatementApplied,
)
from edgeveil.protocol.messages import (
    FAR_NUMBER,
    KNOWS_CHECKS,
    NEW_KEY_EVERY_S,
    Ack,
    Behind,
    BlobAt,
    BlobPart,
    BroadcastHeader,
    Bye,
    Close,
    Commit,
    Cover,
    Envelope,
    ExchangeId,
    Hello,
    Here,
    Later,
    Manifest,
    Need,
    Note,
    Offer,
    PeerKeys,
    ReleaseStatement,
    RoundKey,
    Signer,
    TrustMetadata,
    encode_inner,
    known_number,
    verified_body,
)
from edgeveil.protocol.sealed import JobPackage, Package, ReleasePackage
from edgeveil.protocol.transfer import Backoff, check_fetchable, check_pieces

_SLUG = re.compile(r"[a-z0-9_]{1,64}")


class DeviceMachine:
    """One device. `memory` is changed only together with the `Persist` effects that say so."""

    def __init__(
        self,
        signer: Signer,
        keys: PeerKeys,
        memory: DeviceMemory,
        settings: DeviceSettings | None = None,
        data_set: bytes = b"",
        sealing: Sequence[SealingKey] = (),
    ) -> None:
        """`data_set` is the tag of its data (`data_set_tag`); empty: it takes releases for any.
        `sealing`: see `Fetches`."""
        self._data_set = data_set
        self.signer, self.keys = signer, keys
        self.memory, self.settings = memory, settings or DeviceSettings()
        self._now_s = 0.0
        # Heard of, perhaps not yet in use.
        self._newest_release = known_number(memory.release_sequence)
        backoff = Backoff(signer.name)
        self.fetches = Fetches(self.settings, backoff, sealing)
        self.rounds = DeviceRounds(signer, memory, self.settings, backoff)
        self._releases = DeviceReleases(signer, memory, self.settings, backoff)
        self._jobs = KnownJobs(signer, memory, self.settings, backoff, self.fetches)
        self._greeting = DeviceGreeting(signer, memory, self.settings, backoff, keys.versions)
        self._at_work: TrustMetadata | None = None  # the host verifies it

    @property
    def at(self) -> ExchangeId | None:
        """The round that something happened to last: fetched, worked on, or with an upload."""
        last = self.rounds.last
        return last.at if last else None

    @property
    def state(self) -> DeviceState:
        """Where it stands in that round."""
        last = self.rounds.last
        return last.state if last else DEVICE_STATES.start

    @property
    def unheard(self) -> bool:
        """Whether the proxy has answered none of several hellos: it is away, or knows no device
        with this key."""
        return self._greeting.unheard

    def hears(self, bucket: fx.BucketAddress) -> bool:
        """Whether this is a bucket in which it looks for stanzas."""
        return self.fetches.looks_in(bucket.level, bucket.index)

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        self._now_s = now_s
        try:
            return [*self._handle(event), *self._leave_if_free()]
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]

    def _leave_if_free(self) -> list[fx.Effect]:
        return [] if self.rounds.under_way else self._greeting.leave()

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.PeerConnected():
                again = [*self.rounds.connected(), *self._releases.connected()]
                return [*self._tell_key(), *self._greeting.begin(), *again]
            case fx.PeerSilent():
                return self._greeting.begin()
            case fx.MessageReceived(message=Offer() as offer):
                return self._offer(offer)
            case fx.MessageReceived(message=BlobPart() as part):
                taken = self.fetches.part(part, self._jobs.is_ahead)
                return taken if isinstance(taken, list) else self._complete(taken)
            case fx.MessageReceived(message=Need() as need):
                asked = self.rounds.with_upload(need.blob)
                return asked.outbox.need(need) if asked else []
            case fx.MessageReceived(message=Note(body=envelope)):
                return self._note(envelope)
            case fx.MessageReceived(message=TrustMetadata() as metadata):
                return self._trust(metadata)
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.WorkDone(task=fx.TakeTrust(), result=result):
                return self._taken(result)
            case fx.WorkDone(task=FetchBeside() as carried, result=result):
                came = self.fetches.came_beside(carried, result, self._jobs.is_ahead)
                return came if isinstance(came, list) else self._complete(came)
            case fx.WorkDone(task=PutBeside() as carried, result=result):
                digest = carried.blob.digest
                laying = [one.outbox for one in self.rounds if one.outbox.carried == digest]
                return [effect for one in laying for effect in one.laid_down(carried, result)]
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
            case fx.Command(what="leave"):
                self._greeting.away = True
            case fx.Command(what="come") if self._greeting.away:
                self._greeting.away = False
                return [*self._tell_key(), *self._greeting.begin()]
            case fx.Command(what="stop"):
                return [fx.Send(fx.ProxyAddress(), self.signer.note(Bye(self.signer.name)))]
        return []

    # --- whom it believes ---

    def _trust(self, metadata: TrustMetadata) -> list[fx.Effect]:
        if self.keys.versions == (0, 0):
            raise ProtocolError("unexpected_metadata")
        if self._at_work is not None:  # one at a time: what it misses, the next hello brings
            return []
        self._at_work = metadata
        return [fx.Work(fx.TakeTrust(metadata))]

    def _taken(self, result: object) -> list[fx.Effect]:
        self._at_work = None
        if isinstance(result, PeerKeys):
            return self._believe(result)
        reason = result.reason if isinstance(result, fx.WorkFailed) else ""
        # The roots in between are the proxy's to send, once it knows what is missing.
        return [*_failed(reason), *(self._greeting.begin() if reason == "metadata_gap" else [])]

    def _believe(self, keys: PeerKeys) -> list[fx.Effect]:
        newer, self.keys = keys.epoch > self.memory.epoch, keys
        self._greeting.versions = keys.versions
        report = fx.Report("trust_changed", {"version": keys.versions[1]})
        if not newer:
            return [report]
        self.memory.epoch, self.memory.release_sequence, self._newest_release = keys.epoch, -1, -1
        self.memory.seen.clear()
        self.memory.statement, self.memory.reported, self.memory.report_due = -1, -1, None
        self.memory.release_package = b""
        self.fetches.forget(lambda _old: True)
        return [fx.Persist(CloudEpoch(keys.epoch)), report]

    # --- its own sealing key ---

    def _tell_key(self) -> list[fx.Effect]:
        """Until the proxy has heard of it: rounds go on being sealed to the key before."""
        new = self.memory.new_sealing
        if new is None or self._greeting.away:
            return []
        # On a timer of its own: the proxy may hear the hello, and refuse a key so soon after one.
        again = fx.SetTimer("key", NEW_KEY_EVERY_S + 1.0)
        return [fx.Send(fx.ProxyAddress(), self.signer.note(new)), again]

    def _key_told(self, ack: Ack) -> bool:
        new = self.memory.new_sealing
        if new is None or hashlib.sha256(encode_inner(new)).digest() != ack.blob:
            return False
        self.memory.new_sealing = None
        return True

    # --- offers: what is fresh ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        header = self.keys.cloud_header(offer.header)
        if not isinstance(header, Manifest | Commit):
            raise ProtocolError("unexpected_header")
        round_ = self.rounds.of(header.at.job_id)
        if isinstance(header, Commit):
            return self._record(offer, header, round_) if round_ else []
        if header.sequence >= FAR_NUMBER:
            raise ProtocolError("far_sequence")
        check_fetchable(offer, header.blob, self.settings.blob_bytes)
        check_pieces(header, self.settings.blob_bytes)
        at_hand = header.kind == "round" and round_ is not None and header.at == round_.at
        if not self._greeting.is_there and not at_hand:
            return []  # what is open by then comes again after the next hello
        if header.kind == "release":
            return self._release(offer, header)
        self._jobs.check_open(header.at.job_id)
        if header.kind == "job":
            return self._fetch(offer, header) if self._jobs.fresh(header) else []
        if header.sequence < self._newest_release:
            raise ProtocolError("outdated_round")
        if not self._jobs.ready(header.at.job_id):
            return self._jobs.ahead(offer, header, self._now_s)
        return self._round(offer, header)

    def _release(self, offer: Offer, header: Manifest) -> list[fx.Effect]:
        tags = {header.data_set, self._data_set}
        if len(tags) == 2 and b"" not in tags:
            return self._releases.passed_over(header)
        if header.sequence < self._newest_release:
            raise ProtocolError("replayed_release")
        if header.sequence == self.memory.release_sequence:
            return []  # in use
        if header.package_digest == self.memory.release_package:
            self._newest_release = header.sequence
            return [fx.Work(AdoptRelease(header))]
        self.fetches.make_room(offer, header, over=lambda old: old.kind == "release")
        self._newest_release = header.sequence
        return self._fetch(offer, header)

    def _round(self, offer: Offer, manifest: Manifest) -> list[fx.Effect]:
        mark = ManifestMark(manifest.at, hashlib.sha256(offer.header.payload).digest())
        round_ = self.rounds.take_up(manifest.at.job_id)
        if round_.is_new(mark):
            self.rounds.keys.check(manifest)
            self.fetches.make_room(offer, manifest, over=lambda old: _is_over(old, round_))
            return [*round_.begin(manifest, mark, self._now_s), *self._fetch(offer, manifest)]
        if round_.state is DeviceState.FETCHING and self.fetches.has(manifest):
            # A repeated offer may carry the blob that the first one lacked.
            return self._complete(self.fetches.offer(offer, manifest))
        return []

    # --- fetching ---

    def _fetch(self, offer: Offer, header: BroadcastHeader) -> list[fx.Effect]:
        self.fetches.make_room(offer, header)
        complete = self.fetches.offer(offer, header)
        timer = fx.SetTimer("repair", self.settings.repair_s)
        return [timer, *self.fetches.ask(header), *self._complete(complete)]

    def _record(self, offer: Offer, commit: Commit, round_: DeviceRound) -> list[fx.Effect]:
        """Of a record that says what became of an upload: the whole as it is pushed, or the piece
        that says it."""
        answer = round_.outbox.awaited(commit.at)
        if answer is None:
            return []
        check_fetchable(offer, commit.blob, self.settings.blob_bytes)
        check_record(commit)
        if offer.data or not commit.pieces or round_.cover.on:
            return self._fetch(offer, commit)
        self.fetches.make_room(offer, commit)
        asked = self.fetches.pull(offer, commit, piece_for(commit, answer.marks))
        return [*asked, fx.SetTimer("repair", self.settings.repair_s)]

    def _complete(self, complete: FetchedBlob | FetchedStanzas | None) -> list[fx.Effect]:
        match complete:
            case (Commit() as commit, data):
                answered = self.rounds.of(commit.at.job_id)
                return answered.committed(commit, data) if answered else []
            case FetchedStanzas(manifest=manifest, stanzas=stanzas):
                if self._covers(manifest):
                    return self._go_on(manifest, stanzas)
                return [fx.Work(FindStanza(manifest, stanzas))]
            case (Manifest(kind="round") as manifest, data):
                round_ = self.rounds.of(manifest.at.job_id)
                return round_.complete(manifest, data, self._now_s) if round_ else []
            case (Manifest() as manifest, data):
                self._jobs.complete(manifest)
                return [fx.Work(OpenPackage(manifest, data))]
        return []

    def _covers(self, manifest: Manifest) -> bool:
        """Whether even who finds no stanza fetches the stream: of a release, that nobody sees whom
        a canary has."""
        if manifest.kind == "release":
            return True
        round_ = self.rounds.of(manifest.at.job_id) if manifest.kind == "round" else None
        return round_ is not None and round_.cover.on

    def _go_on(self, manifest: Manifest, stanzas: bytes) -> list[fx.Effect]:
        rest = self.fetches.go_on(manifest, stanzas)
        return rest if isinstance(rest, list) else self._complete(rest)

    # --- outcomes of the host's work ---

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        match task, result:
            case FindStanza(manifest=manifest), _ if not self.fetches.has(manifest):
                return []  # given up meanwhile, or it came as a whole
            case FindStanza(manifest=manifest, stanzas=stanzas), StanzaLook(found=found):
                if found or self._covers(manifest):
                    return self._go_on(manifest, stanzas)
                self.fetches.forget(lambda old: old == manifest)
                return self._not_for_me(manifest)
            case FindStanza(manifest=manifest), fx.WorkFailed(reason=reason):
                self.fetches.forget(lambda old: old == manifest)
                return [*self._not_for_me(manifest), *_failed(reason)]
            case OpenPackage(manifest=manifest), OpenedPackage() as opened:
                if round_ := self.rounds.of(manifest.at.job_id):
                    round_.fix_window(manifest, opened)
                return self._opened(manifest, opened.package)
            case (OpenPackage() | InstallJob()) as work, fx.WorkFailed(reason=reason):
                return [*self._not_for_me(work.manifest), *_failed(reason)]
            case InstallJob(manifest=manifest), Installation():
                out = self._jobs.learned(manifest.at.job_id, self.rounds.at_hand)
                return out + self._go_on_with(manifest.at.job_id)
            case ComputeAnswer() as work, answer:
                after = self._answered(work.manifest, answer)
                return after + self.rounds.worked(work, answer, self._now_s)
            case SealDummies(manifest=manifest), answer:
                return self._answered(manifest, answer, dummies=True)
            case InstallRelease(manifest=manifest), Installation():
                self._in_use(manifest)
                report = fx.Report("model_installed", {"job_id": manifest.at.job_id.hex()})
                return [report, *self._releases.settled(manifest)]
            case AdoptRelease(manifest=manifest), Installation():
                self._in_use(manifest)
                return self._releases.settled(manifest)
            case CountElsewhere(behind=behind), Installation():
                self.memory.answered = max(self.memory.answered, behind.answered)
                return [fx.Report("was_behind", {}), *self._greeting.begin()]
            case (InstallRelease() | AdoptRelease()) as work, fx.WorkFailed(reason=reason):
                # It counts as never heard of.
                self._newest_release = known_number(self.memory.release_sequence)
                return [*_failed(reason), *self._releases.settled(work.manifest)]
            case SealReport(manifest=manifest), MadeReport(sealed=report):
                return self._releases.sealed(manifest, report)
            case ApplyStatement(statement=said), StatementApplied(left=left):
                return self._releases.applied(said, left=left)
            case _, fx.WorkFailed(reason=reason):
                return _failed(reason)
        return []

    def _answered(
        self, manifest: Manifest, answer: object, *, dummies: bool = False
    ) -> list[fx.Effect]:
        round_ = self.rounds.of(manifest.at.job_id)
        match answer:
            case _ if round_ is None:
                return []
            case SealedAnswer() as sealed:
                return round_.sealed(manifest, sealed, self._now_s)
            case (NoAnswer() | fx.WorkFailed()) as none:
                why = none.why if isinstance(none, NoAnswer) else none.reason
                if dummies:
                    return round_.uncovered(manifest, why)
                cause = none.cause if isinstance(none, NoAnswer) else "fault"
                return round_.declined(manifest, why, cause)
        return []

    def _in_use(self, release: Manifest) -> None:
        if release.sequence >= known_number(self.memory.release_sequence):
            self.memory.release_sequence = release.sequence
            self.memory.release_package = release.package_digest

    def _opened(self, manifest: Manifest, package: Package | None) -> list[fx.Effect]:
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

    def _not_for_me(self, manifest: Manifest) -> list[fx.Effect]:
        if manifest.kind == "release":
            return self._releases.settled(manifest)
        if manifest.kind != "job":
            round_ = self.rounds.of(manifest.at.job_id)
            return round_.not_for_me(manifest) if round_ else []
        self._jobs.of_no_use(manifest)
        return self._go_on_with(manifest.at.job_id)

    def _go_on_with(self, job_id: bytes) -> list[fx.Effect]:
        waiting = self._jobs.released(job_id)
        return self._offer(waiting) if waiting else []

    # --- notes ---

    def _note(self, envelope: Envelope) -> list[fx.Effect]:
        if envelope.signer == "cloud":
            body = self.keys.cloud_body(envelope)
            if isinstance(body, Close):
                return self._close(body)
            if isinstance(body, ReleaseStatement):
                return self._releases.stated(body)
            raise ProtocolError("unexpected_body")
        match verified_body(envelope, "proxy", self.keys.proxy):
            case Here() as here:
                return self._greeting.asked(here)
            case Later() as later:
                return self._greeting.put_off(later)
            case Behind() as behind:
                # Of another hello: this one may have been played again.
                told = self._greeting.is_said(behind.hello)
                return [fx.Work(CountElsewhere(behind))] if told else []
            case Cover() as cover:
                self.rounds.cover_asked(cover)
                return []
            case RoundKey() as key:
                self.rounds.keys.told(key)
                return []
            case BlobAt(put=True) as at:
                laying = self.rounds.with_upload(at.blob)
                return laying.outbox.lay_down(at) if laying else []
            case BlobAt() as at:
                return self.fetches.lies_at(at)
            case Ack() as ack:
                if self._key_told(ack):
                    return [fx.Persist(SealingKeyTold())]
                reported = self._releases.acknowledged(ack)
                if reported is not None:
                    return reported
                heard = self._greeting.heard(ack.blob)
                if heard is not None:
                    return heard
                sent = self.rounds.with_upload(ack.blob)
                return sent.acknowledged(ack) if sent else []
        raise ProtocolError("unexpected_body")

    def _close(self, close: Close) -> list[fx.Effect]:
        ended = self._jobs.closed(close)
        if not ended:
            return []
        # Its last record may be on its way.
        kinds, job_id = ("job", "round"), close.job_id
        self.fetches.forget(lambda old: old.kind in kinds and old.at.job_id == job_id)
        what = {"job_id": close.job_id.hex(), "status": close.status}
        round_ = self.rounds.of(close.job_id)
        return [*(round_.job_closed() if round_ else []), *ended, fx.Report("job_closed", what)]

    # --- timers ---

    def _hello(self) -> list[fx.Effect]:
        if self._greeting.away:
            return []
        missed = self.rounds.offer_again() if self._greeting.answers_here() else []
        return [*self._tell_key(), *self._greeting.hello(), *missed]

    def _timer(self, name: str) -> list[fx.Effect]:
        match name:
            case "hello":
                return self._hello()
            case "key":
                return self._tell_key()
            case "repair":
                return self.fetches.repair()
            case "report":
                return self._releases.tell()
            case "want":
                return self._jobs.want_again(self._now_s)
            case _ if name == TURN:
                return self.rounds.next_turn(self._now_s)
        what, _, job = name.partition("/")
        round_ = self.rounds.of(bytes.fromhex(job)) if job else None
        if round_ is None:
            return []
        match what:
            case "resend":
                return round_.resend()
            case "deadline" if (out := round_.expired()) is not None:
                mine = round_.job_id
                self.fetches.forget(lambda old: old.kind == "round" and old.at.job_id == mine)
                return out
        return []


def _is_over(fetched: BroadcastHeader, round_: DeviceRound) -> bool:
    """Whether a fetch ends with this round; not the record of the last answer."""
    if fetched.at.job_id != round_.job_id:
        return False
    if isinstance(fetched, Commit):
        return round_.outbox.awaited(fetched.at) is None
    return fetched.kind == "round"


def _failed(reason: str) -> list[fx.Effect]:
    """Refusals are counted by reason, so only a slug is one; a sentence is for the owner."""
    if _SLUG.fullmatch(reason):
        return [fx.Refuse(reason)]
    return [fx.Refuse("failed_work"), fx.Report("failed_work", {"why": reason})]


UNHEARD_TRIES = 3  # after so many hellos without an answer the owner is told
LATER_CAP_S = 600.0  # a longer delay is not believed


class DeviceGreeting:
    """How a device says that it is there: until the proxy has heard it, and when it is asked.

    One timer, `hello`.
    """

    def __init__(
        self,
        signer: Signer,
        memory: DeviceMemory,
        settings: DeviceSettings,
        backoff: Backoff,
        versions: tuple[int, int] = (0, 0),
    ) -> None:
        self._signer, self._memory = signer, memory
        self._settings, self._backoff = settings, backoff
        self.versions = versions  # of the trust metadata, as a hello says them
        self._tries = 0
        self._said = b""  # digest of the hello that is not acknowledged yet
        self.away = False  # by its owner's conditions, perhaps once the round at hand is over
        self._greeted = False
        self._is_asked = False  # by the proxy, since the last hello
        # Who counts its answers takes up nothing until the proxy knows no later ones.
        self._was_heard = memory.answered < 0

    @property
    def is_there(self) -> bool:
        """Whether to take up what is offered: not while away, nor before it was heard once."""
        return self._was_heard and not self.away

    @property
    def unheard(self) -> bool:
        """Whether several hellos found no answer."""
        return bool(self._said) and self._tries > UNHEARD_TRIES

    def begin(self) -> list[fx.Effect]:
        """The link is up (again)."""
        self._tries = 0
        return self.hello()

    def hello(self) -> list[fx.Effect]:
        """Say hello, and again, ever more slowly, until the proxy has heard it; not while away."""
        if self.away:
            return []
        self._greeted = True
        answered = self._memory.answered
        hello = Hello(self._signer.name, *self.versions, answered, KNOWS_CHECKS)
        note = self._signer.note(hello)
        self._said = hashlib.sha256(note.body.payload).digest()
        settings = self._settings
        wait_s = self._backoff.wait_s(settings.repair_s, self._tries, settings.waits_cap_s)
        self._tries += 1
        out: list[fx.Effect] = [fx.Send(fx.ProxyAddress(), note), fx.SetTimer("hello", wait_s)]
        unheard = self._tries == UNHEARD_TRIES + 1
        return [*out, fx.Report("unheard", {"tries": UNHEARD_TRIES})] if unheard else out

    def leave(self) -> list[fx.Effect]:
        """Say good-bye, once, where it is away and was there before."""
        if not self.away or not self._greeted:
            return []
        self._greeted, self._said = False, b""
        bye = self._signer.note(Bye(self._signer.name))
        return [fx.CancelTimer("hello"), fx.Send(fx.ProxyAddress(), bye)]

    def asked(self, here: Here) -> list[fx.Effect]:
        """Come at a moment of one's own in the spread, so that a fleet does not come at once."""
        if self.away:
            return []
        self._tries, self._is_asked = 0, True
        moment = int(self._signer.name[:8], 16) / 2**32
        return [fx.SetTimer("hello", min(here.spread_s, LATER_CAP_S) * moment)]

    def answers_here(self) -> bool:
        """Whether the hello that falls due is the first since the proxy came and asked for it."""
        asked, self._is_asked = self._is_asked, False
        return asked

    def put_off(self, later: Later) -> list[fx.Effect]:
        """The proxy has heard the hello and asks for it again, after the delay that it gave."""
        if self.away:
            return []
        self._tries = 0
        return [fx.SetTimer("hello", min(later.delay_s, LATER_CAP_S))]

    def heard(self, digest: bytes) -> list[fx.Effect] | None:
        """The proxy acknowledged a note of this digest; None if it was not the hello."""
        if not self.is_said(digest):
            return None
        self._said, self._was_heard = b"", True
        return [fx.CancelTimer("hello")]

    def is_said(self, digest: bytes) -> bool:
        """Whether this is the hello that is not acknowledged yet."""
        return digest == self._said
