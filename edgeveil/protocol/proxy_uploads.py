"""Uploads to the proxy: one complete, well-formed upload of each device into an open round.

Theory of operation. An upload is pulled part by part to its slot of the round's file, and is
durable before it is acknowledged and counted. What the proxy asks for is bounded by a credit of
bytes, dealt first come, first served; a device that lets its turn pass waits among the slow, who
together hold a quarter of the credit. A large upload may be put into the proxy's store instead."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from edgeveil.crypto.keys import MaskSeed
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.sealed import open_seed


@dataclass(frozen=True)
class UploadPart:
    """Bytes of an upload at `offset` of its round's file; durable with its `UploadKept`."""

    at: m.RoundId
    offset: int
    data: bytes


@dataclass(frozen=True)
class TakePut:
    """Work: move `name` from the store to `offset` of the round's file. Result `PutTaken`."""

    at: m.RoundId
    device: str
    blob: m.Blob
    name: str
    offset: int


SLOW_SHARE = 4  # the slow together hold at most one part in so many
SLOW_PATIENCE = 6  # and are waited for so many times as long


@dataclass
class _Grant:
    left_bytes: int
    heard_s: float


class _Lane:
    """Waiting senders and running grants of one pace, each in the order of their turn."""

    def __init__(self, limit_bytes: int, patience_s: float) -> None:
        self.limit_bytes, self._patience_s = limit_bytes, patience_s
        self.waiting: OrderedDict[str, int] = OrderedDict()
        self.granted: OrderedDict[str, _Grant] = OrderedDict()  # longest unheard first
        self.granted_bytes = 0

    def deal(self, room_bytes: int, now_s: float) -> list[str]:
        """Grant in turn until `room_bytes` are granted; one always, however large its wish."""
        dealt = []
        while self.waiting:
            who, size_bytes = next(iter(self.waiting.items()))
            if self.granted_bytes and self.granted_bytes + size_bytes > room_bytes:
                break
            del self.waiting[who]
            self.granted[who] = _Grant(size_bytes, now_s)
            self.granted_bytes += size_bytes
            dealt.append(who)
        return dealt

    def leave(self, who: str) -> None:
        self.waiting.pop(who, None)
        grant = self.granted.pop(who, None)
        self.granted_bytes -= grant.left_bytes if grant else 0

    def unheard(self, now_s: float) -> str | None:
        """Who has kept a grant for too long without sending anything, or None."""
        for who, grant in self.granted.items():
            return who if now_s - grant.heard_s >= self._patience_s else None
        return None


