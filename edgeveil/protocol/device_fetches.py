"""Blobs on their way to a device: bounded in number and bytes, and what is over is given up."""

from __future__ import annotations

from collections.abc import Callable

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Commit, Header, Manifest, Offer, Part
from edgeveil.protocol.pace import Pace
from edgeveil.protocol.tasks import Settings
from edgeveil.protocol.transfer import Fetch, first_data

AT_ONCE = 8

Complete = tuple[Header, bytes]


class Fetches:
    """Offered blobs by digest. What is complete is handed out once and forgotten.

    What stays, such as a round that came before its job, is handed out when it is offered again.
    """

    def __init__(self, settings: Settings, pace: Pace) -> None:
        self._settings, self._pace = settings, pace
        self.under_way: dict[bytes, Fetch] = {}

    def make_room(
        self, offer: Offer, header: Header, over: Callable[[Header], bool] = lambda _header: False
    ) -> None:
        """Be ready to fetch: what is `over` is forgotten, what stands still gives way to the new.

        Raises ProtocolError `too_many_fetches`, and changes nothing, if what is under way moves.
        """
        kept = {d: f for d, f in self.under_way.items() if f.header == header or not over(f.header)}
        if header.blob.digest not in kept and not offer.data:
            still = sorted((f.idle_looks, d) for d, f in kept.items() if f.idle_looks)
            while not self._fits(kept, header.blob.size_bytes):
                if not still:
                    raise ProtocolError("too_many_fetches")
                del kept[still.pop()[1]]
        self.under_way = kept

    def _fits(self, others: dict[bytes, Fetch], size_bytes: int) -> bool:
        claimed = sum(fetch.header.blob.size_bytes for fetch in others.values())
        return len(others) < AT_ONCE and claimed + size_bytes <= self._settings.fetch_bytes

    def offer(self, offer: Offer, header: Header) -> Complete | None:
        """Begin a fetch that there is room for, or go on with it; complete if all is in the offer.

        Raises ProtocolError `bad_part` or `bad_digest`.
        """
        digest = header.blob.digest
        fetch = self.under_way.get(digest) or Fetch(offer, header, self._settings.blob_bytes)
        self.under_way[digest] = fetch
        for part in first_data(offer, header.blob):
            fetch.add(part)
        return self._finish(fetch) if fetch.assembly.complete else None

    def part(self, part: Part, stays: Callable[[Header], bool]) -> Complete | list[fx.Effect]:
        """Take a part: the whole blob, unless it `stays`, or what to ask for next."""
        fetch = self.under_way.get(part.blob)
        if fetch is None:
            return []  # parts are broadcast: most are of no interest here
        again = part.index in fetch.assembly
        if fetch.add(part):
            if not stays(fetch.header):
                return self._finish(fetch)
            if not again:
                fetch.assembly.finish()  # checks it: what is not the blob is forgotten
            return []
        need = fetch.next_need(timer=False)
        return [fx.Send(fx.Proxy(), need)] if need else []

    def repair(self) -> list[fx.Effect]:
        """Ask for what did not come; look again later, ever more rarely while nothing comes."""
        if not self.under_way:
            return []
        fetches = self.under_way.values()
        needs = [need for fetch in fetches if (need := fetch.next_need(timer=True))]
        looks = max(fetch.idle_looks for fetch in fetches)
        wait_s = self._pace.wait_s(self._settings.repair_s, looks, self._settings.waits_cap_s)
        return [*(fx.Send(fx.Proxy(), need) for need in needs), fx.SetTimer("repair", wait_s)]

    def brings_job(self, job_id: bytes) -> bool:
        """Whether this job's package is under way."""
        headers = (fetch.header for fetch in self.under_way.values())
        return any(kind_of(header) == "job" and job_of(header) == job_id for header in headers)

    def forget(self, over: Callable[[Header], bool]) -> None:
        """Stop fetching what is over: a fetch that cannot end must not take a place for good."""
        self.under_way = {d: f for d, f in self.under_way.items() if not over(f.header)}

    def _finish(self, fetch: Fetch) -> Complete:
        data = fetch.assembly.finish()
        del self.under_way[fetch.header.blob.digest]
        return fetch.header, data


def kind_of(header: Header) -> str:
    """A manifest's kind; `commit` for anything else that is fetched."""
    return header.kind if isinstance(header, Manifest) else "commit"


def job_of(header: Header) -> bytes | None:
    """The job that a fetch belongs to."""
    return header.at.job_id if isinstance(header, Manifest | Commit) else None
