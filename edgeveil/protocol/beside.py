"""Large blobs beside the broker: where one lies, and who may put one there.

Theory of operation. Of two parties one holds a store that both reach over HTTP: the proxy holds
that of the devices, the cloud that of the proxy. Whoever wants a blob asks for it as always
(`Need`), and says that it can take it beside the broker. The store's holder then answers with a
URL in place of parts (`BlobAt`); it has put the blob there before, or does so now (`ShownBlobs`).
For a blob on its way to the store's holder, its offer says the same, and the answer is a URL to
put it to (`PutGrants`); whoever has put it there says so (`BlobPut`), and the holder takes it into
its own files, by its digest.

Nothing rests on the store. A URL counts only under a prefix that this party's own site file names
(`is_allowed`), so that nobody can have a box ask or write elsewhere in its network; what comes is
the blob that the signed header names, or nothing; and whoever fails `MOST_FAILURES` times, or has
no such prefix, asks for parts over the broker, which every holder goes on sending.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Blob, BlobAt, BlobPut, Note, Signer
from edgeveil.protocol.transfer import Data, Fetch, H

_SLUG = re.compile(r"[a-z_]{1,40}")
LEAST_BYTES = 1 << 20  # of a blob that goes beside the broker
MOST_FAILURES = 3  # of one blob, then it goes over the broker

# --- work of whoever goes to a store -----------------------------------------------------------


@dataclass(frozen=True)
class FetchBeside:
    """Get the blob within `within_s`. Outcome `FetchedBeside` or `WorkFailed`."""

    blob: Blob
    url: str
    within_s: float


@dataclass(frozen=True)
class FetchedBeside:
    """The blob, checked; empty where it went to a file."""

    data: bytes = b""


@dataclass(frozen=True)
class PutBeside:
    """Put the blob there within `within_s`. Outcome `LaidDown` or `WorkFailed`."""

    blob: Blob
    url: str
    within_s: float
    data: Data


@dataclass(frozen=True)
class LaidDown:
    """The store has it."""


Carriage = FetchBeside | PutBeside  # waits for a network, so it is not in the line of other work

# --- work of whoever holds a store -------------------------------------------------------------


@dataclass(frozen=True)
class ShowBlob:
    """Let the blob be had from the store. Outcome `BlobShown` or `WorkFailed`."""

    blob: Blob
    data: Data


@dataclass(frozen=True)
class BlobShown:
    """It may be had there."""

    url: str


@dataclass(frozen=True)
class GrantPut:
    """Let `sender` put a blob of this size there, for this job; the names `in_place_of` are of no
    use any more.

    Outcome `PutGranted` or `WorkFailed`.
    """

    blob: Blob
    sender: fx.Address
    job_id: bytes
    in_place_of: tuple[str, ...] = ()


@dataclass(frozen=True)
class PutGranted:
    """It may be put there; `name` is what the store calls it."""

    name: str
    url: str


@dataclass(frozen=True)
class PutTaken:
    """What was put into the store is in its place, checked and durable, and gone from the store."""


def why_not(result: object) -> str:
    """The reason of such a failure in one word; a sentence may quote a path, and counts as none."""
    reason = result.reason if isinstance(result, fx.WorkFailed) else ""
    return reason if _SLUG.fullmatch(reason) else "failed"


# --- which URLs count --------------------------------------------------------------------------


def is_allowed(url: str, prefixes: Iterable[str]) -> bool:
    """Whether the URL is below one of these prefixes, each of which ends with a slash."""
    if not url.isascii() or not url.isprintable() or any(sign in url for sign in ' \\"<>'):
        return False
    try:
        asked = urlsplit(url)
        return any(_below(asked, urlsplit(prefix)) for prefix in prefixes)
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


# --- whoever goes to a store -------------------------------------------------------------------


def begin_fetch(fetch: Fetch[H], at: BlobAt, prefixes: Iterable[str]) -> list[fx.Effect]:
    """Go where the blob is said to be. Raises ProtocolError `foreign_url`."""
    if at.put or fetch.on_its_way or not fetch.beside or fetch.assembly.complete:
        return []
    if not is_allowed(at.url, prefixes):
        fetch.beside = False
        raise ProtocolError("foreign_url")
    fetch.on_its_way = True
    return [fx.Work(FetchBeside(fetch.blob, at.url, at.expires_s))]


def end_fetch(fetch: Fetch[H], result: object) -> list[fx.Effect]:
    """It is here, and the fetch complete; or it is asked for again, at last over the broker."""
    fetch.on_its_way = False
    if isinstance(result, FetchedBeside):
        fetch.assembly.fill(result.data)
        return []
    fetch.failures += 1
    fetch.beside = fetch.failures < MOST_FAILURES
    why = why_not(result)
    over = [] if fetch.beside else [fx.Report("over_the_broker", {"why": why})]
    return [fx.Refuse(f"beside_{why}"), *over]


class LayingDown:
    """One blob at a time on its way to another's store, and how often that failed. Whoever has
    several at once has one of these for each."""

    def __init__(self, signer: Signer, to: fx.Address, prefixes: tuple[str, ...]) -> None:
        self._signer, self._to, self._prefixes = signer, to, prefixes
        self._blob = b""  # the digest of that which failures count for
        self._failures = 0
        self.carried = b""  # and of the one that is on its way

    def takes(self, blob: Blob) -> bool:
        """Whether to offer this blob beside the broker."""
        failed = self._failures if self._blob == blob.digest else 0
        return bool(self._prefixes) and blob.size_bytes >= LEAST_BYTES and failed < MOST_FAILURES

    def lay_down(self, at: BlobAt, blob: Blob, data: Data) -> list[fx.Effect]:
        """The store's holder says where to put it. Raises ProtocolError `foreign_url`."""
        if at.blob != blob.digest or self.carried or not self.takes(blob):
            return []
        if not is_allowed(at.url, self._prefixes):
            self._blob, self._failures = blob.digest, MOST_FAILURES
            raise ProtocolError("foreign_url")
        self.carried = blob.digest
        return [fx.Work(PutBeside(blob, at.url, at.expires_s, data))]

    def laid_down(self, task: PutBeside, result: object) -> tuple[bool, list[fx.Effect]]:
        """Whether it lies there, and what to say; else it is offered again."""
        digest = task.blob.digest
        self.carried = b""
        # Counted until the other side says that it has it: what it finds there may be wrong.
        self._failures = self._failures + 1 if self._blob == digest else 1
        self._blob = digest
        if isinstance(result, LaidDown):
            return True, [fx.Send(self._to, self._signer.note(BlobPut(digest)))]
        why = why_not(result)
        over = [] if self.takes(task.blob) else [fx.Report("over_the_broker", {"why": why})]
        return False, [fx.Refuse(f"beside_{why}"), *over]


