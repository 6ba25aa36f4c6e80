"""Blobs: cut into parts that are sent on request, or fetched out of band.

The sender offers a blob and answers requests for parts; the receiver takes parts in any order,
requests missing ones with bounded credit, and trusts only the digest of the whole.

**Out of band.** Large blobs may bypass the broker through an HTTP store of the proxy (for devices)
or of the cloud (for the proxy). Its holder answers a request (`Need`) with `beside` by a URL
(`BlobAt`, `ShownBlobs`), and an offer with `beside` by a URL for PUT (`PutGrants`); the sender
reports completion (`BlobPut`), and the holder moves the blob into its own files by digest. The
store is not trusted. A URL is used only under a prefix of this party's own site file, so that
nobody can make it access other addresses in its network.

**Commit records.** A round's record of marks may be fetched in up to 16 pieces by the first bits of
the marks, so a request reveals a few bits of a mark to the proxy. The proxy cannot compute marks,
but it can count: if more devices request a piece than it has marks, some were not counted.
Therefore a piece has at least as many marks as the job's floor, and the record is not divided if
uploads have several segments: the combination of pieces would single out a device."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, Protocol, TypeVar
from urllib.parse import SplitResult, urlsplit

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m

try:  # zlib's CRC-32, ten times as fast on processors with carry-less multiplication
    from isal.isal_zlib import crc32
except ImportError:  # no wheel for this machine
    from zlib import crc32

NEED_LIMIT = 16  # maximum parts of one request: the receiver's credit
SMALLEST_PART_BYTES = 256  # about the memory overhead of a stored part

H = TypeVar("H", bound=m.Header)


class Data(Protocol):
    """Bytes of a blob in memory (`bytes`) or on disk; only slices are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class Piece:
    """Lazily read window of `size_bytes` at `start` in other data."""

    def __init__(self, data: Data, start: int, size_bytes: int) -> None:
        self._data, self._start, self._size_bytes = data, start, size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def __getitem__(self, part: slice, /) -> bytes:
        begin, end, _ = part.indices(self._size_bytes)
        return self._data[self._start + begin : self._start + max(begin, end)]


def describe(data: bytes | memoryview, part_bytes: int) -> m.Blob:
    return m.Blob(hashlib.sha256(data).digest(), len(data), part_bytes)


def part(blob: m.Blob, data: Data, index: int) -> m.BlobPart:
    """Return part `index` of a blob. Raises ProtocolError `bad_index`."""
    if index >= blob.parts:
        raise ProtocolError("bad_index")
    piece = data[index * blob.part_bytes : (index + 1) * blob.part_bytes]
    return m.BlobPart(blob.digest, index, crc32(piece), piece)


def parts(blob: m.Blob, data: Data) -> Iterator[m.BlobPart]:
    return (part(blob, data, index) for index in range(blob.parts))


def check_claim(blob: m.Blob, limit_bytes: int) -> None:
    """Raise ProtocolError `oversized_blob` or `tiny_parts` for an unacceptable header."""
    if blob.size_bytes > limit_bytes:
        raise ProtocolError("oversized_blob")
    if blob.parts > 1 and blob.part_bytes < SMALLEST_PART_BYTES:
        raise ProtocolError("tiny_parts")


def check_part(blob: m.Blob, message: m.BlobPart) -> None:
    """Raise ProtocolError `bad_part` unless index, size and checksum fit."""
    index = message.index
    if index >= blob.parts:
        raise ProtocolError("bad_part")
    expected = min(blob.part_bytes, blob.size_bytes - index * blob.part_bytes)
    if len(message.data) != expected or crc32(message.data) != message.crc:
        raise ProtocolError("bad_part")


def whole(blob: m.Blob, data: bytes) -> bytes:
    """Return `data` if it is the blob. Raises ProtocolError `bad_digest`."""
    if len(data) != blob.size_bytes or hashlib.sha256(data).digest() != blob.digest:
        raise ProtocolError("bad_digest")
    return data


FRAME_OVERHEAD_BYTES = 512  # version, tags, digests and lengths around a part or an offer's data


def part_bytes(packet_bytes: int) -> int:
    return packet_bytes - FRAME_OVERHEAD_BYTES


