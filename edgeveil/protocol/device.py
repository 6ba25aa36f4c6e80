"""The device's machine: fetch, open, consent and work, upload, until it was counted.

The work itself (opening stanzas, pricing, training, sealing) is done by the host, which tells
the result; the machine decides what is fresh, what is answered, and when to send again. The round
at hand is the business of `device_round.py`, jobs that of `device_jobs.py`.
"""

from __future__ import annotations

import hashlib
import re

from edgeveil.crypto.keys import VerifyKey
from edgeveil.crypto.labels import BODY, HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device_jobs import Complete, Fetches, KnownJobs, job_of, kind_of
from edgeveil.protocol.device_round import DeviceRound, DeviceState, Outbox
from edgeveil.protocol.device_tasks import (
    ComputeAnswer,
    DeviceMemory,
    DeviceSettings,
    Installation,
    InstallJob,
    InstallRelease,
    ManifestMark,
    NoAnswer,
    OpenedPackage,
    OpenPackage,
    SealDummies,
    SealedAnswer,
    WorkFailed,
)
from edgeveil.protocol.messages import (
    Ack,
    Bye,
    Close,
    Commit,
    Cover,
    Envelope,
    ExchangeId,
    Header,
    Hello,
    Here,
    Later,
    Manifest,
    Need,
    Note,
    Offer,
    Part,
    Signer,
    check_signature,
    decode_body,
    decode_header,
)
from edgeveil.protocol.sealed import JobPackage, Package, ReleasePackage
from edgeveil.protocol.transfer import Backoff, check_fetchable

_SLUG = re.compile(r"[a-z0-9_]{1,64}")


