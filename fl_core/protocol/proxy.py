"""The proxy's machine: serve identical bytes to all, take one upload each, shuffle, hand over.

It sees ciphertext only. Towards the cloud it says counts, never who or when.
"""

from __future__ import annotations

import hashlib

from fl_core.crypto.keys import VerifyKey
from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.blob import describe
from fl_core.protocol.codec import decode_body, decode_header
from fl_core.protocol.collection import Collection, Held, State
from fl_core.protocol.envelope import BODY_LABEL, HEADER_LABEL, Signer, check
from fl_core.protocol.messages import (
    Ack,
    Batch,
    Bye,
    Close,
    Commit,
    Decline,
    Exchanged,
    Hello,
    Here,
    Manifest,
    Need,
    Note,
    Offer,
    Part,
    Roster,
    Shortfall,
    Signed,
    Upload,
    Want,
)
from fl_core.protocol.proxy_tasks import (
    BatchDelivered,
    BatchKept,
    JobEnded,
    Kept,
    ProxyMemory,
    ProxySettings,
    Registry,
    RoundDropped,
    Shuffle,
    UploadKept,
    key_of,
)
from fl_core.protocol.transfer import (
    Fetch,
    answer_need,
    check_fetchable,
    first_data,
    part_bytes,
    sends,
)

RoundKey = tuple[bytes, int, int]