def check_parts_fit(blob: m.Blob, packet_bytes: int) -> None:
    """Raise ProtocolError `large_parts` for parts that exceed a packet."""
    if min(blob.part_bytes, blob.size_bytes) > part_bytes(packet_bytes):
        raise ProtocolError("large_parts")


def fits_offer(signed: m.Envelope, data: Data, packet_bytes: int) -> bool:
    return len(signed.payload) + len(data) + FRAME_OVERHEAD_BYTES <= packet_bytes


def sends(
    to: fx.Address,
    signed: m.Envelope,
    blob: m.Blob,
    data: Data,
    packet_bytes: int,
    *,
    push: bool = True,
    out_of_band: bool = False,
) -> fx.Effects:
    """Return the offer, inline if it fits one packet, else with parts if `push`."""
    if fits_offer(signed, data, packet_bytes):
        return [fx.Send(to, m.Offer(signed, data[:]))]
    if out_of_band:
        return [fx.Send(to, m.Offer(signed, out_of_band=True))]
    pieces = parts(blob, data) if push else ()
    return [fx.Send(to, m.Offer(signed)), *(fx.Send(to, piece) for piece in pieces)]


def answer_need(to: fx.Address, need: m.Need, blob: m.Blob, data: Data) -> fx.Effects:
    """Send the requested parts, each once, up to the credit. Raises `bad_index`."""
    return [fx.Send(to, part(blob, data, at)) for at in sorted(set(need.indices))[:NEED_LIMIT]]


class Fetch(Generic[H]):
    """Blob being received: its parts in any order, each once, and requests for missing ones.

    Memory grows with received data, never with a header's claim. At most `credit` parts are
    requested at once; further requests follow when half a limit is free or on a timer without
    progress."""

    def __init__(
        self,
        offer: m.Offer,
        header: H,
        limit_bytes: int,
        *,
        keep: bool = True,  # else the caller of `add` stores the bytes
        credit: int = NEED_LIMIT,
        blob: m.Blob | None = None,
        idle: bool = False,  # request nothing until `wake`
        only: frozenset[int] | None = None,  # ignore other parts and the digest
        out_of_band: bool = False,  # request a URL first
    ) -> None:
        """Initialise a fetch of `blob` (default: the header's). Raises as `check_claim`."""
        self.offer, self.header, self.blob = offer, header, blob or header.blob
        check_claim(self.blob, limit_bytes)
        self._keep, self._credit, self._only = keep, credit, only
        self.idle, self.out_of_band, self.in_transit, self.failures = idle, out_of_band, False, 0
        self.before = b""  # the preceding piece
        self._parts: dict[int, bytes] = {}
        self._whole: bytes | None = None
        self._lowest_missing = 0
        self._requested: set[int] = set()  # requested and not received
        self._next = 0  # all lower parts were requested since the last timer without progress
        self._pulling, self._progress = out_of_band, False
        self.idle_timeouts = 0

    def __contains__(self, index: int) -> bool:
        return self._whole is not None or index in self._parts

    @property
    def complete(self) -> bool:
        wanted = self.blob.parts if self._only is None else len(self._only)
        return self._whole is not None or len(self._parts) == wanted

    def add(self, message: m.BlobPart) -> bool:
        """Store a part; returns whether the blob is complete. Raises `bad_part`."""
        check_part(self.blob, message)
        if self._only is None or message.index in self._only:
            self._parts.setdefault(message.index, message.data if self._keep else b"")
        self._progress, self.idle_timeouts = True, 0
        self.out_of_band = False  # received over the broker
        self._requested.discard(message.index)
        return self.complete

    def fill(self, data: bytes) -> None:
        """Complete the fetch with verified data; `data` is empty if it is in a file."""
        self._parts.clear()
        self._whole = data

    def finish(self) -> bytes:
        """Return the blob, or the parts of `only` in order. Raises `bad_digest`, dropping them."""
        if self._whole is not None:
            return self._whole
        data = b"".join(self._parts[index] for index in sorted(self._parts))
        if self._only is None and hashlib.sha256(data).digest() != self.blob.digest:
            self._parts.clear()
            self._lowest_missing = 0
            raise ProtocolError("bad_digest")
        return data

    def grow(self, offer: m.Offer, header: H) -> None:
        """Extend the fetch to a longer blob. Raises ProtocolError `bad_growth`."""
        old, new = self.blob, header.blob
        if new.part_bytes != old.part_bytes or new.size_bytes < old.size_bytes:
            raise ProtocolError("bad_growth")
        if old.size_bytes % old.part_bytes:
            raise ProtocolError("bad_growth")
        self.offer, self.header, self.blob, self._pulling = offer, header, new, True

    def wake(self, before: bytes) -> m.Need | None:
        """Start an idle fetch behind the piece `before`; returns the first request."""
        self.before, self.idle, self._pulling = before, False, True
        return None if self.complete else self._fresh()

    def next_need(self, *, timer: bool) -> m.Need | None:
        """Return the next request: with half the credit free, or on a timer without progress."""
        if self.complete or self.idle or self.in_transit:
            return None
        if timer:
            if self._progress:
                self._progress = False
                return None
            self.idle_timeouts += 1
            self._pulling = True
            self._requested.clear()
            self._next = 0
        elif not self._pulling or len(self._requested) > self._credit - NEED_LIMIT // 2:
            return None
        need = self._fresh()
        if not need.indices and not self._requested:  # all were requested, some were lost
            self._next = 0
            need = self._fresh()
        return need if need.indices else None

    def _fresh(self) -> m.Need:
        while self._lowest_missing in self._parts:
            self._lowest_missing += 1
        begin = max(self._next, self._lowest_missing)
        every = range(begin, self.blob.parts) if self._only is None else sorted(self._only)
        missing = (index for index in every if index >= begin and index not in self._parts)
        wanted = tuple(islice(missing, min(NEED_LIMIT, self._credit - len(self._requested))))
        if wanted:
            self._requested.update(wanted)
            self._next = wanted[-1] + 1
        return m.Need(self.blob.digest, wanted, self.out_of_band)


