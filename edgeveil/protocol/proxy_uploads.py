"""What devices answer in a round: one complete, well-formed upload each, or a refusal."""

from __future__ import annotations

from edgeveil.crypto.labels import HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.blob import check_claim, whole
from edgeveil.protocol.codec import decode_header
from edgeveil.protocol.collection import Collection, Held
from edgeveil.protocol.envelope import check
from edgeveil.protocol.messages import Exchanged, Offer, Part, Upload
from edgeveil.protocol.proxy_arrivals import Arrival
from edgeveil.protocol.proxy_rounds import Rounds
from edgeveil.protocol.proxy_tasks import ProxyParts, UploadKept, UploadPart, key_of
from edgeveil.protocol.transfer import check_parts_fit


class Uploads:
    """Takes uploads into the open rounds of `rounds`."""

    def __init__(self, parts: ProxyParts, rounds: Rounds) -> None:
        self._parts, self._rounds = parts, rounds

    def offer(self, device: str, offer: Offer, now_s: float) -> list[fx.Effect]:
        """A device offers its upload, perhaps with the whole blob inside."""
        arrival = self._rounds.arrivals.get(device)
        if arrival is not None and arrival.signed == offer.header and not offer.data:
            return self._rounds.arrivals.offered(device, arrival, now_s)
        check(offer.header, device, self._parts.registry.verify_key(device), HEADER)
        header = decode_header(offer.header)
        if not isinstance(header, Upload):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        collection = self._rounds.by_key.get(key_of(header.at))
        held = collection.uploads.get(device) if collection else None
        if held is not None:
            if held.digest in (digest, b""):  # after the batch it is enough that it answered
                return [fx.Send(fx.Device(device), self._parts.ack(digest, "held"))]
            return self._refuse(device, digest, "duplicate", "duplicate_upload")
        if collection is None or not self._takes(collection, device):
            return self._refuse(device, digest, "closed", "closed_round")
        try:
            self._check(collection, device, header)
        except ProtocolError as error:
            return self._refuse(device, digest, "refused", error.reason)
        self._check_room(collection, device)
        return self._begin(collection, device, offer, header, now_s)

    def _check(self, collection: Collection, device: str, header: Upload) -> None:
        collection.check_form(header)
        settings = self._parts.settings
        check_claim(header.blob, settings.upload_bytes)
        check_parts_fit(header.blob, settings.packet_bytes)

    def _check_room(self, collection: Collection, device: str) -> None:
        """Raise ProtocolError `spool_full`. Nothing is said to the device: it offers again later,
        when an earlier round's batch may be gone.
        """
        more_bytes = 0 if device in collection.slots else collection.slot_bytes
        if self._rounds.spooled_bytes + more_bytes > self._parts.settings.spool_bytes:
            raise ProtocolError("spool_full")

    def _begin(
        self, collection: Collection, device: str, offer: Offer, header: Upload, now_s: float
    ) -> list[fx.Effect]:
        data = whole(header.blob, offer.data) if offer.data else b""
        arrivals = self._rounds.arrivals
        if not data:
            return arrivals.begin(device, Arrival(offer.header, header), now_s)
        arrivals.forget(device)
        put = self._put(collection, device, 0, data)
        return [put, *self._hold(collection, device, header), *arrivals.deal(now_s)]

    @staticmethod
    def _takes(collection: Collection, device: str) -> bool:
        return collection.open and device not in collection.declined

    def _refuse(self, device: str, digest: bytes, status: str, reason: str) -> list[fx.Effect]:
        return [
            fx.Refuse(reason),
            fx.Send(fx.Device(device), self._parts.ack(digest, status, reason)),
        ]

    def part(self, device: str, part: Part, now_s: float) -> list[fx.Effect]:
        """A part of a device's upload; whatever it was asked for, only the next one counts.

        The first one takes the upload's room on the disk: an offer alone takes none.
        """
        arrivals = self._rounds.arrivals
        arrival = arrivals.get(device)
        if arrival is None or arrival.header.blob.digest != part.blob:
            raise ProtocolError("unknown_blob")
        place = arrivals.take(device, arrival, part, now_s)
        if place is None:
            return arrivals.came(device, arrival, part, now_s)
        collection = self._rounds.by_key[key_of(arrival.header.at)]
        try:
            self._check_room(collection, device)
        except ProtocolError as error:
            arrivals.forget(device)
            return [fx.Refuse(error.reason), *arrivals.deal(now_s)]
        put = self._put(collection, device, place, part.data)
        if not arrival.complete:
            return [put, *arrivals.came(device, arrival, part, now_s)]
        if not arrival.intact:
            return [put, fx.Refuse("bad_digest"), *arrivals.again(device, arrival, now_s)]
        arrivals.forget(device)
        done = self._hold(collection, device, arrival.header)
        return [put, *done, *arrivals.deal(now_s)]

    @staticmethod
    def _put(collection: Collection, device: str, place: int, data: bytes) -> fx.Store:
        offset = collection.slot(device) * collection.slot_bytes + place
        return fx.Store(UploadPart(collection.manifest.at, offset, data))

    def _hold(self, collection: Collection, device: str, header: Upload) -> list[fx.Effect]:
        """A complete upload: durable first, then acknowledged, then counted."""
        held = Held(header.groups, header.blob.digest, collection.slots[device])
        collection.hold(device, held)
        return [
            fx.Store(UploadKept(header.at, device, held)),
            fx.Send(fx.Device(device), self._parts.ack(held.digest, "held")),
            self._answered(collection),
            *self._rounds.advance(collection),
        ]

    def decline(self, device: str, at: Exchanged, now_s: float) -> list[fx.Effect]:
        """A device says that it will not upload; final."""
        collection = self._rounds.by_key.get(key_of(at))
        if collection is None or not collection.open or device in collection.uploads:
            raise ProtocolError("closed_round")
        collection.decline(device)
        self._rounds.arrivals.forget(device)
        more = self._rounds.advance(collection)
        return [self._answered(collection), *more, *self._rounds.arrivals.deal(now_s)]

    def came(self, device: str, now_s: float) -> list[fx.Effect]:
        """A device is there (again): with cover traffic it will answer every open round."""
        for collection in self._rounds.by_key.values():
            collection.came(device)
        return self._rounds.arrivals.reconnected(device, now_s)

    def left(self, device: str) -> list[fx.Effect]:
        """A device is gone: nobody waits for it."""
        out: list[fx.Effect] = []
        for collection in self._rounds.by_key.values():
            collection.left(device)
            if collection.cover:
                out += self._rounds.advance(collection)
        return out

    @staticmethod
    def _answered(collection: Collection) -> fx.Effect:
        counts = {
            "round": collection.manifest.at.round,
            "uploads": len(collection.uploads),
            "declined": len(collection.declined),
            "selected": collection.manifest.selected,
        }
        return fx.Report("answered", counts)
