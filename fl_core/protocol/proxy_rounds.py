"""The proxy's upload side: open rounds, one upload each, a shuffled batch, the hand-over."""

from __future__ import annotations

from fl_core.crypto.labels import HEADER
from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.blob import describe
from fl_core.protocol.codec import decode_header
from fl_core.protocol.collection import Collection, Held, State
from fl_core.protocol.envelope import check
from fl_core.protocol.messages import (
    Ack,
    Batch,
    Exchanged,
    Manifest,
    Need,
    Offer,
    Part,
    Shortfall,
    Upload,
)
from fl_core.protocol.proxy_tasks import (
    BatchDelivered,
    BatchKept,
    ProxyParts,
    RoundDropped,
    RoundKey,
    UploadKept,
    key_of,
)
from fl_core.protocol.transfer import Fetch, answer_need, first_data, part_bytes, sends

_TIMERS = ("deadline", "grace", "handover", "short")


class Rounds:
    """All rounds that the proxy knows, newest of each job."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self.by_key: dict[RoundKey, Collection] = {}
        self.arriving: dict[str, Fetch] = {}  # by device
        self._restore()

    def _restore(self) -> None:
        for kept in self._parts.memory.kept.values():
            if isinstance(kept.header, Manifest) and kept.header.kind == "round":
                collection = self._collection(kept.header)
                key = key_of(kept.header.at)
                if key in self._parts.memory.delivered:
                    collection.state = State.DELIVERED
                elif key in self._parts.memory.batches:
                    collection.state = State.HANDING_OVER
                self.by_key[key] = collection
        for upload in self._parts.memory.uploads:
            if key_of(upload.at) in self.by_key:
                self.by_key[key_of(upload.at)].uploads[upload.device] = upload.held
        self._parts.memory.uploads.clear()

    def _collection(self, manifest: Manifest) -> Collection:
        floor = max(manifest.min_batch, self._parts.settings.min_batch_floor, 1)
        return Collection(manifest, floor)

    def resume(self) -> list[fx.Effect]:
        """Timers of rounds that were open when the process ended, and what was due then."""
        out: list[fx.Effect] = []
        for key, collection in self.by_key.items():
            if collection.open:
                out.append(self._set("deadline", key, collection.manifest.deadline_s))
                out += self._advance(collection)
        return out

    def begin(self, manifest: Manifest) -> list[fx.Effect]:
        """Open a round for uploads."""
        key = key_of(manifest.at)
        self.by_key[key] = self._collection(manifest)
        report = fx.Report("round_open", {"round": manifest.at.round, "phase": manifest.phase})
        return [self._set("deadline", key, manifest.deadline_s), report]

    def newest(self, job_id: bytes) -> tuple[int, ...]:
        """(round, attempt) of a job's newest round; (-1, -1) if it has none."""
        return max((key[1:] for key in self.by_key if key[0] == job_id), default=(-1, -1))

    def drop_job(self, job_id: bytes) -> list[fx.Effect]:
        """End and forget every round of a job."""
        out: list[fx.Effect] = []
        for key in [k for k in self.by_key if k[0] == job_id]:
            out += self.drop(Exchanged(*key))
            del self.by_key[key]
            self._parts.memory.delivered.discard(key)
        return out

    def drop(self, at: Exchanged) -> list[fx.Effect]:
        """End a round: its uploads and its batch are of no use any more."""
        key = key_of(at)
        self._parts.memory.batches.pop(key, None)
        for device, fetch in list(self.arriving.items()):
            if isinstance(fetch.header, Upload) and fetch.header.at == at:
                del self.arriving[device]
        collection = self.by_key.get(key)
        if collection:
            self._parts.memory.delivered.add(key)  # so that it stays closed after a restart
            collection.forget_ciphertext()
            collection.step("dropped")
        timers = [self._cancel(what, key) for what in _TIMERS]
        return [fx.Store(RoundDropped(at)), *timers]

    # --- uploads ---

    def offer(self, device: str, offer: Offer) -> list[fx.Effect]:
        """A device offers its upload, perhaps with the whole blob inside."""
        check(offer.header, device, self._parts.registry.verify_key(device), HEADER)
        header = decode_header(offer.header)
        if not isinstance(header, Upload):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        collection = self.by_key.get(key_of(header.at))
        held = collection.uploads.get(device) if collection else None
        if held is not None:
            if held.digest == digest:
                return [fx.Send(fx.Device(device), self._parts.ack(digest, "held"))]
            return self._refuse(device, digest, "duplicate", "duplicate_upload")
        if collection is None or not collection.open or device in collection.declined:
            return self._refuse(device, digest, "closed", "closed_round")
        fetch = self.arriving.get(device)
        try:
            collection.check_form(header)
            if self._spooled(device) + header.blob.size_bytes > self._parts.settings.spool_bytes:
                raise ProtocolError("spool_full")
            if fetch is None or fetch.header != header:
                fetch = Fetch(offer, header, self._parts.settings.upload_bytes)
        except ProtocolError as error:
            return self._refuse(device, digest, "refused", error.reason)
        self.arriving[device] = fetch
        complete = False
        for part in first_data(offer, header.blob):
            complete = fetch.add(part)
        return self._hold(device, fetch) if complete else []

    def _spooled(self, besides: str) -> int:
        """Bytes held, and bytes promised to uploads under way but for the device's own."""
        held = sum(len(h.data) for c in self.by_key.values() for h in c.uploads.values())
        coming = self.arriving.items()
        return held + sum(f.header.blob.size_bytes for d, f in coming if d != besides)

    def _refuse(self, device: str, digest: bytes, status: str, reason: str) -> list[fx.Effect]:
        return [
            fx.Refuse(reason),
            fx.Send(fx.Device(device), self._parts.ack(digest, status, reason)),
        ]

    def part(self, device: str, part: Part) -> list[fx.Effect]:
        """A part of a device's upload."""
        fetch = self.arriving.get(device)
        if fetch is None or fetch.header.blob.digest != part.blob:
            raise ProtocolError("unknown_blob")
        return self._hold(device, fetch) if fetch.add(part) else []

    def _hold(self, device: str, fetch: Fetch) -> list[fx.Effect]:
        """A complete upload: durable first, then acknowledged, then counted."""
        data = fetch.assembly.finish()
        del self.arriving[device]
        header = fetch.header
        if not isinstance(header, Upload):
            return []
        digest = header.blob.digest
        collection = self.by_key.get(key_of(header.at))
        if collection is None or not collection.open or device in collection.declined:
            return self._refuse(device, digest, "closed", "closed_round")
        held = Held(header.groups, digest, data)
        collection.uploads[device] = held
        return [
            fx.Store(UploadKept(header.at, device, held)),
            fx.Send(fx.Device(device), self._parts.ack(digest, "held")),
            self._answered(collection),
            *self._advance(collection),
        ]

    def decline(self, device: str, at: Exchanged) -> list[fx.Effect]:
        """A device says that it will not upload; final."""
        collection = self.by_key.get(key_of(at))
        if collection is None or not collection.open or device in collection.uploads:
            raise ProtocolError("closed_round")
        collection.declined.add(device)
        return [self._answered(collection), *self._advance(collection)]

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
        counts, data = collection.shuffled(self._parts.shuffle)
        blob = describe(data, part_bytes(self._parts.settings.packet_bytes))
        batch = Batch(
            collection.manifest.at,
            len(collection.uploads),
            len(collection.declined),
            counts,
            blob,
        )
        kept = BatchKept(batch.at, self._parts.signer.header(batch), batch, data)
        self._parts.memory.batches[key] = kept
        collection.forget_ciphertext()
        return [fx.Store(kept), *self._hand_over(key)]

    def hand_over_all(self) -> list[fx.Effect]:
        """Offer every batch that the cloud does not hold yet."""
        return [effect for key in self._parts.memory.batches for effect in self._hand_over(key)]

    def _hand_over(self, key: RoundKey, *, push: bool = True) -> list[fx.Effect]:
        """Offer the batch; the cloud asks for parts that did not come with the first offer."""
        kept = self._parts.memory.batches.get(key)
        if kept is None:
            return []
        limit, blob = self._parts.settings, kept.batch.blob
        push = push and blob.size_bytes <= limit.push_bytes
        packets = sends(fx.Cloud(), kept.signed, blob, kept.data, limit.packet_bytes, push=push)
        return [*packets, self._set("handover", key, self._parts.settings.resend_s)]

    def _short(self, key: RoundKey) -> list[fx.Effect]:
        collection = self.by_key[key]
        note = Shortfall(collection.manifest.at, len(collection.uploads), len(collection.declined))
        return [
            fx.Send(fx.Cloud(), self._parts.signer.note(note)),
            self._set("short", key, self._parts.settings.resend_s),
        ]

    def need(self, need: Need) -> list[fx.Effect]:
        """The cloud asks for parts of a batch."""
        for kept in self._parts.memory.batches.values():
            if kept.batch.blob.digest == need.blob:
                return list(answer_need(fx.Cloud(), need, kept.batch.blob, kept.data))
        raise ProtocolError("unknown_blob")

    def delivered(self, ack: Ack) -> list[fx.Effect]:
        """The cloud holds a batch, or has no use for it."""
        memory = self._parts.memory
        for key, kept in list(memory.batches.items()):
            if kept.batch.blob.digest == ack.blob:
                del memory.batches[key]
                memory.delivered.add(key)
                if key in self.by_key:
                    self.by_key[key].step("held_by_cloud")
                return [fx.Store(BatchDelivered(kept.at)), self._cancel("handover", key)]
        return []

    def timer(self, name: str) -> list[fx.Effect]:
        """One of a round's timers ran out; its state decides whether that still means anything."""
        what, _, rest = name.partition(":")
        key = next((k for k in self.by_key if _text(k) == rest), None)
        if key is None:
            return []
        collection = self.by_key[key]
        if what == "handover" and collection.state is State.HANDING_OVER:
            return self._hand_over(key, push=False)
        if what == "short" and collection.state is State.SHORT:
            return self._short(key)
        if what == "deadline" and collection.open:
            return self._advance(collection, deadline=True)
        if what == "grace" and collection.state is State.GRACE:
            return self._advance(collection, grace_over=True)
        return []

    @staticmethod
    def _set(what: str, key: RoundKey, delay_s: float) -> fx.SetTimer:
        return fx.SetTimer(f"{what}:{_text(key)}", delay_s)

    @staticmethod
    def _cancel(what: str, key: RoundKey) -> fx.CancelTimer:
        return fx.CancelTimer(f"{what}:{_text(key)}")


def _text(key: RoundKey) -> str:
    return f"{key[0].hex()}:{key[1]}:{key[2]}"