def check_fetchable(offer: m.Offer, blob: m.Blob, limit_bytes: int) -> None:
    """Raise ProtocolError `oversized_blob`, `tiny_parts` or `bad_digest` for an offer."""
    check_claim(blob, limit_bytes)
    if offer.data:
        whole(blob, offer.data)


def check_pieces(manifest: m.Manifest, limit_bytes: int) -> None:
    """Raise ProtocolError `malformed`, `oversized_blob` or `tiny_parts` for bad pieces."""
    stanza_bytes, size_bytes = manifest.stanza_bytes, manifest.blob.size_bytes
    if stanza_bytes > size_bytes:
        raise ProtocolError("malformed")
    sizes = tuple(piece.size_bytes for piece in manifest.pieces)
    if sizes and sizes != (stanza_bytes, size_bytes - stanza_bytes):
        raise ProtocolError("malformed")
    for piece in manifest.pieces:
        check_claim(piece, limit_bytes)
    if manifest.buckets > 1 and (not sizes or manifest.pieces[0].parts != manifest.buckets):
        raise ProtocolError("malformed")


def first_data(offer: m.Offer, blob: m.Blob) -> Iterable[m.BlobPart]:
    """Return the inline blob of an offer as parts; an empty blob is always inline."""
    if not offer.data and blob.size_bytes:
        return ()
    if len(offer.data) != blob.size_bytes:
        raise ProtocolError("bad_part")
    return parts(blob, offer.data)


