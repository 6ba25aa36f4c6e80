"""The proxy's rounds: open one, see when it is over, have it shuffled, hand it over."""

from __future__ import annotations

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.collection import Collection, State
from edgeveil.protocol.messages import Ack, Batch, Blob, Exchanged, Manifest, Need, Shortfall
from edgeveil.protocol.proxy_arrivals import Arrivals
from edgeveil.protocol.proxy_tasks import (
    BatchDelivered,
    BatchKept,
    ProxyParts,
    RoundDropped,
    RoundKey,
    Shuffled,
    ShuffleRound,
    UploadsDropped,
    key_of,
)
from edgeveil.protocol.transfer import answer_need, part_bytes, sends

_TIMERS = ("deadline", "grace", "shuffle", "handover", "short")


class Rounds:
    """All rounds that the proxy knows, newest of each job."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self.by_key: dict[RoundKey, Collection] = {}
        settings = parts.settings
        self.arrivals = Arrivals(settings.credit_bytes, settings.credit_patience_s)
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
            collection = self.by_key[key_of(upload.at)]
            collection.restore(upload.device, upload.held)
            if upload.held.slot < 0 and collection.open:  # no batch was made of it
                collection.state = State.SHORT
        self._parts.memory.uploads.clear()
        for collection in self.by_key.values():
            if not collection.open:
                collection.forget_ciphertext()

    def _collection(self, manifest: Manifest) -> Collection:
        settings = self._parts.settings
        floor = max(manifest.min_batch, settings.min_batch_floor, 1)
        return Collection(manifest, floor, settings.cover_window_s > 0)

    @property
    def spooled_bytes(self) -> int:
        """Disk taken by uploads and batches, or promised to uploads under way."""
        uploads = sum(collection.spooled_bytes for collection in self.by_key.values())
        return uploads + sum(len(kept.data) for kept in self._parts.memory.batches.values())

    @property
    def open(self) -> list[RoundKey]:
        """Rounds that take uploads."""
        return [key for key, collection in self.by_key.items() if collection.open]

    def resume(self) -> list[fx.Effect]:
        """Timers of rounds that were open when the process ended, and what was due then."""
        out: list[fx.Effect] = []
        for key, collection in self.by_key.items():
            if collection.open:
                out.append(self._set("deadline", key, collection.manifest.deadline_s))
                out += self.advance(collection)
        return out + self.report_short()

    def begin(self, manifest: Manifest) -> list[fx.Effect]:
        """Open a round for uploads."""
        key = key_of(manifest.at)
        collection = self.by_key[key] = self._collection(manifest)
        if collection.cover and self._parts.all_came:
            self._wait_for_all(collection)
        report = fx.Report("round_open", {"round": manifest.at.round, "phase": manifest.phase})
        asked = self._parts.cover(fx.AllDevices())
        return [self._set("deadline", key, manifest.deadline_s), report, *asked]

    def all_came(self) -> list[fx.Effect]:
        """It is known who is there: with cover traffic, whom to wait for."""
        out: list[fx.Effect] = []
        for collection in self.by_key.values():
            if collection.cover and collection.open and collection.pending is None:
                self._wait_for_all(collection)
                out += self.advance(collection)
        return out

    def _wait_for_all(self, collection: Collection) -> None:
        collection.pending = set()
        for device in self._parts.online:
            collection.came(device)

    def fits(self, manifest: Manifest) -> bool:
        """Whether the spool can take an upload of each who is there, where all will send one."""
        collection, settings = self._collection(manifest), self._parts.settings
        promised_bytes = len(self._parts.online) * collection.slot_bytes
        return not collection.cover or promised_bytes <= settings.spool_bytes

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
        collection = self.by_key.get(key)
        if collection:
            self.arrivals.end(collection.manifest.at)
            self._parts.memory.delivered.add(key)  # so that it stays closed after a restart
            collection.forget_ciphertext()
            collection.step("dropped")
        timers = [self._cancel(what, key) for what in _TIMERS]
        return [fx.Store(RoundDropped(at)), *timers]

    # --- closing a round ---

    def advance(self, collection: Collection, **why: bool) -> list[fx.Effect]:
        """What follows from the answers so far, or from a timer."""
        verdict = collection.verdict(**why)
        if verdict is None:
            return []
        collection.step(verdict)
        key = key_of(collection.manifest.at)
        if collection.state is State.GRACE:
            # With cover traffic the moment is chance: nobody is late before the window is over.
            grace_s = collection.manifest.grace_s + self._parts.settings.cover_window_s
            return [self._set("grace", key, grace_s)]
        self.arrivals.end(collection.manifest.at)
        if collection.state is not State.SHORT:
            return [self._shuffle(collection)]
        collection.forget_ciphertext()  # the cloud can only begin anew
        return [fx.Store(UploadsDropped(collection.manifest.at)), *self._short(key)]

    @staticmethod
    def _shuffle(collection: Collection) -> fx.Effect:
        uploads = tuple((held.slot, held.groups) for held in collection.uploads.values())
        task = ShuffleRound(
            collection.manifest.at,
            collection.segment_bytes,
            collection.slot_bytes,
            collection.floor,
            uploads,
            keep_order=not collection.manifest.shuffled,
        )
        return fx.Work(task)

    def shuffled(self, task: ShuffleRound, result: object) -> list[fx.Effect]:
        """The batch is on the disk: sign it, forget whose uploads it came from, hand it over."""
        key = key_of(task.at)
        collection = self.by_key.get(key)
        if collection is None or collection.state is not State.SHUFFLING:
            # Its round went meanwhile, and this file was perhaps not there yet to be dropped.
            return [] if key in self._parts.memory.batches else [fx.Store(RoundDropped(task.at))]
        if not isinstance(result, Shuffled):  # perhaps the disk is full: try until it is not
            failed = fx.Report("shuffle_failed", {"round": task.at.round})
            return [failed, self._set("shuffle", key, self._parts.settings.resend_s)]
        blob = Blob(result.digest, len(result.data), part_bytes(self._parts.settings.packet_bytes))
        answers = (len(collection.uploads), len(collection.declined))
        batch = Batch(task.at, *answers, result.counts, blob)
        kept = BatchKept(batch.at, self._parts.signer.header(batch), batch, result.data)
        collection.step("shuffled")
        collection.forget_ciphertext()
        self._parts.memory.batches[key] = kept
        return [fx.Store(kept), *self._hand_over(key)]

    def report_all(self) -> list[fx.Effect]:
        """Offer every batch that the cloud does not hold yet, and tell every shortfall."""
        batches = [effect for key in self._parts.memory.batches for effect in self._hand_over(key)]
        return batches + self.report_short()

    def report_short(self) -> list[fx.Effect]:
        """Tell every shortfall."""
        short = [key for key, known in self.by_key.items() if known.state is State.SHORT]
        return [effect for key in short for effect in self._short(key)]

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
        """Tell it, and again later: the longer the cloud has no use for it, the later."""
        collection, settings = self.by_key[key], self._parts.settings
        wait_s = min(settings.resend_s * 2.0 ** min(collection.told, 16), settings.waits_cap_s)
        collection.told += 1
        note = Shortfall(collection.manifest.at, len(collection.uploads), len(collection.declined))
        return [
            fx.Send(fx.Cloud(), self._parts.signer.note(note)),
            self._set("short", key, wait_s),
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
        key = _key(rest)
        collection = self.by_key.get(key)
        if collection is None:
            return []
        if what == "shuffle" and collection.state is State.SHUFFLING:
            return [self._shuffle(collection)]
        if what == "handover" and collection.state is State.HANDING_OVER:
            return self._hand_over(key, push=False)
        if what == "short" and collection.state is State.SHORT:
            return self._short(key)
        if what == "deadline" and collection.open:
            return self.advance(collection, deadline=True)
        if what == "grace" and collection.state is State.GRACE:
            return self.advance(collection, grace_over=True)
        return []

    @staticmethod
    def _set(what: str, key: RoundKey, delay_s: float) -> fx.SetTimer:
        return fx.SetTimer(f"{what}:{_text(key)}", delay_s)

    @staticmethod
    def _cancel(what: str, key: RoundKey) -> fx.CancelTimer:
        return fx.CancelTimer(f"{what}:{_text(key)}")


def _text(key: RoundKey) -> str:
    return f"{key[0].hex()}:{key[1]}:{key[2]}"


def _key(text: str) -> RoundKey:
    """The round that `_text` gave this name."""
    job, number, attempt = text.split(":")
    return bytes.fromhex(job), int(number), int(attempt)