class ProxyMachine:
    """One proxy between the devices' broker and the cloud's."""

    def __init__(
        self,
        signer: Signer,
        cloud_key: VerifyKey,
        registry: Registry,
        shuffle: Shuffle,
        memory: ProxyMemory | None = None,
        settings: ProxySettings | None = None,
    ) -> None:
        self.signer, self.cloud_key, self.registry = signer, cloud_key, registry
        self.shuffle, self.memory = shuffle, memory or ProxyMemory()
        self.settings = settings or ProxySettings()
        self.online: set[str] = set()
        self.rounds: dict[RoundKey, Collection] = {}
        self._from_cloud: dict[bytes, Fetch] = {}
        self._from_devices: dict[str, Fetch] = {}
        self._roster: tuple[Signed, Roster, bytes] | None = None
        self._restore()

    def _restore(self) -> None:
        for kept in self.memory.kept.values():
            if isinstance(kept.header, Manifest) and kept.header.kind == "round":
                collection = self._new_collection(kept.header)
                key = key_of(kept.header.at)
                if key in self.memory.delivered:
                    collection.state = State.DELIVERED
                elif key in self.memory.batches:
                    collection.state = State.HANDING_OVER
                self.rounds[key] = collection
        for upload in self.memory.uploads:
            if key_of(upload.at) in self.rounds:
                self.rounds[key_of(upload.at)].uploads[upload.device] = upload.held
        self.memory.uploads.clear()

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Take an event; hostile or stale input ends as one `Refuse`."""
        try:
            return self._handle(event)
        except ProtocolError as error:
            return [fx.Refuse(error.reason)]

    def _handle(self, event: fx.Event) -> list[fx.Effect]:
        match event:
            case fx.Connected(peer=fx.Cloud()):
                return self._cloud_connected()
            case fx.Connected(peer=fx.AllDevices()):
                here = self.signer.note(Here(self.settings.hello_spread_s))
                return [fx.Send(fx.AllDevices(), here)]
            case fx.Command(what="started"):
                return self._resume()
            case fx.Command(what="roster_changed"):
                return self._send_roster()
            case fx.Received(sender=fx.Cloud(), message=message):
                return self._cloud_message(message)
            case fx.Received(sender=fx.Device(id=device), message=message):
                return self._device_message(device, message)
            case fx.Timer(name=name):
                return self._timer(name)
        return []

    # --- start and links ---

    def _resume(self) -> list[fx.Effect]:
        """Timers of rounds that were open when the process ended, and what was due then."""
        out: list[fx.Effect] = []
        for key, collection in self.rounds.items():
            if collection.open:
                out.append(self._set("deadline", key, collection.manifest.deadline_s))
                out += self._advance(collection)
        return out

    def _cloud_connected(self) -> list[fx.Effect]:
        out = self._send_roster()
        for key in self.memory.batches:
            out += self._hand_over(key)
        return out

    def _send_roster(self) -> list[fx.Effect]:
        epoch, keys = self.registry.roster()
        blob = describe(keys, part_bytes(self.settings.packet_bytes))
        header = Roster(epoch, blob)
        self._roster = (self.signer.header(header), header, keys)
        return self._offer_roster(push=True)

    def _offer_roster(self, *, push: bool) -> list[fx.Effect]:
        if self._roster is None:
            return []
        signed, header, keys = self._roster
        limit = self.settings.packet_bytes
        packets = sends(fx.Cloud(), signed, header.blob, keys, limit, push=push)
        return [*packets, fx.SetTimer("roster", self.settings.resend_s)]

    # --- from the cloud ---

    def _cloud_message(self, message: object) -> list[fx.Effect]:
        match message:
            case Offer() as offer:
                return self._broadcast_offer(offer)
            case Part() as part:
                return self._broadcast_part(part)
            case Need() as need:
                return self._cloud_need(need)
            case Note(body=signed) as note:
                check(signed, "cloud", self.cloud_key, BODY_LABEL)
                body = decode_body(signed)
                if isinstance(body, Ack):
                    return self._cloud_ack(body)
                if isinstance(body, Close):
                    return self._close(body, note)
                if isinstance(body, Here):
                    return self._send_roster()
        raise ProtocolError("unexpected_body")

    def _broadcast_offer(self, offer: Offer) -> list[fx.Effect]:
        check(offer.header, "cloud", self.cloud_key, HEADER_LABEL)
        header = decode_header(offer.header)
        if not isinstance(header, Manifest | Commit):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        for kept in self.memory.kept.values():
            if _slot(kept.header) == _slot(header):
                if kept.signed.payload == offer.header.payload:
                    return [fx.Send(fx.Cloud(), self._ack(digest, "held"))]
                return self._refuse_broadcast(digest, "forked_manifest")
        reason = self._why_not(header)
        if reason:
            return self._refuse_broadcast(digest, reason)
        check_fetchable(offer, header.blob, self.settings.blob_bytes)
        self._forget_fetches(header)
        if digest not in self._from_cloud:
            self._from_cloud[digest] = Fetch(offer, header, self.settings.blob_bytes)
        fetch = self._from_cloud[digest]
        complete = False
        for part in first_data(offer, header.blob):
            complete = fetch.add(part)
        if complete:
            return self._broadcast(fetch)
        return [fx.SetTimer("repair", self.settings.repair_s)]

    def _why_not(self, header: Manifest | Commit) -> str:
        """The reason to refuse a broadcast, or an empty string."""
        kind = _kind(header)
        if kind != "release" and header.at.job_id in self.memory.ended:
            return "closed_job"
        if isinstance(header, Commit) or kind == "job":
            return ""
        if kind == "release":
            kept = [k.header for k in self.memory.kept.values() if _kind(k.header) == "release"]
            sequences = [h.sequence for h in kept if isinstance(h, Manifest)]
            return "replayed_release" if header.sequence < max(sequences, default=-1) else ""
        newest = max((k[1:] for k in self.rounds if k[0] == header.at.job_id), default=(-1, -1))
        if (header.at.round, header.at.attempt) < newest:
            return "replayed_round"
        if header.selected < max(header.min_batch, self.settings.min_batch_floor):
            return "selected_below_floor"
        return ""

    def _forget_fetches(self, header: Manifest | Commit) -> None:
        """The cloud has moved on: what it no longer offers cannot be completed."""
        for digest, fetch in list(self._from_cloud.items()):
            old = fetch.header
            if isinstance(old, Manifest | Commit) and _overtakes(header, old):
                del self._from_cloud[digest]

    def _refuse_broadcast(self, digest: bytes, reason: str) -> list[fx.Effect]:
        return [
            fx.Refuse(reason),
            fx.Send(fx.Cloud(), self._ack(digest, "refused", reason)),
        ]

    def _broadcast_part(self, part: Part) -> list[fx.Effect]:
        fetch = self._from_cloud.get(part.blob)
        if fetch is None:
            return []
        if fetch.add(part):
            return self._broadcast(fetch)
        need = fetch.next_need(timer=False)
        return [fx.Send(fx.Cloud(), need)] if need else []

    def _broadcast(self, fetch: Fetch) -> list[fx.Effect]:
        """The whole blob is here: keep it, say so, open the round, pass it on."""
        data = fetch.assembly.finish()
        header = fetch.header
        if not isinstance(header, Manifest | Commit):
            return []
        del self._from_cloud[header.blob.digest]
        kept = Kept(fetch.offer.header, header, data)
        out: list[fx.Effect] = self._make_room(header)
        self.memory.kept[header.blob.digest] = kept
        out += [fx.Store(kept), fx.Send(fx.Cloud(), self._ack(header.blob.digest, "held"))]
        if isinstance(header, Commit):
            out += self._drop_round(header.at)
        elif header.kind == "round":
            key = key_of(header.at)
            self.rounds[key] = self._new_collection(header)
            out.append(self._set("deadline", key, header.deadline_s))
            out.append(fx.Report("round_open", {"round": header.at.round, "phase": header.phase}))
        return out + self._pass_on(fx.AllDevices(), kept)

    def _make_room(self, header: Manifest | Commit) -> list[fx.Effect]:
        """A new round of a job ends its earlier ones; of broadcasts only the newest stays."""
        out: list[fx.Effect] = []
        if isinstance(header, Manifest) and header.kind == "round":
            for key in [k for k in self.rounds if k[0] == header.at.job_id]:
                out += self._drop_round(Exchanged(*key))
                del self.rounds[key]
                self.memory.delivered.discard(key)
        for digest, kept in list(self.memory.kept.items()):
            same_job = kept.header.at.job_id == header.at.job_id
            if _supersedes(header, kept.header, same_job=same_job):
                del self.memory.kept[digest]
        return out

    def _pass_on(self, to: fx.Address, kept: Kept) -> list[fx.Effect]:
        blob, limit = kept.header.blob, self.settings
        push = isinstance(to, fx.AllDevices) and blob.size_bytes <= limit.push_bytes
        return list(sends(to, kept.signed, blob, kept.data, limit.packet_bytes, push=push))

    def _new_collection(self, manifest: Manifest) -> Collection:
        return Collection(manifest, max(manifest.min_batch, self.settings.min_batch_floor, 1))

    def _close(self, close: Close, note: Note) -> list[fx.Effect]:
        out: list[fx.Effect] = []
        if close.job_id not in self.memory.ended:
            for key in [k for k in self.rounds if k[0] == close.job_id]:
                out += self._drop_round(Exchanged(*key))
                del self.rounds[key]
                self.memory.delivered.discard(key)
            for digest, fetch in list(self._from_cloud.items()):
                old = fetch.header
                if isinstance(old, Manifest | Commit) and old.at.job_id == close.job_id:
                    del self._from_cloud[digest]
            for digest, kept in list(self.memory.kept.items()):
                release = isinstance(kept.header, Manifest) and kept.header.kind == "release"
                if kept.header.at.job_id == close.job_id and not release:
                    del self.memory.kept[digest]
            self.memory.ended[close.job_id] = note
            while len(self.memory.ended) > self.settings.ended_kept:
                del self.memory.ended[next(iter(self.memory.ended))]
            out += [fx.Store(JobEnded(close.job_id, note)), fx.Send(fx.AllDevices(), note)]
        digest = hashlib.sha256(note.body.payload).digest()
        return [*out, fx.Send(fx.Cloud(), self._ack(digest, "held"))]

    # --- from devices ---

    def _device_message(self, device: str, message: object) -> list[fx.Effect]:
        match message:
            case Offer() as offer:
                return self._upload_offer(device, offer)
            case Part() as part:
                return self._upload_part(device, part)
            case Need() as need:
                kept = self.memory.kept.get(need.blob)
                if kept is None:
                    raise ProtocolError("unknown_blob")
                return list(answer_need(fx.Device(device), need, kept.header.blob, kept.data))
            case Note(body=signed):
                check(signed, device, self.registry.verify_key(device), BODY_LABEL)
                return self._device_note(device, decode_body(signed), signed)
        raise ProtocolError("unexpected_body")

    def _device_note(self, device: str, body: object, signed: Signed) -> list[fx.Effect]:
        match body:
            case Hello(device=said) if said == device:
                self.online.add(device)
                ack = self._ack(hashlib.sha256(signed.payload).digest(), "held")
                greeting = fx.Send(fx.Device(device), ack)
                return [greeting, *self._open_offers(device), self._presence()]
            case Bye(device=said) if said == device:
                self.online.discard(device)
                return [self._presence()]
            case Want(job_id=job_id):
                return [
                    effect
                    for kept in self.memory.kept.values()
                    if kept.header.at.job_id == job_id and _kind(kept.header) == "job"
                    for effect in self._pass_on(fx.Device(device), kept)
                ]
            case Decline(at=at):
                collection = self.rounds.get(key_of(at))
                if collection is None or not collection.open or device in collection.uploads:
                    raise ProtocolError("closed_round")
                collection.declined.add(device)
                return [self._answered(collection), *self._advance(collection)]
        raise ProtocolError("unexpected_body")

    def _open_offers(self, device: str) -> list[fx.Effect]:
        """What a device that just came should know, jobs first."""
        order = {"job": 0, "round": 1, "release": 2, "commit": 3}
        kept = sorted(self.memory.kept.values(), key=lambda k: order[_kind(k.header)])
        out: list[fx.Effect] = []
        for item in kept:
            out += self._pass_on(fx.Device(device), item)
        return out + [fx.Send(fx.Device(device), note) for note in self.memory.ended.values()]

    def _presence(self) -> fx.Effect:
        return fx.Report("devices_online", {"count": len(self.online)})

    def _upload_offer(self, device: str, offer: Offer) -> list[fx.Effect]:
        check(offer.header, device, self.registry.verify_key(device), HEADER_LABEL)
        header = decode_header(offer.header)
        if not isinstance(header, Upload):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        collection = self.rounds.get(key_of(header.at))
        held = collection.uploads.get(device) if collection else None
        if held is not None:
            if held.digest == digest:
                return [fx.Send(fx.Device(device), self._ack(digest, "held"))]
            return self._refuse_upload(device, digest, "duplicate", "duplicate_upload")
        if collection is None or not collection.open or device in collection.declined:
            return self._refuse_upload(device, digest, "closed", "closed_round")
        fetch = self._from_devices.get(device)
        try:
            collection.check_form(header)
            if self._spooled(device) + header.blob.size_bytes > self.settings.spool_bytes:
                raise ProtocolError("spool_full")
            if fetch is None or fetch.header != header:
                fetch = Fetch(offer, header, self.settings.upload_bytes)
        except ProtocolError as error:
            return self._refuse_upload(device, digest, "refused", error.reason)
        self._from_devices[device] = fetch
        complete = False
        for part in first_data(offer, header.blob):
            complete = fetch.add(part)
        return self._hold(device, fetch) if complete else []

    def _spooled(self, besides: str) -> int:
        """Bytes held, and bytes promised to uploads under way but for the device's own."""
        held = sum(len(h.data) for c in self.rounds.values() for h in c.uploads.values())
        coming = self._from_devices.items()
        return held + sum(f.header.blob.size_bytes for d, f in coming if d != besides)

    def _refuse_upload(
        self, device: str, digest: bytes, status: str, reason: str
    ) -> list[fx.Effect]:
        return [fx.Refuse(reason), fx.Send(fx.Device(device), self._ack(digest, status, reason))]

    def _upload_part(self, device: str, part: Part) -> list[fx.Effect]:
        fetch = self._from_devices.get(device)
        if fetch is None or fetch.header.blob.digest != part.blob:
            raise ProtocolError("unknown_blob")
        return self._hold(device, fetch) if fetch.add(part) else []

    def _hold(self, device: str, fetch: Fetch) -> list[fx.Effect]:
        """A complete upload: durable first, then acknowledged, then counted."""
        data = fetch.assembly.finish()
        del self._from_devices[device]
        header = fetch.header
        if not isinstance(header, Upload):
            return []
        digest = header.blob.digest
        collection = self.rounds.get(key_of(header.at))
        if collection is None or not collection.open or device in collection.declined:
            return self._refuse_upload(device, digest, "closed", "closed_round")
        held = Held(header.groups, digest, data)
        collection.uploads[device] = held
        return [
            fx.Store(UploadKept(header.at, device, held)),
            fx.Send(fx.Device(device), self._ack(digest, "held")),
            self._answered(collection),
            *self._advance(collection),
        ]

    # --- closing a round ---

    @staticmethod
    def _answered(collection: Collection) -> fx.Effect:
        counts = {
            "round": collection.manifest.at.round,
            "uploads": len(collection.uploads),
            "declined": len(collection.declined),
            "selected": collection.manifest.selected,
        }
        return fx.Report("answered", counts)

    def _advance(self, collection: Collection, **why: bool) -> list[fx.Effect]:
        verdict = collection.verdict(**why)
        if verdict is None:
            return []
        collection.step(verdict)
        key = key_of(collection.manifest.at)
        if collection.state is State.GRACE:
            return [self._set("grace", key, collection.manifest.grace_s)]
        if collection.state is State.SHORT:
            return self._short(key)
        counts, data = collection.shuffled(self.shuffle)
        blob = describe(data, part_bytes(self.settings.packet_bytes))
        batch = Batch(
            collection.manifest.at,
            len(collection.uploads),
            len(collection.declined),
            counts,
            blob,
        )
        kept = BatchKept(batch.at, self.signer.header(batch), batch, data)
        self.memory.batches[key] = kept
        collection.forget_ciphertext()
        return [fx.Store(kept), *self._hand_over(key)]

    def _hand_over(self, key: RoundKey, *, push: bool = True) -> list[fx.Effect]:
        """Offer the batch; the cloud asks for parts that did not come with the first offer."""
        kept = self.memory.batches.get(key)
        if kept is None:
            return []
        limit = self.settings.packet_bytes
        packets = sends(fx.Cloud(), kept.signed, kept.batch.blob, kept.data, limit, push=push)
        return [*packets, self._set("handover", key, self.settings.resend_s)]

    def _short(self, key: RoundKey) -> list[fx.Effect]:
        collection = self.rounds[key]
        note = Shortfall(collection.manifest.at, len(collection.uploads), len(collection.declined))
        return [
            fx.Send(fx.Cloud(), self.signer.note(note)),
            self._set("short", key, self.settings.resend_s),
        ]

    def _cloud_need(self, need: Need) -> list[fx.Effect]:
        if self._roster and self._roster[1].blob.digest == need.blob:
            return list(answer_need(fx.Cloud(), need, self._roster[1].blob, self._roster[2]))
        for kept in self.memory.batches.values():
            if kept.batch.blob.digest == need.blob:
                return list(answer_need(fx.Cloud(), need, kept.batch.blob, kept.data))
        raise ProtocolError("unknown_blob")

    def _cloud_ack(self, ack: Ack) -> list[fx.Effect]:
        if self._roster and self._roster[1].blob.digest == ack.blob:
            self._roster = None
            return [fx.CancelTimer("roster")]
        for key, kept in list(self.memory.batches.items()):
            if kept.batch.blob.digest == ack.blob:
                del self.memory.batches[key]
                self.memory.delivered.add(key)
                if key in self.rounds:
                    self.rounds[key].step("held_by_cloud")
                return [fx.Store(BatchDelivered(kept.at)), self._cancel("handover", key)]
        return []

    def _drop_round(self, at: Exchanged) -> list[fx.Effect]:
        key = key_of(at)
        self.memory.batches.pop(key, None)
        for device, fetch in list(self._from_devices.items()):
            if isinstance(fetch.header, Upload) and fetch.header.at == at:
                del self._from_devices[device]
        collection = self.rounds.get(key)
        if collection:
            self.memory.delivered.add(key)  # so that it stays closed after a restart
            collection.forget_ciphertext()
            collection.step("dropped")
        timers = [self._cancel(what, key) for what in ("deadline", "grace", "handover", "short")]
        return [fx.Store(RoundDropped(at)), *timers]

    # --- timers ---

    def _timer(self, name: str) -> list[fx.Effect]:
        if name == "roster":
            return self._offer_roster(push=False)
        if name == "repair":
            return self._repair()
        what, _, rest = name.partition(":")
        key = next((k for k in self.rounds if _text(k) == rest), None)
        if key is None:
            return []
        collection = self.rounds[key]
        if what == "handover" and collection.state is State.HANDING_OVER:
            return self._hand_over(key, push=False)
        if what == "short" and collection.state is State.SHORT:
            return self._short(key)
        if what == "deadline" and collection.open:
            return self._advance(collection, deadline=True)
        if what == "grace" and collection.state is State.GRACE:
            return self._advance(collection, grace_over=True)
        return []

    def _repair(self) -> list[fx.Effect]:
        if not self._from_cloud:
            return []
        needs = [fetch.next_need(timer=True) for fetch in self._from_cloud.values()]
        out: list[fx.Effect] = [fx.Send(fx.Cloud(), need) for need in needs if need]
        return [*out, fx.SetTimer("repair", self.settings.repair_s)]

    @staticmethod
    def _set(what: str, key: RoundKey, delay_s: float) -> fx.SetTimer:
        return fx.SetTimer(f"{what}:{_text(key)}", delay_s)

    @staticmethod
    def _cancel(what: str, key: RoundKey) -> fx.CancelTimer:
        return fx.CancelTimer(f"{what}:{_text(key)}")

    def _ack(self, digest: bytes, status: str, reason: str = "") -> Note:
        return self.signer.note(Ack(digest, status, reason))  # type: ignore[arg-type]


def _text(key: RoundKey) -> str:
    return f"{key[0].hex()}:{key[1]}:{key[2]}"


def _kind(header: Manifest | Commit) -> str:
    return "commit" if isinstance(header, Commit) else header.kind


def _slot(header: Manifest | Commit) -> tuple[object, ...]:
    """The place of which there is only one: a second, different header there is a fork."""
    return (_kind(header), *key_of(header.at))


def _overtakes(new: Manifest | Commit, old: Manifest | Commit) -> bool:
    """`new` is a later broadcast of the kind for which the cloud keeps only one."""
    if isinstance(new, Commit) or new.kind == "job":
        return False
    return new != old and _supersedes(new, old, same_job=new.at.job_id == old.at.job_id)


def _supersedes(new: Manifest | Commit, old: Manifest | Commit, *, same_job: bool) -> bool:
    """Only the newest release stays; of a job, its announcement, newest round and its commit."""
    if _kind(new) == "release":
        return _kind(old) == "release"
    if _kind(new) == "job":
        return same_job and _kind(old) == "job"
    return same_job and _kind(new) == "round" and _kind(old) in ("round", "commit")