class Backoff:
    """Wait times of one party, spread by its name: machines have no randomness."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name.encode(), 0

    def wait_s(self, first_s: float, tries: int, cap_s: float) -> float:
        """Return `first_s` doubled `tries` times, at most `cap_s`, times a share in (½, 1]."""
        self._count += 1
        digest = hashlib.sha256(self._name + self._count.to_bytes(8, "big")).digest()
        chance = int.from_bytes(digest[:4], "big") / 2**32
        return min(first_s * 2.0 ** min(tries, 16), cap_s) * (1 - chance / 2)


PIECE_MARKS = 256  # minimum average of a piece: smaller ones cost more than they save


def describe_record(
    at: m.RoundId, marks: Iterable[bytes], part_bytes: int, floor: int | None = None
) -> tuple[m.Commit, bytes]:
    """Return a commit header and its blob; with a `floor`, in pieces of that many marks."""
    sorted_marks = sorted(marks)
    data = b"".join(sorted_marks)
    blob = describe(data, part_bytes)
    if floor is None:
        return m.Commit(at, len(sorted_marks), blob), data
    pieces = [describe(piece, part_bytes) for piece in _cut(sorted_marks, floor)]
    return m.Commit(at, len(sorted_marks), blob, tuple(pieces)), data


def _cut(marks: list[bytes], floor: int) -> list[bytes]:
    count = m.MOST_PIECES
    while count > 1:
        dealt: list[list[bytes]] = [[] for _ in range(count)]
        for mark in marks:
            dealt[place_of(mark, count)].append(mark)
        if len(marks) >= count * PIECE_MARKS and min(map(len, dealt)) >= floor:
            return [b"".join(piece) for piece in dealt]
        count //= 2
    return [b"".join(marks)]


def place_of(mark: bytes, pieces: int) -> int:
    return mark[0] * pieces >> 8


def piece_for(commit: m.Commit, marks: Iterable[bytes]) -> m.Blob:
    """Return the piece with these marks, or the whole record if they span several."""
    places = {place_of(mark, len(commit.pieces)) for mark in marks}
    return commit.pieces[places.pop()] if len(places) == 1 else commit.blob


def check_record(commit: m.Commit) -> None:
    """Raise ProtocolError `malformed` for pieces that do not make up the record."""
    sizes = [piece.size_bytes for piece in commit.pieces]
    if sizes and (len(sizes).bit_count() != 1 or sum(sizes) != commit.blob.size_bytes):
        raise ProtocolError("malformed")


_SLUG = re.compile(r"[a-z_]{1,40}")
LEAST_BYTES = 1 << 20  # of a blob that goes out of band
MOST_FAILURES = 3  # of one blob, before it goes over the broker


@dataclass(frozen=True)
class FetchOutOfBand:
    """Work: fetch the blob within `within_s`. Returns `FetchedOutOfBand` or `WorkFailed`."""

    blob: m.Blob
    url: str
    within_s: float


@dataclass(frozen=True)
class FetchedOutOfBand:
    """Verified blob; empty if it is in a file."""

    data: bytes = b""


@dataclass(frozen=True)
class PutOutOfBand:
    """Work: store the blob within `within_s`. Returns `BlobStored` or `WorkFailed`."""

    blob: m.Blob
    url: str
    within_s: float
    data: Data


@dataclass(frozen=True)
class BlobStored:
    """Result of `PutOutOfBand`: the blob is stored."""


Carriage = FetchOutOfBand | PutOutOfBand  # network work, not queued behind other work


@dataclass(frozen=True)
class ShowBlob:
    """Work: publish the blob in the store. Returns `BlobShown` or `WorkFailed`."""

    blob: m.Blob
    data: Data


@dataclass(frozen=True)
class BlobShown:
    url: str


@dataclass(frozen=True)
class GrantPut:
    """Work: let `sender` store a blob, replacing `in_place_of`. Returns `PutGranted`."""

    blob: m.Blob
    sender: fx.Address
    job_id: bytes
    in_place_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class PutGranted:
    """Permission to store a blob at `url`, called `name` in the store."""

    name: str
    url: str


@dataclass(frozen=True)
class PutTaken:
    """Result of moving a stored blob to its place: verified, durable, removed from the store."""


def why_not(result: object) -> str:
    """Return the failure's slug; `failed` for a sentence, which may quote a path."""
    reason = result.reason if isinstance(result, fx.WorkFailed) else ""
    return reason if _SLUG.fullmatch(reason) else "failed"


def is_allowed(url: str, prefixes: Iterable[str]) -> bool:
    """Return whether the URL is below one of these prefixes; each ends with a slash."""
    if not url.isascii() or not url.isprintable() or any(sign in url for sign in ' \\"<>'):
        return False
    try:
        split = urlsplit(url)
        return any(_below(split, urlsplit(prefix)) for prefix in prefixes)
    except ValueError:
        return False


def _below(url: SplitResult, prefix: SplitResult) -> bool:
    if url.username is not None or url.password is not None or url.fragment:
        return False
    lower = url.path.lower()
    if any(step in ("..", ".") for step in url.path.split("/")) or "%2e" in lower or "%2f" in lower:
        return False
    same = (url.scheme, url.hostname, url.port) == (prefix.scheme, prefix.hostname, prefix.port)
    return same and url.path.startswith(prefix.path) and len(url.path) > len(prefix.path)