class DeviceMachine:
    """One device. `memory` is changed only together with the `Store` effects that say so."""

    def __init__(
        self,
        signer: Signer,
        cloud_key: VerifyKey,
        proxy_key: VerifyKey,
        memory: DeviceMemory,
        settings: DeviceSettings | None = None,
    ) -> None:
        self.signer, self.cloud_key, self.proxy_key = signer, cloud_key, proxy_key
        self.memory, self.settings = memory, settings or DeviceSettings()
        self._now_s = 0.0
        pace = Backoff(signer.name)
        self.fetches = Fetches(self.settings, pace)
        self.round = DeviceRound(signer, memory, self.settings, pace)
        self._jobs = KnownJobs(signer, memory, self.settings, pace, self.fetches)
        self._releases = Releases(memory)
        self._greeting = DeviceGreeting(signer, self.settings, pace)

    @property
    def at(self) -> ExchangeId | None:
        """The round that it fetches, works on or has an upload of."""
        return self.round.at

    @property
    def state(self) -> DeviceState:
        """Where it stands in that round."""
        return self.round.state

    @property
    def outbox(self) -> Outbox:
        """Its upload."""
        return self.round.outbox

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        self._now_s = now_s
        try:
            return self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.PeerConnected():
                return [*self._greeting.begin(), *self.round.connected()]
            case fx.MessageReceived(message=Offer() as offer):
                return self._offer(offer)
            case fx.MessageReceived(message=Part() as part):
                taken = self.fetches.part(part, self._jobs.is_ahead)
                return taken if isinstance(taken, list) else self._complete(taken)
            case fx.MessageReceived(message=Need() as need):
                return self.outbox.need(need)
            case fx.MessageReceived(message=Note(body=signed)):
                return self._note(signed)
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.WorkDone(task=task, result=result):
                return self._done(task, result)
            case fx.Command(what="stop"):
                return [fx.Send(fx.ProxyAddress(), self.signer.note(Bye(self.signer.name)))]
        return []

    # --- offers: what is fresh ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        check_signature(offer.header, "cloud", self.cloud_key, HEADER)
        header = decode_header(offer.header)
        if not isinstance(header, Manifest | Commit):
            raise ProtocolError("unexpected_header")
        if isinstance(header, Commit) and not self.outbox.awaits(header.at):
            return []
        check_fetchable(offer, header.blob, self.settings.blob_bytes)
        if isinstance(header, Commit):
            return self._fetch(offer, header)
        if header.stanza_bytes > header.blob.size_bytes:
            raise ProtocolError("malformed")
        if header.kind == "release":
            return self._release(offer, header)
        self._jobs.check_open(header.at.job_id)
        if header.kind == "job":
            return self._fetch(offer, header) if self._jobs.fresh(header) else []
        self._releases.check_round(header)
        if not self._jobs.ready(header.at.job_id):
            return self._jobs.ahead(offer, header, self._now_s)
        return self._round(offer, header)

    def _release(self, offer: Offer, header: Manifest) -> list[fx.Effect]:
        if not self._releases.fresh(header):
            return []
        self.fetches.make_room(offer, header, over=lambda old: kind_of(old) == "release")
        self._releases.heard(header)
        return self._fetch(offer, header)

    def _round(self, offer: Offer, manifest: Manifest) -> list[fx.Effect]:
        mark = ManifestMark(manifest.at, hashlib.sha256(offer.header.payload).digest())
        if self.round.is_new(mark):
            self.fetches.make_room(offer, manifest, self._is_over)
            return [*self.round.begin(manifest, mark, self._now_s), *self._fetch(offer, manifest)]
        if self.state is DeviceState.FETCHING and manifest.blob.digest in self.fetches.under_way:
            # A repeated offer may carry the blob that the first one lacked.
            return self._complete(self.fetches.offer(offer, manifest))
        return []

    def _is_over(self, fetched: Header) -> bool:
        """Whether a fetch ends when a newer round comes; not the record of the last answer."""
        if isinstance(fetched, Commit):
            return not self.outbox.is_for(fetched.at)
        return kind_of(fetched) == "round"

    # --- fetching ---

    def _fetch(self, offer: Offer, header: Manifest | Commit) -> list[fx.Effect]:
        self.fetches.make_room(offer, header)
        complete = self.fetches.offer(offer, header)
        return [fx.SetTimer("repair", self.settings.repair_s), *self._complete(complete)]

    def _complete(self, complete: Complete | None) -> list[fx.Effect]:
        match complete:
            case (Commit() as commit, data):
                return self.round.committed(commit, data)
            case (Manifest(kind="round") as manifest, data):
                return self.round.complete(manifest, data, self._now_s)
            case (Manifest() as manifest, data):
                self._jobs.complete(manifest)
                return [fx.Work(OpenPackage(manifest, data))]
        return []

    # --- outcomes of the host's work ---

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        match task, result:
            case OpenPackage(manifest=manifest), OpenedPackage() as opened:
                self.round.fix_moment(manifest, opened)
                return self._opened(manifest, opened.package)
            case (OpenPackage() | InstallJob()) as work, WorkFailed(reason=reason):
                return [*self._not_for_me(work.manifest), *_failed(reason)]
            case InstallJob(manifest=manifest), Installation():
                out = self._jobs.learned(manifest.at.job_id, self.at)
                return out + self._go_on_with(manifest.at.job_id)
            case (ComputeAnswer() | SealDummies()) as work, SealedAnswer() as sealed:
                return self.round.sealed(work.manifest, sealed, self._now_s)
            case ComputeAnswer(manifest=manifest), NoAnswer(why=why) | WorkFailed(reason=why):
                return self.round.declined(manifest, why)
            case SealDummies(manifest=manifest), NoAnswer(why=why) | WorkFailed(reason=why):
                return self.round.uncovered(manifest, why)
            case InstallRelease(manifest=manifest), Installation():
                self._releases.installed(manifest)
                return [fx.Report("model_installed", {"job_id": manifest.at.job_id.hex()})]
            case _, WorkFailed(reason=reason):
                return _failed(reason)
        return []

    def _opened(self, manifest: Manifest, package: Package | None) -> list[fx.Effect]:
        if package is None:
            return self._not_for_me(manifest)
        if manifest.kind == "job":
            if isinstance(package, JobPackage):
                return [fx.Work(InstallJob(manifest, package))]
            return [*self._not_for_me(manifest), fx.Refuse("malformed_package")]
        if manifest.kind == "release" and isinstance(package, ReleasePackage):
            fresh = self._releases.is_newest(manifest)
            return [fx.Work(InstallRelease(manifest, package))] if fresh else []
        return self.round.opened(manifest, package)

    def _not_for_me(self, manifest: Manifest) -> list[fx.Effect]:
        if manifest.kind != "job":
            return self.round.not_for_me(manifest)
        self._jobs.of_no_use(manifest)
        return self._go_on_with(manifest.at.job_id)

    def _go_on_with(self, job_id: bytes) -> list[fx.Effect]:
        waiting = self._jobs.released(job_id)
        return self._offer(waiting) if waiting else []

    # --- notes ---

    def _note(self, signed: Envelope) -> list[fx.Effect]:
        if signed.signer == "cloud":
            check_signature(signed, "cloud", self.cloud_key, BODY)
            body = decode_body(signed)
            if isinstance(body, Close):
                return self._close(body)
            raise ProtocolError("unexpected_body")
        check_signature(signed, "proxy", self.proxy_key, BODY)
        match decode_body(signed):
            case Here() as here:
                return self._greeting.asked(here)
            case Later() as later:
                return self._greeting.put_off(later)
            case Cover() as cover:
                self.round.cover.asked(cover)
                return []
            case Ack() as ack:
                heard = self._greeting.heard(ack.blob)
                return self.round.acknowledged(ack) if heard is None else heard
        raise ProtocolError("unexpected_body")

    def _close(self, close: Close) -> list[fx.Effect]:
        ended = self._jobs.closed(close)
        if not ended:
            return []
        self.fetches.forget(lambda old: kind_of(old) != "release" and job_of(old) == close.job_id)
        what = {"job_id": close.job_id.hex(), "status": close.status}
        return [*self.round.job_closed(close.job_id), *ended, fx.Report("job_closed", what)]

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        match name:
            case "hello":
                return self._greeting.hello()
            case "repair":
                return self.fetches.repair()
            case "want":
                return self._jobs.want_again(self._now_s)
            case "resend":
                return self.round.resend()
            case "deadline" if (out := self.round.expired()) is not None:
                self.fetches.forget(
                    lambda old: kind_of(old) == "round" and not self._jobs.is_ahead(old)
                )
                return out
        return []


