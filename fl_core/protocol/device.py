"""The device's machine: fetch, open, consent and work, upload, until it was counted.

The work itself (opening stanzas, pricing, training, sealing) is done by the host, which tells
the result; the machine decides what is fresh, what is answered, and when to send again.
"""

from __future__ import annotations

import hashlib

from fl_core.crypto.keys import VerifyKey
from fl_core.crypto.labels import BODY, HEADER
from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.codec import decode_body, decode_header
from fl_core.protocol.device_fetches import Complete, Fetches
from fl_core.protocol.device_greeting import Greeting
from fl_core.protocol.device_outbox import Outbox
from fl_core.protocol.device_states import TABLE, State
from fl_core.protocol.envelope import Signer, check
from fl_core.protocol.messages import (
    Ack,
    Bye,
    Close,
    Commit,
    Decline,
    Exchanged,
    Header,
    Here,
    Manifest,
    Need,
    Note,
    Offer,
    Part,
    Signed,
    Want,
)
from fl_core.protocol.package import JobPackage, Package, ReleasePackage, RoundPackage
from fl_core.protocol.tasks import (
    Declined,
    Failed,
    Install,
    JobClosed,
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
from fl_core.protocol.transfer import check_fetchable

__all__ = ["TABLE", "DeviceMachine", "Settings", "State"]


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
        self.state = TABLE.start
        self.manifest: Manifest | None = None
        self.fetches = Fetches(self.settings)
        self.outbox = Outbox(signer, memory, self.settings)
        self._newest_release = memory.release_sequence  # heard of, perhaps not yet installed
        self._waiting: Offer | None = None  # a round whose job is still being fetched
        self._greeting = Greeting(signer, self.settings)

    @property
    def at(self) -> Exchanged | None:
        """The round that it fetches, works on or has an upload of."""
        item = self.outbox.item
        return self.manifest.at if self.manifest else item.at if item else None

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        try:
            return self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.Connected():
                return self._connected()
            case fx.Received(message=Offer() as offer):
                return self._offer(offer)
            case fx.Received(message=Part() as part):
                return self._part(part)
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

    # --- the link ---

    def _connected(self) -> list[fx.Effect]:
        out = self._greeting.begin()
        if self.outbox.item and self.state is State.IDLE:
            self.state = TABLE.step(self.state, "restored")
        if self.state is State.UPLOADING:
            out += self.outbox.send()
        return out

    # --- offers: what is fresh ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        check(offer.header, "cloud", self.cloud_key, HEADER)
        header = decode_header(offer.header)
        if not isinstance(header, Manifest | Commit):
            raise ProtocolError("unexpected_header")
        if isinstance(header, Commit) and not self.outbox.is_for(header.at):
            return []
        check_fetchable(offer, header.blob, self.settings.blob_bytes)
        if isinstance(header, Commit):
            return self._fetch(offer, header)
        if header.stanza_bytes > header.blob.size_bytes:
            raise ProtocolError("malformed")
        if header.kind == "release":
            return self._release(offer, header)
        if header.at.job_id in self.memory.closed:
            raise ProtocolError("closed_job")
        if header.kind == "job":
            known = header.at.job_id in self.memory.jobs
            return [] if known else self._fetch(offer, header)
        if header.at.job_id not in self.memory.jobs:
            self._waiting = offer
            return [fx.Send(fx.Proxy(), self.signer.note(Want(header.at.job_id)))]
        return self._round(offer, header)

    def _release(self, offer: Offer, header: Manifest) -> list[fx.Effect]:
        if header.sequence < self._newest_release:
            raise ProtocolError("replayed_release")
        if header.sequence == self.memory.release_sequence:
            return []
        self._newest_release = header.sequence
        self.fetches.forget(lambda old: _kind(old) == "release" and old != header)
        return self._fetch(offer, header)

    def _round(self, offer: Offer, manifest: Manifest) -> list[fx.Effect]:
        digest = hashlib.sha256(offer.header.payload).digest()
        seen = self.memory.seen.get(manifest.at.job_id)
        if seen:
            newest, this = (
                (seen.at.round, seen.at.attempt),
                (manifest.at.round, manifest.at.attempt),
            )
            if this < newest:
                raise ProtocolError("replayed_round")
            if this == newest and digest != seen.manifest_digest:
                raise ProtocolError("forked_manifest")
            if this == newest and self._busy_with(manifest.at):
                return self._fetch_inline(offer, manifest)
        mark = Seen(manifest.at, digest)
        out: list[fx.Effect] = [] if mark == seen else [fx.Store(mark)]
        self.state = TABLE.step(self.state, "manifest")
        self.memory.seen[manifest.at.job_id] = mark
        self.manifest = manifest
        self.fetches.forget(lambda old: _kind(old) in ("round", "commit"))
        out += [*self.outbox.drop(), fx.CancelTimer("resend")]
        out.append(fx.SetTimer("deadline", manifest.deadline_s + manifest.grace_s))
        return out + self._fetch(offer, manifest)

    def _busy_with(self, at: Exchanged) -> bool:
        here = self.manifest is not None and self.manifest.at == at
        return here or self.outbox.is_for(at)

    def _fetch_inline(self, offer: Offer, manifest: Manifest) -> list[fx.Effect]:
        """A repeated offer may carry the blob that the first one lacked."""
        if self.state is State.FETCHING and manifest.blob.digest in self.fetches.under_way:
            return self._complete(self.fetches.offer(offer, manifest))
        return []

    # --- fetching ---

    def _fetch(self, offer: Offer, header: Manifest | Commit) -> list[fx.Effect]:
        complete = self.fetches.offer(offer, header)
        return [fx.SetTimer("repair", self.settings.repair_s), *self._complete(complete)]

    def _part(self, part: Part) -> list[fx.Effect]:
        taken = self.fetches.part(part)
        return taken if isinstance(taken, list) else self._complete(taken)

    def _complete(self, complete: Complete | None) -> list[fx.Effect]:
        match complete:
            case (Commit() as commit, data):
                return self._committed(commit, data)
            case (Manifest() as manifest, data):
                if manifest.kind == "round":
                    self.state = TABLE.step(self.state, "complete")
                return [fx.Work(Open(manifest, data))]
        return []

    # --- outcomes of the host's work ---

    def _done(self, task: object, result: object) -> list[fx.Effect]:
        match task, result:
            case Open(manifest=manifest), Opened(package=package):
                return self._opened(manifest, package)
            case Open(manifest=manifest), Failed(reason=reason):
                return [*self._leave(manifest), fx.Refuse(reason)]
            case Learn(manifest=manifest), Learned():
                self.memory.jobs.add(manifest.at.job_id)
                waiting, self._waiting = self._waiting, None
                return self._offer(waiting) if waiting else []
            case Work(manifest=manifest), Sealed() as sealed:
                return self._sealed(manifest, sealed)
            case Work(manifest=manifest), Declined(why=why):
                return self._declined(manifest, why)
            case Install(manifest=manifest), Learned():
                newest = max(manifest.sequence, self.memory.release_sequence)
                self.memory.release_sequence = newest
                return [fx.Report("model_installed", {"job_id": manifest.at.job_id.hex()})]
            case Work(manifest=manifest), Failed(reason=reason):
                return self._declined(manifest, reason)
            case _, Failed(reason=reason):
                return [fx.Refuse(reason)]
        return []

    def _opened(self, manifest: Manifest, package: Package | None) -> list[fx.Effect]:
        if package is None:
            return self._leave(manifest)
        if manifest.kind == "job" and isinstance(package, JobPackage):
            return [fx.Work(Learn(manifest, package))]
        if manifest.kind == "release" and isinstance(package, ReleasePackage):
            if manifest.sequence < self._newest_release:
                return []
            return [fx.Work(Install(manifest, package))]
        if manifest.kind != "round" or not isinstance(package, RoundPackage):
            return [*self._leave(manifest), fx.Refuse("malformed_package")]
        if manifest != self.manifest:
            return []
        self.state = TABLE.step(self.state, "opened")
        return [fx.Work(Work(manifest, package))]

    def _leave(self, manifest: Manifest) -> list[fx.Effect]:
        if manifest == self.manifest:
            self.state = TABLE.step(self.state, "not_for_me")
        return []

    def _declined(self, manifest: Manifest, why: str) -> list[fx.Effect]:
        report = fx.Report("declined", {"round": manifest.at.round, "why": why})
        if manifest != self.manifest:
            return [report]
        self.state = TABLE.step(self.state, "declined")
        return [report, fx.Send(fx.Proxy(), self.signer.note(Decline(manifest.at)))]

    def _sealed(self, manifest: Manifest, sealed: Sealed) -> list[fx.Effect]:
        if manifest != self.manifest:
            return []  # a newer round came while this one was computed
        self.state = TABLE.step(self.state, "sealed")
        return self.outbox.put(manifest.at, sealed)

    # --- notes ---

    def _note(self, signed: Signed) -> list[fx.Effect]:
        if signed.signer == "cloud":
            check(signed, "cloud", self.cloud_key, BODY)
            body = decode_body(signed)
            if isinstance(body, Close):
                return self._close(body)
            raise ProtocolError("unexpected_body")
        check(signed, "proxy", self.proxy_key, BODY)
        body = decode_body(signed)
        if isinstance(body, Here):
            return self._greeting.asked(body)
        if not isinstance(body, Ack):
            raise ProtocolError("unexpected_body")
        heard = self._greeting.heard(body.blob)
        return self._acknowledged(body) if heard is None else heard

    def _acknowledged(self, ack: Ack) -> list[fx.Effect]:
        item = self.outbox.item
        if item is None or item.upload.blob.digest != ack.blob or self.state is not State.UPLOADING:
            return []
        if ack.status == "held":
            self.state = TABLE.step(self.state, "held")
            return [fx.CancelTimer("resend")]
        self.state = TABLE.step(self.state, "refused")
        what = {"round": item.at.round, "why": ack.reason or ack.status}
        report = fx.Report("upload_refused", what)
        return [fx.CancelTimer("resend"), *self.outbox.drop(), report]

    def _committed(self, commit: Commit, data: bytes) -> list[fx.Effect]:
        item = self.outbox.item
        if item is None or item.at != commit.at:
            return []
        counted = self.outbox.counted(data)
        self.state = TABLE.step(self.state, "closed")
        what = {"round": commit.at.round, "segments": len(item.sizes), "counted": counted}
        return [fx.CancelTimer("resend"), *self.outbox.drop(), fx.Report("counted", what)]

    def _close(self, close: Close) -> list[fx.Effect]:
        if close.job_id in self.memory.closed:
            return []
        self.memory.closed.add(close.job_id)
        self.memory.jobs.discard(close.job_id)
        self.memory.seen.pop(close.job_id, None)
        out: list[fx.Effect] = [fx.Store(JobClosed(close.job_id, close.status))]
        self.fetches.forget(lambda old: _kind(old) != "release" and _job_of(old) == close.job_id)
        upload = self.outbox.item
        here = upload is not None and upload.at.job_id == close.job_id
        out += self.outbox.drop() if here else []
        # After a restart the upload may be all that is left of the round.
        if here or (self.manifest is not None and self.manifest.at.job_id == close.job_id):
            self.state = TABLE.step(self.state, "closed")
            self.manifest = None
        report = fx.Report("job_closed", {"job_id": close.job_id.hex(), "status": close.status})
        return [*out, fx.CancelTimer("resend"), fx.CancelTimer("deadline"), report]

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        if name == "hello":
            return self._greeting.hello()
        if name == "repair":
            return self.fetches.repair()
        if name == "resend" and self.state is State.UPLOADING:
            return self.outbox.send_again()
        if name == "deadline" and TABLE.allows(self.state, "expired"):
            self.state = TABLE.step(self.state, "expired")
            self.fetches.forget(lambda header: _kind(header) == "round")
            return [fx.CancelTimer("resend"), *self.outbox.drop()]
        return []


def _kind(header: Header) -> str:
    return header.kind if isinstance(header, Manifest) else "commit"


def _job_of(header: Header) -> bytes | None:
    return header.at.job_id if isinstance(header, Manifest | Commit) else None