def begin_fetch(fetch: Fetch[H], at: m.BlobAt, prefixes: Iterable[str]) -> fx.Effects:
    """Fetch from the announced URL. Raises ProtocolError `foreign_url`."""
    if at.put or fetch.in_transit or not fetch.out_of_band or fetch.complete:
        return []
    if not is_allowed(at.url, prefixes):
        fetch.out_of_band = False
        raise ProtocolError("foreign_url")
    fetch.in_transit = True
    return [fx.Work(FetchOutOfBand(fetch.blob, at.url, at.expires_s))]


def end_fetch(fetch: Fetch[H], result: object) -> fx.Effects:
    """Complete the fetch, or retry; after `MOST_FAILURES` failures over the broker."""
    fetch.in_transit = False
    if isinstance(result, FetchedOutOfBand):
        fetch.fill(result.data)
        return []
    fetch.failures += 1
    fetch.out_of_band = fetch.failures < MOST_FAILURES
    why = why_not(result)
    report = [] if fetch.out_of_band else [fx.Report("over_the_broker", {"why": why})]
    return [fx.Refuse(f"beside_{why}"), *report]


class StorePut:
    """Transfer of one blob at a time to another party's store, with its failures."""

    def __init__(self, signer: m.Signer, to: fx.Address, prefixes: tuple[str, ...]) -> None:
        self._signer, self._to, self._prefixes = signer, to, prefixes
        self._blob = b""  # digest of the blob that `_failures` counts for
        self._failures = 0
        self.in_progress = b""  # digest of the blob being stored

    def takes(self, blob: m.Blob) -> bool:
        failed = self._failures if self._blob == blob.digest else 0
        return bool(self._prefixes) and blob.size_bytes >= LEAST_BYTES and failed < MOST_FAILURES

    def begin(self, at: m.BlobAt, blob: m.Blob, data: Data) -> fx.Effects:
        """Put the blob at the assigned URL. Raises ProtocolError `foreign_url`."""
        if at.blob != blob.digest or self.in_progress or not self.takes(blob):
            return []
        if not is_allowed(at.url, self._prefixes):
            self._blob, self._failures = blob.digest, MOST_FAILURES
            raise ProtocolError("foreign_url")
        self.in_progress = blob.digest
        return [fx.Work(PutOutOfBand(blob, at.url, at.expires_s, data))]

    def end(self, task: PutOutOfBand, result: object) -> tuple[bool, fx.Effects]:
        """Return whether the blob is stored, and the effects; if not, offer it again."""
        digest = task.blob.digest
        self.in_progress = b""
        # Every put counts as a failure until the receiver has verified the blob.
        self._failures = self._failures + 1 if self._blob == digest else 1
        self._blob = digest
        if isinstance(result, BlobStored):
            return True, [fx.Send(self._to, self._signer.note(m.BlobPut(digest)))]
        why = why_not(result)
        report = [] if self.takes(task.blob) else [fx.Report("over_the_broker", {"why": why})]
        return False, [fx.Refuse(f"beside_{why}"), *report]


@dataclass
class _Shown:
    note: m.Note | None = None
    until_s: float = 0.0
    at_work: bool = False
    waiting: dict[fx.Address, None] = field(default_factory=dict)


