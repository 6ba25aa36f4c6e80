"""Uploads to the proxy: one complete, well-formed upload of each device into an open round.

An upload is pulled part by part into its slot of the round's file, and is durable before it is
acknowledged and counted. Requests are bounded by a credit of bytes, granted first come, first
served; a device that does not use its grant joins the slow lane, which has a quarter of the credit.
A large upload may be put into the proxy's store instead."""

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
    """Bytes of an upload at `offset` of its round's file, durable with its `UploadKept`."""

    at: m.RoundId
    offset: int
    data: bytes


@dataclass(frozen=True)
class TakePut:
    """Work: move `name` from the store to `offset` of the round's file. Returns `PutTaken`."""

    at: m.RoundId
    device: str
    blob: m.Blob
    name: str
    offset: int


SLOW_SHARE = 4  # the slow lane has 1/4 of the credit
SLOW_PATIENCE = 6  # and this multiple of the patience


@dataclass
class _Grant:
    left_bytes: int
    active_s: float


class _Lane:
    """Waiting senders and active grants of one speed, each in order."""

    def __init__(self, limit_bytes: int, patience_s: float) -> None:
        self.limit_bytes, self._patience_s = limit_bytes, patience_s
        self.waiting: OrderedDict[str, int] = OrderedDict()
        self.granted: OrderedDict[str, _Grant] = OrderedDict()  # longest inactive first
        self.granted_bytes = 0

    def deal(self, room_bytes: int, now_s: float) -> list[str]:
        """Grant in order up to `room_bytes`, but at least one, however large its request."""
        dealt = []
        while self.waiting:
            device, size_bytes = next(iter(self.waiting.items()))
            if self.granted_bytes and self.granted_bytes + size_bytes > room_bytes:
                break
            del self.waiting[device]
            self.granted[device] = _Grant(size_bytes, now_s)
            self.granted_bytes += size_bytes
            dealt.append(device)
        return dealt

    def leave(self, device: str) -> None:
        self.waiting.pop(device, None)
        grant = self.granted.pop(device, None)
        self.granted_bytes -= grant.left_bytes if grant else 0

    def inactive(self, now_s: float) -> str | None:
        """Return a device whose grant is unused for too long, or None."""
        for device, grant in self.granted.items():
            return device if now_s - grant.active_s >= self._patience_s else None
        return None


class Credit:
    """Byte credit, granted first come, first served; unused grants are revoked."""

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

    def share_bytes(self, device: str) -> int:
        return self._lane(device).limit_bytes

    def holds(self, device: str) -> bool:
        return device in self._lane(device).granted

    def expects(self, device: str) -> bool:
        """Return whether part of this sender's grant is unused."""
        grant = self._lane(device).granted.get(device)
        return grant is not None and grant.left_bytes > 0

    def knows(self, device: str) -> bool:
        return self.holds(device) or device in self._lane(device).waiting

    def want(self, device: str, size_bytes: int) -> None:
        """Join the queue, or keep the place in it, releasing an active grant."""
        lane = self._lane(device)
        if device in lane.granted:
            lane.leave(device)
        lane.waiting[device] = size_bytes

    def arrived(self, device: str, size_bytes: int, now_s: float) -> None:
        """Use part of a grant; a used-up grant does not end."""
        lane = self._lane(device)
        if grant := lane.granted.get(device):
            used_bytes = min(size_bytes, grant.left_bytes)
            lane.granted_bytes -= used_bytes
            grant.left_bytes -= used_bytes
            grant.active_s = now_s
            lane.granted.move_to_end(device)

    def leave(self, device: str) -> None:
        self._lane(device).leave(device)

    def done(self, device: str) -> None:
        self.leave(device)
        self._known_slow.discard(device)

    def deal(self, now_s: float) -> list[str]:
        slow, brisk = self._slow, self._brisk
        dealt = slow.deal(min(slow.limit_bytes, self.limit_bytes - brisk.granted_bytes), now_s)
        # Grants of the slow lane beyond its quarter do not reduce the other lane.
        taken_bytes = min(slow.granted_bytes, slow.limit_bytes)
        return dealt + brisk.deal(self.limit_bytes - taken_bytes, now_s)

    def revoke(self, now_s: float) -> list[str]:
        lost = []
        for lane in (self._brisk, self._slow):
            while (device := lane.inactive(now_s)) is not None:
                lane.leave(device)
                lost.append(device)
        self._known_slow.update(lost)
        return lost

    def _lane(self, device: str) -> _Lane:
        return self._slow if device in self._known_slow else self._brisk