def _failed(reason: str) -> list[fx.Effect]:
    """Refusals are counted by reason, so only a slug is one; a sentence is for the owner."""
    if _SLUG.fullmatch(reason):
        return [fx.Refuse(reason)]
    return [fx.Refuse("failed_work"), fx.Report("failed_work", {"why": reason})]


# --- how a device says that it is there -----------------------------------------------------


UNHEARD_TRIES = 3  # after so many hellos without an answer the owner is told
LATER_CAP_S = 600.0  # a longer delay is not believed


class DeviceGreeting:
    """One timer, `hello`."""

    def __init__(self, signer: Signer, settings: DeviceSettings, pace: Backoff) -> None:
        self._signer, self._settings, self._pace = signer, settings, pace
        self._tries = 0
        self._said = b""  # digest of the hello that is not acknowledged yet

    def begin(self) -> list[fx.Effect]:
        """The link is up (again)."""
        self._tries = 0
        return self.hello()

    def hello(self) -> list[fx.Effect]:
        """Say hello, and again, ever more slowly, until the proxy has heard it."""
        note = self._signer.note(Hello(self._signer.name))
        self._said = hashlib.sha256(note.body.payload).digest()
        settings = self._settings
        wait_s = self._pace.wait_s(settings.repair_s, self._tries, settings.waits_cap_s)
        self._tries += 1
        out: list[fx.Effect] = [fx.Send(fx.ProxyAddress(), note), fx.SetTimer("hello", wait_s)]
        unheard = self._tries == UNHEARD_TRIES + 1
        return [*out, fx.Report("unheard", {"tries": UNHEARD_TRIES})] if unheard else out

    def asked(self, here: Here) -> list[fx.Effect]:
        """Come at a moment of one's own in the spread, so that a fleet does not come at once."""
        self._tries = 0
        moment = int(self._signer.name[:8], 16) / 2**32
        return [fx.SetTimer("hello", min(here.spread_s, LATER_CAP_S) * moment)]

    def put_off(self, later: Later) -> list[fx.Effect]:
        """The proxy has heard the hello and asks for it again, after the delay that it gave."""
        self._tries = 0
        return [fx.SetTimer("hello", min(later.delay_s, LATER_CAP_S))]

    def heard(self, digest: bytes) -> list[fx.Effect] | None:
        """The proxy acknowledged a note of this digest; None if it was not the hello."""
        if digest != self._said:
            return None
        self._said = b""
        return [fx.CancelTimer("hello")]


# --- releases -------------------------------------------------------------------------------


class Releases:
    """`memory.release_sequence` is the installed one's."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._newest = memory.release_sequence  # heard of, perhaps not yet installed

    def fresh(self, release: Manifest) -> bool:
        """Whether to fetch it; raises ProtocolError `replayed_release`."""
        if release.sequence < self._newest:
            raise ProtocolError("replayed_release")
        return release.sequence != self._memory.release_sequence

    def check_round(self, round_: Manifest) -> None:
        """Raise ProtocolError `outdated_round` for a round from before a release heard of.

        A cloud whose numbers have fallen behind could not bring its model here in the end: to
        answer would spend budget for nothing.
        """
        if round_.sequence < self._newest:
            raise ProtocolError("outdated_round")

    def heard(self, release: Manifest) -> None:
        """It is being fetched: older ones are refused from now on."""
        self._newest = release.sequence

    def is_newest(self, release: Manifest) -> bool:
        """Whether no newer one came while this one was opened."""
        return release.sequence >= self._newest

    def installed(self, release: Manifest) -> None:
        """The host has put it in use."""
        newest = max(release.sequence, self._memory.release_sequence)
        self._memory.release_sequence = newest