class Credit:
    """Deals out `limit_bytes` first come, first served. A grant without progress for `patience_s`
    is taken back; its holder then waits in a lane that never has more than a quarter of the
    credit."""

    def __init__(self, limit_bytes: int, patience_s: float) -> None:
        self.limit_bytes = limit_bytes
        self._brisk = _Lane(limit_bytes, patience_s)
        self._slow = _Lane(limit_bytes // SLOW_SHARE, patience_s * SLOW_PATIENCE)
        self._known_slow: set[str] = set()

    @property
    def granted_bytes(self) -> int:
        return self._brisk.granted_bytes + self._slow.granted_bytes

    @property
    def idle(self) -> bool:
        return not self._brisk.granted and not self._slow.granted

    def share_bytes(self, who: str) -> int:
        return self._lane(who).limit_bytes

    def holds(self, who: str) -> bool:
        return who in self._lane(who).granted

    def expects(self, who: str) -> bool:
        """Whether some of this sender's grant has not come yet."""
        grant = self._lane(who).granted.get(who)
        return grant is not None and grant.left_bytes > 0

    def knows(self, who: str) -> bool:
        return self.holds(who) or who in self._lane(who).waiting

    def want(self, who: str, size_bytes: int) -> None:
        """Join the queue, or keep one's place in it; gives back a grant that still runs."""
        lane = self._lane(who)
        if who in lane.granted:
            lane.leave(who)
        lane.waiting[who] = size_bytes

    def arrived(self, who: str, size_bytes: int, now_s: float) -> None:
        """So much of a grant has come. What uses a grant up does not end it."""
        lane = self._lane(who)
        if grant := lane.granted.get(who):
            used_bytes = min(size_bytes, grant.left_bytes)
            lane.granted_bytes -= used_bytes
            grant.left_bytes -= used_bytes
            grant.heard_s = now_s
            lane.granted.move_to_end(who)

    def leave(self, who: str) -> None:
        self._lane(who).leave(who)

    def done(self, who: str) -> None:
        self.leave(who)
        self._known_slow.discard(who)

    def deal(self, now_s: float) -> list[str]:
        slow, brisk = self._slow, self._brisk
        dealt = slow.deal(min(slow.limit_bytes, self.limit_bytes - brisk.granted_bytes), now_s)
        # What the slow hold beyond their quarter is not at the others' cost.
        taken_bytes = min(slow.granted_bytes, slow.limit_bytes)
        return dealt + brisk.deal(self.limit_bytes - taken_bytes, now_s)

    def take_back(self, now_s: float) -> list[str]:
        lost = []
        for lane in (self._brisk, self._slow):
            while (who := lane.unheard(now_s)) is not None:
                lane.leave(who)
                lost.append(who)
        self._known_slow.update(lost)
        return lost

    def _lane(self, who: str) -> _Lane:
        return self._slow if who in self._known_slow else self._brisk


class UploadArrival:
    """One upload under way. Parts count in order alone, so that the digest grows with them."""

    def __init__(self, signed: m.Envelope, header: m.Upload, seed: MaskSeed | None = None) -> None:
        self.signed, self.header, self.seed = signed, header, seed
        self.restart()

    def restart(self) -> None:
        self._next = self._asked_from = self._asked_to = 0
        self._hash = hashlib.sha256()

    @property
    def complete(self) -> bool:
        return self._next == self.header.blob.parts

    @property
    def intact(self) -> bool:
        return self._hash.digest() == self.header.blob.digest

    def add(self, part: m.BlobPart) -> int | None:
        """The place of the bytes; None out of turn. Raises ProtocolError `bad_part`."""
        tr.check_part(self.header.blob, part)
        if part.index != self._next:
            return None
        self._next += 1
        self._hash.update(part.data)
        return part.index * self.header.blob.part_bytes

    def asks_on(self, part: m.BlobPart) -> bool:
        """Whether the request is through and any of its parts counted."""
        return part.index == self._asked_to - 1 and self._next > self._asked_from

    def next_bytes(self, limit_bytes: int) -> int:
        blob, first = self.header.blob, self._next * self.header.blob.part_bytes
        return min(self._count(limit_bytes) * blob.part_bytes, blob.size_bytes - first)

    def next_need(self, limit_bytes: int) -> m.Need:
        blob = self.header.blob
        self._asked_from = self._next
        self._asked_to = min(self._next + self._count(limit_bytes), blob.parts)
        return m.Need(blob.digest, tuple(range(self._asked_from, self._asked_to)))

    def _count(self, limit_bytes: int) -> int:
        return max(1, min(tr.NEED_LIMIT, limit_bytes // self.header.blob.part_bytes))


class Asked(NamedTuple):
    """The parts that a device was asked for and has not all sent; `number` of the request."""

    number: int
    parts: int


class ProxyUploads:
    """At most one upload of each device under way. One timer, `credit`."""

    def __init__(self, context: pr.ProxyContext, rounds: pr.ProxyRounds) -> None:
        settings = context.settings
        self._context, self._rounds = context, rounds
        rounds.uploads_ended = self._end
        self.credit = Credit(settings.credit_bytes, settings.credit_patience_s)
        self.arriving: dict[str, UploadArrival] = {}  # by device
        self.grants = tr.PutGrants[UploadArrival](
            context.signer, settings.beside_bytes, settings.beside_s
        )
        self._asked: dict[str, Asked] = {}  # the last request of each upload under way
        self._requests = 0
        self._ticking = False

    def asked(self, device: str) -> Asked | None:
        """What the device was asked for; None where all of it has come, or nothing was."""
        return self._asked.get(device) if self.credit.expects(device) else None

    def _forget(self, device: str) -> None:
        self.arriving.pop(device, None)
        self._asked.pop(device, None)
        self.credit.done(device)

    def _end(self, at: m.RoundId) -> None:
        for device in [one for one, arrival in self.arriving.items() if arrival.header.at == at]:
            self._forget(device)
        self.grants.end(at.job_id)

    def offer(self, device: str, offer: m.Offer, now_s: float) -> list[fx.Effect]:
        arrival = self.arriving.get(device)
        if arrival is not None and arrival.signed == offer.header and not offer.data:
            # The same again: it waits for its turn, or for what was asked for.
            return [] if self.credit.knows(device) else self._wait(device, arrival, now_s)
        context = self._context
        header = m.verified_header(offer.header, device, context.registry.verify_key(device))
        if not isinstance(header, m.Upload):
            raise ProtocolError("unexpected_header")
        blob, digest, who = header.blob, header.blob.digest, fx.DeviceAddress(device)
        collection = self._rounds.collections.get(header.at)
        held = collection.uploads.get(device) if collection else None
        if held is not None:
            if held.digest in (digest, b""):  # after the batch it is enough that it answered
                return [context.ack(who, digest, "held")]
            return self._refuse(device, digest, "duplicate", "duplicate_upload")
        if collection is None or not _takes(collection, device):
            return self._refuse(device, digest, "closed", "closed_round")
        try:
            collection.check_form(header)
            tr.check_claim(blob, context.settings.upload_bytes)
            tr.check_parts_fit(blob, context.settings.packet_bytes)
            seed = None
            if header.seed:  # one that does not open is refused at once
                key = context.memory.round_key(header.at)
                if key is None:
                    raise ProtocolError("bad_seed")
                seed = open_seed(key, collection.manifest, device, header.seed)
        except ProtocolError as error:
            return self._refuse(device, digest, "refused", error.reason)
        self._check_room(collection, device)
        data = tr.whole(blob, offer.data) if offer.data else b""
        arrival, job_id = UploadArrival(offer.header, header, seed), header.at.job_id
        if offer.beside and self.grants.takes(who, blob, now_s):
            under_way = self.arriving.get(device)
            if under_way is not None and under_way.header.at.job_id == job_id:
                self._forget(device)
            collection.slot(device)  # its room on the disk is promised
            return self.grants.offered(who, job_id, blob, arrival, now_s)
        self.grants.forget(who, job_id)
        if not data:  # a device's earlier upload is given up
            self.credit.leave(device)
            self.arriving[device] = arrival
            return self._wait(device, arrival, now_s)
        self._forget(device)
        put = self._put(collection, device, 0, data)
        return [put, *self._hold(collection, device, arrival), *self._deal(now_s)]

    def _check_room(self, collection: pr.Collection, device: str) -> None:
        """Raise ProtocolError `spool_full`; the device offers again later."""
        more_bytes = 0 if device in collection.slots else collection.slot_bytes
        if self._rounds.spooled_bytes + more_bytes > self._context.settings.spool_bytes:
            raise ProtocolError("spool_full")

    def _refuse(self, device: str, digest: bytes, status: str, reason: str) -> list[fx.Effect]:
        outcome = {"closed": "late", "refused": "refused"}.get(status)  # a duplicate is no answer
        return [
            fx.Refuse(reason),
            *([pr.answer_report(outcome)] if outcome else []),
            self._context.ack(fx.DeviceAddress(device), digest, status, reason),
        ]

    def part(self, device: str, part: m.BlobPart, now_s: float) -> list[fx.Effect]:
        """A part, in order. The first takes the upload's room on the disk."""
        arrival = self.arriving.get(device)
        if arrival is None or arrival.header.blob.digest != part.blob:
            raise ProtocolError("unknown_blob")
        # A wrong one too was one of those asked for.
        self.credit.arrived(device, arrival.header.blob.part_bytes, now_s)
        place = arrival.add(part)
        if place is None:
            return [fx.Refuse("out_of_turn"), *self._go_on(device, arrival, part, now_s)]
        collection = self._rounds.collections[arrival.header.at]
        try:
            self._check_room(collection, device)
        except ProtocolError as error:
            self._forget(device)
            return [fx.Refuse(error.reason), *self._deal(now_s)]
        put = self._put(collection, device, place, part.data)
        if not arrival.complete:
            return [put, *self._go_on(device, arrival, part, now_s)]
        if not arrival.intact:  # from the beginning, after the others
            arrival.restart()
            self.credit.leave(device)
            return [put, fx.Refuse("bad_digest"), *self._wait(device, arrival, now_s)]
        self._forget(device)
        return [put, *self._hold(collection, device, arrival), *self._deal(now_s)]

    def _go_on(
        self, device: str, arrival: UploadArrival, part: m.BlobPart, now_s: float
    ) -> list[fx.Effect]:
        """Ask on when the parts asked for are through."""
        if arrival.asks_on(part):
            return self._wait(device, arrival, now_s)
        return self._deal(now_s)

    def _wait(self, device: str, arrival: UploadArrival, now_s: float) -> list[fx.Effect]:
        self.credit.want(device, arrival.next_bytes(self.credit.share_bytes(device)))
        return self._deal(now_s)

    def _deal(self, now_s: float) -> list[fx.Effect]:
        out: list[fx.Effect] = []
        for device in self.credit.deal(now_s):
            need = self.arriving[device].next_need(self.credit.share_bytes(device))
            self._requests += 1
            self._asked[device] = Asked(self._requests, len(need.indices))
            out.append(fx.Send(fx.DeviceAddress(device), need))
        if not self._ticking and not self.credit.idle:
            self._ticking = True
            out.append(fx.SetTimer("credit", self._context.settings.credit_patience_s))
        return out

    def tick(self, now_s: float) -> list[fx.Effect]:
        self._ticking = False
        for device in self.credit.take_back(now_s):
            wish_bytes = self.arriving[device].next_bytes(self.credit.share_bytes(device))
            self.credit.want(device, wish_bytes)
        return self._deal(now_s)

    @staticmethod
    def _put(collection: pr.Collection, device: str, place: int, data: bytes) -> fx.Persist:
        offset = collection.slot(device) * collection.slot_bytes + place
        return fx.Persist(UploadPart(collection.manifest.at, offset, data))

    def is_put(self, device: str, put: m.BlobPut) -> list[fx.Effect]:
        """A device says that its upload lies in the store: take it from there."""
        grant = self.grants.get(fx.DeviceAddress(device), put.blob)
        if grant is None or grant.taking or not grant.name:
            return []
        at = grant.arrival.header.at
        collection = self._rounds.collections.get(at)
        if collection is None or not _takes(collection, device):
            return self._refuse(device, put.blob, "closed", "closed_round")
        grant.taking = True
        offset = collection.slot(device) * collection.slot_bytes
        return [fx.Work(TakePut(at, device, grant.blob, grant.name, offset))]

    def taken(self, task: TakePut, result: object) -> list[fx.Effect]:
        """An upload is in its place, or what was put there was not it: it is offered again."""
        device, who = task.device, fx.DeviceAddress(task.device)
        grant = self.grants.get(who, task.blob.digest)
        collection = self._rounds.collections.get(task.at)
        if collection is None or collection.state is pr.CollectionState.DELIVERED:
            return [fx.Persist(pr.RoundDropped(task.at))]  # its file was perhaps made anew
        if grant is None or grant.arrival.header.at != task.at:
            return []
        self.grants.forget(who, task.at.job_id)
        if not isinstance(result, tr.PutTaken):
            return [fx.Refuse(f"beside_{tr.why_not(result)}")]
        if not _takes(collection, device) or device in collection.uploads:
            return self._refuse(device, task.blob.digest, "closed", "closed_round")
        return self._hold(collection, device, grant.arrival)

    def _hold(
        self, collection: pr.Collection, device: str, arrival: UploadArrival
    ) -> list[fx.Effect]:
        """A complete upload: durable first, then acknowledged, then counted."""
        slot, header = collection.slots[device], arrival.header
        held = pr.HeldUpload(header.groups, header.blob.digest, slot, arrival.seed)
        collection.uploads[device] = held
        collection.answered(device)
        self._rounds.attendance.answered(device)
        answered = self._context.memory.answered
        if header.number > answered.get(device, header.number):
            answered[device] = header.number
        return [
            fx.Persist(pr.UploadKept(header.at, device, held, header.number, header.deposit)),
            self._context.ack(fx.DeviceAddress(device), held.digest, "held"),
            _counts(collection),
            *self._rounds.stream(collection, [(len(collection.uploads) - 1, held)]),
            *self._rounds.advance(collection),
        ]

    def decline(self, device: str, decline: m.Decline, now_s: float) -> list[fx.Effect]:
        """A device says that it will not upload; final."""
        collection = self._rounds.collections.get(decline.at)
        if collection is None or not collection.open or device in collection.uploads:
            raise ProtocolError("closed_round")
        collection.declined[device] = decline.cause
        collection.answered(device)
        self._rounds.attendance.answered(device)
        self._forget(device)
        more = self._rounds.advance(collection)
        said = pr.answer_report(decline.cause if decline.cause in m.DECLINE_CAUSES else "declined")
        return [said, _counts(collection), *more, *self._deal(now_s)]

    def came(self, device: str, now_s: float) -> list[fx.Effect]:
        """A device is there (again): with cover traffic it will answer every open round."""
        attendance = self._rounds.attendance
        attendance.came(device)
        for collection in self._rounds.collections.values():
            collection.came(device)
            if attendance.waits_for(device):
                collection.aside.discard(device)
            else:
                collection.aside.add(device)
        # What the device was asked for may have been lost with its link: ask again.
        arrival = self.arriving.get(device)
        return self._wait(device, arrival, now_s) if arrival else []

    def left(self, device: str) -> list[fx.Effect]:
        """A device is gone: with cover traffic nobody waits for it."""
        out: list[fx.Effect] = []
        for collection in self._rounds.collections.values():
            if collection.cover:
                collection.answered(device)
                out += self._rounds.advance(collection)
        return out


def _takes(collection: pr.Collection, device: str) -> bool:
    return collection.open and device not in collection.declined


def _counts(collection: pr.Collection) -> fx.Effect:
    uploads, declined, causes = collection.counts
    counts = {
        "round": collection.manifest.at.round,
        "uploads": uploads,
        "declined": declined,
        "causes": dict(zip(m.DECLINE_CAUSES, causes, strict=False)),
        "selected": collection.manifest.selected,
    }
    return fx.Report("answered", counts, collection.manifest.at)