class _UploadArrival:
    """Upload being received; parts count only in order, to hash them incrementally."""

    def __init__(self, signed: m.Envelope, header: m.Upload, seed: MaskSeed | None = None) -> None:
        self.signed, self.header, self.seed = signed, header, seed
        self.restart()

    def restart(self) -> None:
        self._next = self._requested_from = self._requested_to = 0
        self._hash = hashlib.sha256()

    @property
    def complete(self) -> bool:
        return self._next == self.header.blob.parts

    @property
    def intact(self) -> bool:
        return self._hash.digest() == self.header.blob.digest

    def add(self, part: m.BlobPart) -> int | None:
        """Return the offset of the part; None if out of order. Raises ProtocolError `bad_part`."""
        tr.check_part(self.header.blob, part)
        if part.index != self._next:
            return None
        self._next += 1
        self._hash.update(part.data)
        return part.index * self.header.blob.part_bytes

    def ends_request(self, part: m.BlobPart) -> bool:
        """Return whether the request is answered and any of its parts counted."""
        return part.index == self._requested_to - 1 and self._next > self._requested_from

    def next_bytes(self, limit_bytes: int) -> int:
        blob, first = self.header.blob, self._next * self.header.blob.part_bytes
        return min(self._count(limit_bytes) * blob.part_bytes, blob.size_bytes - first)

    def next_need(self, limit_bytes: int) -> m.Need:
        blob = self.header.blob
        self._requested_from = self._next
        self._requested_to = min(self._next + self._count(limit_bytes), blob.parts)
        return m.Need(blob.digest, tuple(range(self._requested_from, self._requested_to)))

    def _count(self, limit_bytes: int) -> int:
        return max(1, min(tr.NEED_LIMIT, limit_bytes // self.header.blob.part_bytes))


class OpenRequest(NamedTuple):
    """Number of a request and of its parts, some of which are missing."""

    number: int
    parts: int


class ProxyUploads:
    """Uploads being received, at most one for each device, with one timer `credit`."""

    def __init__(self, context: pr.ProxyContext, rounds: pr.ProxyRounds) -> None:
        settings = context.settings
        self._context, self._rounds = context, rounds
        rounds.uploads_ended = self._end
        self.credit = Credit(settings.credit_bytes, settings.credit_patience_s)
        self.arriving: dict[str, _UploadArrival] = {}  # by device
        self.grants = tr.PutGrants[_UploadArrival](
            context.signer, settings.out_of_band_bytes, settings.url_valid_s
        )
        self._open_requests: dict[str, OpenRequest] = {}  # of each upload under way, the last
        self._requests = 0
        self._ticking = False

    def open_request(self, device: str) -> OpenRequest | None:
        """Return the device's unanswered request, or None."""
        return self._open_requests.get(device) if self.credit.expects(device) else None

    def _forget(self, device: str) -> None:
        self.arriving.pop(device, None)
        self._open_requests.pop(device, None)
        self.credit.done(device)

    def _end(self, at: m.RoundId) -> None:
        for device in [one for one, arrival in self.arriving.items() if arrival.header.at == at]:
            self._forget(device)
        self.grants.end(at.job_id)

    def offer(self, device: str, offer: m.Offer, now_s: float) -> fx.Effects:
        arrival = self.arriving.get(device)
        if arrival is not None and arrival.signed == offer.header and not offer.data:
            # A repeated offer: it waits for its turn, or for requested parts.
            return [] if self.credit.knows(device) else self._wait(device, arrival, now_s)
        context = self._context
        header = m.verified_header(offer.header, device, context.registry.verify_key(device))
        if not isinstance(header, m.Upload):
            raise ProtocolError("unexpected_header")
        blob, digest, address = header.blob, header.blob.digest, fx.DeviceAddress(device)
        collection = self._rounds.collections.get(header.at)
        held = collection.uploads.get(device) if collection else None
        if held is not None:
            if held.digest in (digest, b""):  # empty: the batch is made
                return [context.ack(address, digest, "held")]
            return self._refuse(device, digest, "duplicate", "duplicate_upload")
        if collection is None or not _takes(collection, device):
            return self._refuse(device, digest, "closed", "closed_round")
        try:
            collection.check_form(header)
            tr.check_claim(blob, context.settings.upload_bytes)
            tr.check_parts_fit(blob, context.settings.packet_bytes)
            seed = None
            if header.seed:
                key = context.memory.round_key(header.at)
                if key is None:
                    raise ProtocolError("bad_seed")
                seed = open_seed(key, collection.manifest, device, header.seed)
        except ProtocolError as error:
            return self._refuse(device, digest, "refused", error.reason)
        self._check_room(collection, device)
        data = tr.whole(blob, offer.data) if offer.data else b""
        arrival, job_id = _UploadArrival(offer.header, header, seed), header.at.job_id
        if offer.out_of_band and self.grants.takes(address, blob, now_s):
            under_way = self.arriving.get(device)
            if under_way is not None and under_way.header.at.job_id == job_id:
                self._forget(device)
            collection.slot(device)  # reserve its room on the disk
            return self.grants.offered(address, job_id, blob, arrival, now_s)
        self.grants.forget(address, job_id)
        if not data:  # replaces the device's earlier upload
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

    def _refuse(self, device: str, digest: bytes, status: str, reason: str) -> fx.Effects:
        outcome = {"closed": "late", "refused": "refused"}.get(status)  # a duplicate does not count
        return [
            fx.Refuse(reason),
            *([pr.answer_report(outcome)] if outcome else []),
            self._context.ack(fx.DeviceAddress(device), digest, status, reason),
        ]

    def part(self, device: str, part: m.BlobPart, now_s: float) -> fx.Effects:
        """Store a part, in order; the first one reserves the upload's slot."""
        arrival = self.arriving.get(device)
        if arrival is None or arrival.header.blob.digest != part.blob:
            raise ProtocolError("unknown_blob")
        # An invalid part also uses the grant.
        self.credit.arrived(device, arrival.header.blob.part_bytes, now_s)
        place = arrival.add(part)
        if place is None:
            return [fx.Refuse("out_of_turn"), *self._continue(device, arrival, part, now_s)]
        collection = self._rounds.collections[arrival.header.at]
        try:
            self._check_room(collection, device)
        except ProtocolError as error:
            self._forget(device)
            return [fx.Refuse(error.reason), *self._deal(now_s)]
        put = self._put(collection, device, place, part.data)
        if not arrival.complete:
            return [put, *self._continue(device, arrival, part, now_s)]
        if not arrival.intact:  # start again at the end of the queue
            arrival.restart()
            self.credit.leave(device)
            return [put, fx.Refuse("bad_digest"), *self._wait(device, arrival, now_s)]
        self._forget(device)
        return [put, *self._hold(collection, device, arrival), *self._deal(now_s)]

    def _continue(
        self, device: str, arrival: _UploadArrival, part: m.BlobPart, now_s: float
    ) -> fx.Effects:
        if arrival.ends_request(part):
            return self._wait(device, arrival, now_s)
        return self._deal(now_s)

    def _wait(self, device: str, arrival: _UploadArrival, now_s: float) -> fx.Effects:
        self.credit.want(device, arrival.next_bytes(self.credit.share_bytes(device)))
        return self._deal(now_s)

    def _deal(self, now_s: float) -> fx.Effects:
        out: fx.Effects = []
        for device in self.credit.deal(now_s):
            need = self.arriving[device].next_need(self.credit.share_bytes(device))
            self._requests += 1
            self._open_requests[device] = OpenRequest(self._requests, len(need.indices))
            out.append(fx.Send(fx.DeviceAddress(device), need))
        if not self._ticking and not self.credit.idle:
            self._ticking = True
            out.append(fx.SetTimer("credit", self._context.settings.credit_patience_s))
        return out

    def tick(self, now_s: float) -> fx.Effects:
        self._ticking = False
        for device in self.credit.revoke(now_s):
            wish_bytes = self.arriving[device].next_bytes(self.credit.share_bytes(device))
            self.credit.want(device, wish_bytes)
        return self._deal(now_s)

    @staticmethod
    def _put(collection: pr.Collection, device: str, place: int, data: bytes) -> fx.Persist:
        offset = collection.slot(device) * collection.slot_bytes + place
        return fx.Persist(UploadPart(collection.manifest.at, offset, data))

    def is_put(self, device: str, put: m.BlobPut) -> fx.Effects:
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

    def taken(self, task: TakePut, result: object) -> fx.Effects:
        """Count an upload taken from the store; an invalid one is offered again."""
        device, address = task.device, fx.DeviceAddress(task.device)
        grant = self.grants.get(address, task.blob.digest)
        collection = self._rounds.collections.get(task.at)
        if collection is None or collection.state is pr.CollectionState.DELIVERED:
            return [fx.Persist(pr.RoundDropped(task.at))]  # its file may exist again
        if grant is None or grant.arrival.header.at != task.at:
            return []
        self.grants.forget(address, task.at.job_id)
        if not isinstance(result, tr.PutTaken):
            return [fx.Refuse(f"beside_{tr.why_not(result)}")]
        if not _takes(collection, device) or device in collection.uploads:
            return self._refuse(device, task.blob.digest, "closed", "closed_round")
        return self._hold(collection, device, grant.arrival)

    def _hold(self, collection: pr.Collection, device: str, arrival: _UploadArrival) -> fx.Effects:
        """Store a complete upload, then acknowledge it, then count it."""
        slot, header = collection.slots[device], arrival.header
        held = pr.HeldUpload(header.groups, header.blob.digest, slot, arrival.seed)
        collection.uploads[device], state = held, header.encrypted_state
        collection.answered(device)
        self._rounds.attendance.answered(device)
        answered = self._context.memory.answered
        if header.number > answered.get(device, header.number):
            answered[device] = header.number
        return [
            fx.Persist(pr.UploadKept(header.at, device, held, header.number, state)),
            self._context.ack(fx.DeviceAddress(device), held.digest, "held"),
            _counts(collection),
            *self._rounds.stream(collection, [(len(collection.uploads) - 1, held)]),
            *self._rounds.advance(collection),
        ]

    def decline(self, device: str, decline: m.Decline, now_s: float) -> fx.Effects:
        """Record that a device will not upload; final."""
        collection = self._rounds.collections.get(decline.at)
        if collection is None or not collection.open or device in collection.uploads:
            raise ProtocolError("closed_round")
        collection.declined[device] = decline.cause
        collection.answered(device)
        self._rounds.attendance.answered(device)
        self._forget(device)
        more = self._rounds.advance(collection)
        cause = decline.cause if decline.cause in m.DECLINE_CAUSES else "declined"
        return [pr.answer_report(cause), _counts(collection), *more, *self._deal(now_s)]

    def connected(self, device: str, now_s: float) -> fx.Effects:
        """Await the device; with cover traffic it answers every open round."""
        attendance = self._rounds.attendance
        attendance.connected(device)
        for collection in self._rounds.collections.values():
            collection.connected(device)
            if attendance.waits_for(device):
                collection.stalled.discard(device)
            else:
                collection.stalled.add(device)
        # The last request may have been lost with the link.
        arrival = self.arriving.get(device)
        return self._wait(device, arrival, now_s) if arrival else []

    def disconnected(self, device: str) -> fx.Effects:
        out: fx.Effects = []
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
