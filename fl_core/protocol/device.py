"""The device's machine: fetch, open, consent and work, upload, until it was counted.

The work itself (opening stanzas, pricing, training, sealing) is done by the host, which tells
the result; the machine decides what is fresh, what is answered, and when to send again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from fl_core.crypto.keys import VerifyKey
from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.blob import describe
from fl_core.protocol.codec import decode_body, decode_header
from fl_core.protocol.envelope import BODY_LABEL, HEADER_LABEL, Signer, check
from fl_core.protocol.messages import (
    Ack,
    Bye,
    Close,
    Commit,
    Decline,
    Exchanged,
    Header,
    Hello,
    Here,
    Manifest,
    Need,
    Note,
    Offer,
    Part,
    Signed,
    Upload,
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
    OutboxDrop,
    OutboxPut,
    Sealed,
    Seen,
    Work,
)
from fl_core.protocol.transfer import (
    Fetch,
    answer_need,
    check_fetchable,
    first_data,
    part_bytes,
    sends,
)
from fl_core.protocol.transitions import StateTable


class State(Enum):
    """Where a device stands in the round it last heard of."""

    IDLE = "idle"
    FETCHING = "fetching"
    OPENING = "opening"
    WORKING = "working"
    UPLOADING = "uploading"
    ANSWERED = "answered"


_S = State
TABLE = StateTable(
    _S.IDLE,
    {(state, "manifest"): _S.FETCHING for state in State}
    | {(state, "closed"): _S.IDLE for state in State}
    | {
        (_S.FETCHING, "complete"): _S.OPENING,
        (_S.OPENING, "not_for_me"): _S.IDLE,
        (_S.OPENING, "opened"): _S.WORKING,
        (_S.WORKING, "declined"): _S.IDLE,
        (_S.WORKING, "sealed"): _S.UPLOADING,
        (_S.IDLE, "restored"): _S.UPLOADING,
        (_S.UPLOADING, "held"): _S.ANSWERED,
        (_S.UPLOADING, "refused"): _S.IDLE,
        (_S.UPLOADING, "expired"): _S.IDLE,
    },
)


@dataclass(frozen=True)
class Settings:
    """Bounds and waits of one device."""

    packet_bytes: int = 65536
    blob_bytes: int = 256 << 20
    repair_s: float = 1.0
    resend_s: float = 5.0
    waits_cap_s: float = 30.0


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
        self._fetches: dict[bytes, Fetch] = {}
        self._newest_release = memory.release_sequence  # heard of, perhaps not yet installed
        self._waiting: Offer | None = None  # a round whose job is still being fetched
        self._resends = self._hellos = 0
        self._greeting = b""

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
                return self._need(need)
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
        self._hellos = 0
        out = self._hello()
        if self.memory.outbox and self.state is State.IDLE:
            self.state = TABLE.step(self.state, "restored")
        if self.state is State.UPLOADING:
            out += self._send_upload()
        return out

    def _hello(self) -> list[fx.Effect]:
        """Say hello, and again, ever more slowly, until the proxy has heard it."""
        note = self.signer.note(Hello(self.signer.name))
        self._greeting = hashlib.sha256(note.body.payload).digest()
        wait_s = min(self.settings.repair_s * 2 ** min(self._hellos, 10), self.settings.waits_cap_s)
        self._hellos += 1
        out: list[fx.Effect] = [fx.Send(fx.Proxy(), note), fx.SetTimer("hello", wait_s)]
        return [*out, fx.Report("unheard", {"tries": 3})] if self._hellos == 4 else out

    def _asked_for_hello(self, here: Here) -> list[fx.Effect]:
        """Come at a moment of one's own in the spread, so that a fleet does not come at once."""
        self._hellos = 0
        moment = int(self.signer.name[:8], 16) / 2**32
        return [fx.SetTimer("hello", here.spread_s * moment)]

    # --- offers: what is fresh ---

    def _offer(self, offer: Offer) -> list[fx.Effect]:
        check(offer.header, "cloud", self.cloud_key, HEADER_LABEL)
        header = decode_header(offer.header)
        if not isinstance(header, Manifest | Commit):
            raise ProtocolError("unexpected_header")
        if isinstance(header, Commit) and not self._is_mine(header.at):
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
        self._forget_fetches(lambda old: _kind(old) == "release" and old != header)
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
        self.manifest, self._resends = manifest, 0
        self._forget_fetches(lambda old: _kind(old) in ("round", "commit"))
        if self.memory.outbox:
            self.memory.outbox = None
            out.append(fx.Store(OutboxDrop()))
        out.append(fx.CancelTimer("resend"))
        out.append(fx.SetTimer("deadline", manifest.deadline_s + manifest.grace_s))
        return out + self._fetch(offer, manifest)

    def _busy_with(self, at: Exchanged) -> bool:
        outbox = self.memory.outbox
        return (self.manifest is not None and self.manifest.at == at) or (
            outbox is not None and outbox.at == at
        )

    def _fetch_inline(self, offer: Offer, manifest: Manifest) -> list[fx.Effect]:
        """A repeated offer may carry the blob that the first one lacked."""
        if self.state is State.FETCHING and manifest.blob.digest in self._fetches:
            return self._take(self._fetches[manifest.blob.digest], offer)
        return []

    def _forget_fetches(self, over: Callable[[Header], bool]) -> None:
        """Stop fetching what is over: a fetch that cannot end must not take a place for good."""
        self._fetches = {d: f for d, f in self._fetches.items() if not over(f.header)}

    def _is_mine(self, at: Exchanged) -> bool:
        return self.memory.outbox is not None and self.memory.outbox.at == at

    # --- fetching ---

    def _fetch(self, offer: Offer, header: Manifest | Commit) -> list[fx.Effect]:
        digest = header.blob.digest
        if digest not in self._fetches:
            if len(self._fetches) >= 8:
                raise ProtocolError("too_many_fetches")
            self._fetches[digest] = Fetch(offer, header, self.settings.blob_bytes)
        out: list[fx.Effect] = [fx.SetTimer("repair", self.settings.repair_s)]
        return out + self._take(self._fetches[digest], offer)

    def _take(self, fetch: Fetch, offer: Offer) -> list[fx.Effect]:
        complete = False
        for part in first_data(offer, fetch.header.blob):
            complete = fetch.add(part)
        return self._complete(fetch) if complete else []

    def _part(self, part: Part) -> list[fx.Effect]:
        fetch = self._fetches.get(part.blob)
        if fetch is None:
            return []  # parts are broadcast: most are of no interest here
        if fetch.add(part):
            return self._complete(fetch)
        need = fetch.next_need(timer=False)
        return [fx.Send(fx.Proxy(), need)] if need else []

    def _complete(self, fetch: Fetch) -> list[fx.Effect]:
        data = fetch.assembly.finish()
        del self._fetches[fetch.header.blob.digest]
        header = fetch.header
        if isinstance(header, Commit):
            return self._committed(header, data)
        if not isinstance(header, Manifest):
            return []
        if header.kind == "round":
            self.state = TABLE.step(self.state, "complete")
        return [fx.Work(Open(header, data))]

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
        blob = describe(sealed.data, part_bytes(self.settings.packet_bytes))
        upload = Upload(manifest.at, sealed.groups, blob)
        item = OutboxPut(manifest.at, self.signer.header(upload), upload, sealed.sizes, sealed.data)
        self.state = TABLE.step(self.state, "sealed")
        self.memory.outbox = item
        return [fx.Store(item), *self._send_upload()]

    # --- upload ---

    def _send_upload(self) -> list[fx.Effect]:
        item = self.memory.outbox
        if item is None:
            return []
        wait_s = min(self.settings.resend_s * 2**self._resends, self.settings.waits_cap_s)
        packets = sends(
            fx.Proxy(), item.header, item.upload.blob, item.data, self.settings.packet_bytes
        )
        return [*packets, fx.SetTimer("resend", wait_s)]

    def _need(self, need: Need) -> list[fx.Effect]:
        item = self.memory.outbox
        if item is None or item.upload.blob.digest != need.blob:
            return []
        return list(answer_need(fx.Proxy(), need, item.upload.blob, item.data))

    def _note(self, signed: Signed) -> list[fx.Effect]:
        if signed.signer == "cloud":
            check(signed, "cloud", self.cloud_key, BODY_LABEL)
            body = decode_body(signed)
            if isinstance(body, Close):
                return self._close(body)
            raise ProtocolError("unexpected_body")
        check(signed, "proxy", self.proxy_key, BODY_LABEL)
        body = decode_body(signed)
        if isinstance(body, Here):
            return self._asked_for_hello(body)
        if not isinstance(body, Ack):
            raise ProtocolError("unexpected_body")
        if body.blob == self._greeting:
            self._greeting = b""
            return [fx.CancelTimer("hello")]
        return self._acknowledged(body)

    def _acknowledged(self, ack: Ack) -> list[fx.Effect]:
        item = self.memory.outbox
        if item is None or item.upload.blob.digest != ack.blob or self.state is not State.UPLOADING:
            return []
        if ack.status == "held":
            self.state = TABLE.step(self.state, "held")
            return [fx.CancelTimer("resend")]
        self.state = TABLE.step(self.state, "refused")
        self.memory.outbox = None
        return [
            fx.CancelTimer("resend"),
            fx.Store(OutboxDrop()),
            fx.Report("upload_refused", {"round": item.at.round, "why": ack.reason or ack.status}),
        ]

    def _committed(self, commit: Commit, data: bytes) -> list[fx.Effect]:
        item = self.memory.outbox
        if item is None or item.at != commit.at:
            return []
        hashes = {data[i : i + 32] for i in range(0, len(data), 32)}
        offset, counted = 0, 0
        for size in item.sizes:
            counted += hashlib.sha256(item.data[offset : offset + size]).digest() in hashes
            offset += size
        self.state = TABLE.step(self.state, "closed")
        self.memory.outbox = None
        what = {"round": commit.at.round, "segments": len(item.sizes), "counted": counted}
        return [fx.CancelTimer("resend"), fx.Store(OutboxDrop()), fx.Report("counted", what)]

    def _close(self, close: Close) -> list[fx.Effect]:
        if close.job_id in self.memory.closed:
            return []
        self.memory.closed.add(close.job_id)
        self.memory.jobs.discard(close.job_id)
        self.memory.seen.pop(close.job_id, None)
        out: list[fx.Effect] = [fx.Store(JobClosed(close.job_id, close.status))]
        self._forget_fetches(lambda old: _kind(old) != "release" and _job_of(old) == close.job_id)
        upload = self.memory.outbox
        here = upload is not None and upload.at.job_id == close.job_id
        if here:
            self.memory.outbox = None
            out.append(fx.Store(OutboxDrop()))
        # After a restart the upload may be all that is left of the round.
        if here or (self.manifest is not None and self.manifest.at.job_id == close.job_id):
            self.state = TABLE.step(self.state, "closed")
            self.manifest = None
        report = fx.Report("job_closed", {"job_id": close.job_id.hex(), "status": close.status})
        return [*out, fx.CancelTimer("resend"), fx.CancelTimer("deadline"), report]

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        if name == "hello":
            return self._hello()
        if name == "resend" and self.state is State.UPLOADING:
            self._resends += 1
            return self._send_upload()
        if name == "deadline" and self.state is State.UPLOADING:
            self.state = TABLE.step(self.state, "expired")
            self.memory.outbox = None
            return [fx.CancelTimer("resend"), fx.Store(OutboxDrop())]
        if name == "repair" and self._fetches:
            out: list[fx.Effect] = []
            for fetch in list(self._fetches.values()):
                need = fetch.next_need(timer=True)
                if need:
                    out.append(fx.Send(fx.Proxy(), need))
            looks = max(fetch.idle_looks for fetch in self._fetches.values())
            wait_s = min(self.settings.repair_s * 2 ** min(looks, 6), self.settings.waits_cap_s)
            return [*out, fx.SetTimer("repair", wait_s)]
        return []


def _kind(header: Header) -> str:
    return header.kind if isinstance(header, Manifest) else "commit"


def _job_of(header: Header) -> bytes | None:
    return header.at.job_id if isinstance(header, Manifest | Commit) else None