# --- a store's holder: what may be had ---------------------------------------------------------


@dataclass
class _Shown:
    note: Note | None = None
    until_s: float = 0.0
    at_work: bool = False
    waiting: dict[fx.Address, None] = field(default_factory=dict)


class LentData:
    """Bytes in memory that a store shows; once they are taken back there are none."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def take_back(self) -> None:
        """Whoever still reads them finds an end."""
        self._data = b""

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, part: slice, /) -> bytes:
        return self._data[part]


class ShownBlobs:
    """Of blobs that lie in the store, who is told where. One URL of a blob serves all who ask."""

    def __init__(self, signer: Signer, least_bytes: int, expires_s: float) -> None:
        """`least_bytes`: of smaller blobs nothing is shown; 0: there is no store."""
        self._signer, self._least_bytes, self._expires_s = signer, least_bytes, expires_s
        self._shown: dict[bytes, _Shown] = {}

    def takes(self, blob: Blob) -> bool:
        """Whether this blob goes beside the broker."""
        return 0 < self._least_bytes <= blob.size_bytes

    def answer(
        self, to: fx.Address, blob: Blob, data: Data, now_s: float
    ) -> list[fx.Effect] | None:
        """Tell where the blob is, now or once it is there; None: it is to be sent in parts."""
        if not self.takes(blob):
            return None
        self._forget_expired(now_s)
        shown = self._shown.setdefault(blob.digest, _Shown())
        if shown.note is not None:
            return [fx.Send(to, shown.note)]
        if now_s < shown.until_s:  # the store failed a moment ago
            return None
        shown.waiting[to] = None
        if shown.at_work:
            return []
        shown.at_work = True
        return [fx.Work(ShowBlob(blob, data))]

    def awaits(self, task: ShowBlob) -> bool:
        """Whether this was asked for here."""
        shown = self._shown.get(task.blob.digest)
        return shown is not None and shown.at_work

    def done(self, task: ShowBlob, result: object, now_s: float) -> list[fx.Effect]:
        """It is in the store, or could not be put there: then who waits asks again."""
        shown = self._shown.setdefault(task.blob.digest, _Shown())
        told, shown.waiting, shown.at_work = list(shown.waiting), {}, False
        # Whoever hears of it late still has half of the time.
        shown.until_s = now_s + self._expires_s / 2
        if not isinstance(result, BlobShown):
            return [fx.Report("store_failed", {"why": why_not(result)})]
        at = BlobAt(task.blob.digest, result.url, put=False, expires_s=self._expires_s)
        shown.note = self._signer.note(at)
        return [fx.Send(to, shown.note) for to in told]

    def _forget_expired(self, now_s: float) -> None:
        over = [d for d, one in self._shown.items() if now_s >= one.until_s and not one.at_work]
        for digest in over:
            del self._shown[digest]


# --- a store's holder: what may be put there ---------------------------------------------------


A = TypeVar("A")


@dataclass
class PutGrant(Generic[A]):
    """One blob that somebody may put into the store; `name` is what the store calls it, `arrival`
    what its holder knows of it."""

    blob: Blob
    arrival: A
    until_s: float
    name: str = ""
    note: Note | None = None
    failed: bool = False
    taking: bool = False


class PutGrants(Generic[A]):
    """Blobs that others may put into the store, at most one of each sender for each job."""

    def __init__(self, signer: Signer, least_bytes: int, expires_s: float) -> None:
        self._signer, self._least_bytes, self._expires_s = signer, least_bytes, expires_s
        self._by_sender: dict[fx.Address, dict[bytes, PutGrant[A]]] = {}
        self._unused: list[str] = []  # names that the store is yet to forget

    def takes(self, sender: fx.Address, blob: Blob, now_s: float) -> bool:
        """Whether this blob may come beside the broker; not where the store failed for it."""
        grant = self.get(sender, blob.digest)
        if grant is not None and grant.failed and now_s < grant.until_s:
            return False
        return 0 < self._least_bytes <= blob.size_bytes

    def get(self, sender: fx.Address, digest: bytes) -> PutGrant[A] | None:
        """The grant of this sender for this blob."""
        grants = self._by_sender.get(sender, {}).values()
        return next((grant for grant in grants if grant.blob.digest == digest), None)

    def offered(
        self, sender: fx.Address, job_id: bytes, blob: Blob, arrival: A, now_s: float
    ) -> list[fx.Effect]:
        """Say where to put it, again where that was said before."""
        grant = self.get(sender, blob.digest)
        if grant is not None and (grant.taking or now_s < grant.until_s):
            grant.arrival = arrival
            return [fx.Send(sender, grant.note)] if grant.note and not grant.taking else []
        self.forget(sender, job_id)
        until_s = now_s + self._expires_s / 2
        self._by_sender.setdefault(sender, {})[job_id] = PutGrant(blob, arrival, until_s)
        unused, self._unused = tuple(self._unused), []
        return [fx.Work(GrantPut(blob, sender, job_id, unused))]

    def granted(self, task: GrantPut, result: object) -> list[fx.Effect]:
        """The store has a place for it."""
        grant = self.get(task.sender, task.blob.digest)
        if grant is None:
            self._unused += [result.name] if isinstance(result, PutGranted) else []
            return []
        if not isinstance(result, PutGranted):
            grant.failed = True
            return [fx.Report("store_failed", {"why": why_not(result)})]
        at = BlobAt(task.blob.digest, result.url, put=True, expires_s=self._expires_s)
        grant.name, grant.note = result.name, self._signer.note(at)
        return [fx.Send(task.sender, grant.note)]

    def forget(self, sender: fx.Address, job_id: bytes) -> None:
        """It is here, came in another way, or is of no use."""
        grants = self._by_sender.get(sender, {})
        grant = grants.pop(job_id, None)
        if grant is not None and grant.name and not grant.taking:  # who takes it forgets it
            self._unused.append(grant.name)
        if not grants:
            self._by_sender.pop(sender, None)

    def end(self, job_id: bytes) -> None:
        """No blob is of use to this job's round any more."""
        for sender in list(self._by_sender):
            self.forget(sender, job_id)
