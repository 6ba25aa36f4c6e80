"""Blobs on their way to a device: a bounded number at once, and what is over is given up."""

from __future__ import annotations

from collections.abc import Callable

from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.messages import Header, Offer, Part
from fl_core.protocol.tasks import Settings
from fl_core.protocol.transfer import Fetch, first_data

AT_ONCE = 8

Complete = tuple[Header, bytes]


class Fetches:
    """Offered blobs by digest. What is complete is handed out once and forgotten."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.under_way: dict[bytes, Fetch] = {}

    def offer(self, offer: Offer, header: Header) -> Complete | None:
        """Begin a fetch, or go on with it; complete if the blob is inside the offer.

        Raises ProtocolError `too_many_fetches`, `bad_part` or `bad_digest`.
        """
        fetch = self.under_way.get(header.blob.digest)
        if fetch is None:
            if len(self.under_way) >= AT_ONCE:
                raise ProtocolError("too_many_fetches")
            fetch = Fetch(offer, header, self._settings.blob_bytes)
            self.under_way[header.blob.digest] = fetch
        complete = False
        for part in first_data(offer, header.blob):
            complete = fetch.add(part)
        return self._finish(fetch) if complete else None

    def part(self, part: Part) -> Complete | list[fx.Effect]:
        """Take a part: the whole blob, or what to ask for next."""
        fetch = self.under_way.get(part.blob)
        if fetch is None:
            return []  # parts are broadcast: most are of no interest here
        if fetch.add(part):
            return self._finish(fetch)
        need = fetch.next_need(timer=False)
        return [fx.Send(fx.Proxy(), need)] if need else []

    def repair(self) -> list[fx.Effect]:
        """Ask for what did not come; look again later, ever more rarely while nothing comes."""
        if not self.under_way:
            return []
        fetches = self.under_way.values()
        needs = [need for fetch in fetches if (need := fetch.next_need(timer=True))]
        looks = max(fetch.idle_looks for fetch in fetches)
        wait_s = min(self._settings.repair_s * 2 ** min(looks, 6), self._settings.waits_cap_s)
        return [*(fx.Send(fx.Proxy(), need) for need in needs), fx.SetTimer("repair", wait_s)]

    def forget(self, over: Callable[[Header], bool]) -> None:
        """Stop fetching what is over: a fetch that cannot end must not take a place for good."""
        self.under_way = {d: f for d, f in self.under_way.items() if not over(f.header)}

    def _finish(self, fetch: Fetch) -> Complete:
        data = fetch.assembly.finish()
        del self.under_way[fetch.header.blob.digest]
        return fetch.header, data
