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
from edgeveil.protocol.codec import decode_body, decode_header
from edgeveil.protocol.device_fetches import Complete, Fetches, job_of, kind_of
from edgeveil.protocol.device_greeting import Greeting
from edgeveil.protocol.device_jobs import Jobs
from edgeveil.protocol.device_outbox import Outbox
from edgeveil.protocol.device_releases import Releases
from edgeveil.protocol.device_round import Round
from edgeveil.protocol.device_states import TABLE, State
from edgeveil.protocol.envelope import Signer, check
from edgeveil.protocol.messages import (
    Ack,
    Bye,
    Close,
    Commit,
    Cover,
    Exchanged,
    Header,
    Here,
    Later,
    Manifest,
    Need,
    Note,
    Offer,
    Part,
    Signed,
)
from edgeveil.protocol.pace import Pace
from edgeveil.protocol.package import JobPackage, Package, ReleasePackage
from edgeveil.protocol.tasks import (
    Declined,
    Dummies,
    Failed,
    Install,
    Learn,
    Learned,
    Memory,
    Open,
    Opened,
    Sealed,
    Seen,
    Settings,
    Work,
)
from edgeveil.protocol.transfer import check_fetchable

__all__ = ["TABLE", "DeviceMachine", "Settings", "State"]

_SLUG = re.compile(r"[a-z0-9_]{1,64}")


class DeviceMachine:
    """One device. `memory` is changed only together with the `Store` effects that say so."""

    def __init__(
        self,
        signer: Signer,
        cloud_key: VerifyKey,
        proxy_key: VerifyKey,
        memory: Memory,
        settings: Settings | None = None,
    ) -> None:
        self.signer, self.cloud_key, self.proxy_key = signer, cloud_key, proxy_key
        self.memory, self.settings = memory, settings or Settings()
        self._now_s = 0.0
        pace = Pace(signer.name)
        self.fetches = Fetches(self.settings, pace)
        self.round = Round(signer, memory, self.settings, pace)
        self._jobs = Jobs(signer, memory, self.settings, pace, self.fetches)
        self._releases = Releases(memory)
        self._greeting = Greeting(signer, self.settings, pace)

    @property
    def at(self) -> Exchanged | None:
        """The round that it fetches, works on or has an upload of."""
        return self.round.at

    @property
    def state(self) -> State:
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
            case fx.Connected():
                return [*self._greeting.begin(), *self.round.connected()]
            case fx.Received(message=Offer() as offer):
                return self._offer(offer)
            case fx.Received(message=Part() as part):
                taken = self.fetches.part(part, self._jobs.is_ahead)
                return taken if isinstance(taken, list) else self._complete(taken)
            case fx.Received(message=Need() as need):
                return self.outbox.need(need)
            case fx.Received(message=Note(body=signed)):
                return self._note(signed)
            case fx.Timer(name=name):
                return self._timer(name)
            case fx.Done(task=task, result=result):
                return self._done(task, result)
            case fx.Command(what="stop"):
                return [fx.Send(fx.Proxy(), self.signer.note(Bye(self.signer.name)))]
        return []

    # --- offers: what is fresh ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        check(offer.header, "cloud", self.cloud_key, HEADER)
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
        mark = Seen(manifest.at, hashlib.sha256(offer.header.payload).digest())
        if self.round.is_new(mark):
            self.fetches.make_room(offer, manifest, self._is_over)
            return [*self.round.begin(manifest, mark, self._now_s), *self._fetch(offer, manifest)]
        if self.state is State.FETCHING and manifest.blob.digest in self.fetches.under_way:
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
                return [fx.Work(Open(manifest, data))]
        return []

    # --- outcomes of the host's work ---

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        match task, result:
            case Open(manifest=manifest), Opened() as opened:
                self.round.fix_moment(manifest, opened)
                return self._opened(manifest, opened.package)
            case (Open() | Learn()) as work, Failed(reason=reason):
                return [*self._not_for_me(work.manifest), *_failed(reason)]
            case Learn(manifest=manifest), Learned():
                out = self._jobs.learned(manifest.at.job_id, self.at)
                return out + self._go_on_with(manifest.at.job_id)
            case (Work() | Dummies()) as work, Sealed() as sealed:
                return self.round.sealed(work.manifest, sealed, self._now_s)
            case Work(manifest=manifest), Declined(why=why) | Failed(reason=why):
                return self.round.declined(manifest, why)
            case Dummies(manifest=manifest), Declined(why=why) | Failed(reason=why):
                return self.round.uncovered(manifest, why)
            case Install(manifest=manifest), Learned():
                self._releases.installed(manifest)
                return [fx.Report("model_installed", {"job_id": manifest.at.job_id.hex()})]
            case _, Failed(reason=reason):
                return _failed(reason)
        return []

    def _opened(self, manifest: Manifest, package: Package | None) -> list[fx.Effect]:
        if package is None:
            return self._not_for_me(manifest)
        if manifest.kind == "job":
            if isinstance(package, JobPackage):
                return [fx.Work(Learn(manifest, package))]
            return [*self._not_for_me(manifest), fx.Refuse("malformed_package")]
        if manifest.kind == "release" and isinstance(package, ReleasePackage):
            fresh = self._releases.is_newest(manifest)
            return [fx.Work(Install(manifest, package))] if fresh else []
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

    def _note(self, signed: Signed) -> list[fx.Effect]:
        if signed.signer == "cloud":
            check(signed, "cloud", self.cloud_key, BODY)
            body = decode_body(signed)
            if isinstance(body, Close):
                return self._close(body)
            raise ProtocolError("unexpected_body")
        check(signed, "proxy", self.proxy_key, BODY)
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