class LentData:
    """Bytes in memory that a store serves until they are withdrawn."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take_back(self) -> None:
        self._data = b""

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, part: slice, /) -> bytes:
        return self._data[part]


class ShownBlobs:
    """Blobs in the store; one URL of a blob serves all requests."""

    def __init__(self, signer: m.Signer, least_bytes: int, expires_s: float) -> None:
        """Serve blobs of at least `least_bytes`; 0: there is no store."""
        self._signer, self._least_bytes, self._expires_s = signer, least_bytes, expires_s
        self._shown: dict[bytes, _Shown] = {}

    def takes(self, blob: m.Blob) -> bool:
        return 0 < self._least_bytes <= blob.size_bytes

    def answer(self, to: fx.Address, blob: m.Blob, data: Data, now_s: float) -> fx.Effects | None:
        """Send the blob's URL, now or once it is stored; returns None to send parts."""
        if not self.takes(blob):
            return None
        for digest, one in list(self._shown.items()):
            if now_s >= one.until_s and not one.at_work:
                del self._shown[digest]
        shown = self._shown.setdefault(blob.digest, _Shown())
        if shown.note is not None:
            return [fx.Send(to, shown.note)]
        if now_s < shown.until_s:  # the store failed recently
            return None
        shown.waiting[to] = None
        if shown.at_work:
            return []
        shown.at_work = True
        return [fx.Work(ShowBlob(blob, data))]

    def awaits(self, task: ShowBlob) -> bool:
        shown = self._shown.get(task.blob.digest)
        return shown is not None and shown.at_work

    def done(self, task: ShowBlob, result: object, now_s: float) -> fx.Effects:
        """Send the URL to waiting parties; after a failure they request again."""
        shown = self._shown.setdefault(task.blob.digest, _Shown())
        waiting, shown.waiting, shown.at_work = list(shown.waiting), {}, False
        # The last recipient of the URL still has half of its validity.
        shown.until_s = now_s + self._expires_s / 2
        if not isinstance(result, BlobShown):
            return [fx.Report("store_failed", {"why": why_not(result)})]
        at = m.BlobAt(task.blob.digest, result.url, put=False, expires_s=self._expires_s)
        shown.note = self._signer.note(at)
        return [fx.Send(to, shown.note) for to in waiting]


A = TypeVar("A")


@dataclass
class PutGrant(Generic[A]):
    """Permission for one blob, `name` in the store; `arrival` belongs to the holder."""

    blob: m.Blob
    arrival: A
    until_s: float
    name: str = ""
    note: m.Note | None = None
    failed: bool = False
    taking: bool = False


class PutGrants(Generic[A]):
    """Permissions to store blobs, at most one for each sender and job."""

    def __init__(self, signer: m.Signer, least_bytes: int, expires_s: float) -> None:
        self._signer, self._least_bytes, self._expires_s = signer, least_bytes, expires_s
        self._by_sender: dict[fx.Address, dict[bytes, PutGrant[A]]] = {}
        self._unused: list[str] = []  # names that the store must still delete

    def takes(self, sender: fx.Address, blob: m.Blob, now_s: float) -> bool:
        """Return whether the blob may be stored; not if the store just failed for it."""
        grant = self.get(sender, blob.digest)
        if grant is not None and grant.failed and now_s < grant.until_s:
            return False
        return 0 < self._least_bytes <= blob.size_bytes

    def get(self, sender: fx.Address, digest: bytes) -> PutGrant[A] | None:
        grants = self._by_sender.get(sender, {}).values()
        return next((grant for grant in grants if grant.blob.digest == digest), None)

    def offered(
        self, sender: fx.Address, job_id: bytes, blob: m.Blob, arrival: A, now_s: float
    ) -> fx.Effects:
        """Assign a URL to the offered blob, or repeat the assigned one."""
        grant = self.get(sender, blob.digest)
        if grant is not None and (grant.taking or now_s < grant.until_s):
            grant.arrival = arrival
            return [fx.Send(sender, grant.note)] if grant.note and not grant.taking else []
        self.forget(sender, job_id)
        until_s = now_s + self._expires_s / 2
        self._by_sender.setdefault(sender, {})[job_id] = PutGrant(blob, arrival, until_s)
        unused, self._unused = tuple(self._unused), []
        return [fx.Work(GrantPut(blob, sender, job_id, unused))]

    def granted(self, task: GrantPut, result: object) -> fx.Effects:
        grant = self.get(task.sender, task.blob.digest)
        if grant is None:
            self._unused += [result.name] if isinstance(result, PutGranted) else []
            return []
        if not isinstance(result, PutGranted):
            grant.failed = True
            return [fx.Report("store_failed", {"why": why_not(result)})]
        at = m.BlobAt(task.blob.digest, result.url, put=True, expires_s=self._expires_s)
        grant.name, grant.note = result.name, self._signer.note(at)
        return [fx.Send(task.sender, grant.note)]

    def forget(self, sender: fx.Address, job_id: bytes) -> None:
        grants = self._by_sender.get(sender, {})
        grant = grants.pop(job_id, None)
        if grant is not None and grant.name and not grant.taking:  # taking deletes it there
            self._unused.append(grant.name)
        if not grants:
            self._by_sender.pop(sender, None)

    def end(self, job_id: bytes) -> None:
        for sender in list(self._by_sender):
            self.forget(sender, job_id)
