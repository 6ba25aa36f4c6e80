"""One job in one cell, as the cloud sees it: what its proxy is offered, and what comes of it.

Where a cell stands in the step under way (`Stand`) is all that the job's course needs to know to go
on; it never reads a message itself. A cell that does not answer, or will not, is `GONE` for the
step, and that costs its own devices only.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud_arrivals import BatchArrival, acknowledged
from edgeveil.protocol.cloud_masks import MaskArrivals
from edgeveil.protocol.cloud_outgoing import OutgoingBroadcast
from edgeveil.protocol.cloud_tasks import Broadcast, CloudSettings, timer_name
from edgeveil.protocol.messages import (
    Batch,
    CheckMasks,
    Commit,
    Manifest,
    Misfits,
    Shortfall,
    Signer,
    Unmask,
)
from edgeveil.protocol.transfer import sends


class Stand(Enum):
    """Where a cell stands in the step under way of its job."""

    OUT = "out"
    """It has no part in it."""
    OFFERED = "offered"
    """Its proxy does not hold the broadcast yet."""
    HELD = "held"
    """The proxy holds it; of a round the batch is awaited."""
    ASKED = "asked"
    """The proxy is asked about masks."""
    CAME = "came"
    """The batch is whole, or the checks or sums of masks."""
    SHORT = "short"
    """Too few devices answered."""
    GONE = "gone"
    """Silent, or refusing."""


OPEN = (Stand.OFFERED, Stand.HELD, Stand.ASKED)  # something is awaited


class CellCourse:
    """One job in one cell. `joined`: its proxy holds the job, so that rounds may ask there."""

    def __init__(
        self,
        cell: str,
        signer: Signer,
        releases: Signer,
        settings: CloudSettings,
        job_id: bytes,
        *,
        alone: bool,
    ) -> None:
        """`alone`: there is no other cell, so that nobody waits for this one in vain."""
        self._alone = alone
        self.cell, self.proxy = cell, fx.ProxyAddress(cell)
        self._signer, self._settings, self._job_id = signer, settings, job_id
        resend = timer_name("resend", job_id, cell)
        self.out = OutgoingBroadcast(cell, signer, releases, settings, resend)
        self.arrival = BatchArrival(cell, signer, settings, job_id)
        self.masks = MaskArrivals(cell, signer, settings, job_id)
        self.stand, self.reason = Stand.OUT, ""
        self.joined = self.joining = self.heard = False
        self.link = self.outage = ""  # which link is down now; which was, since the last offer
        self.manifest: Manifest | None = None  # the newest that it was offered
        self.shortfall: Shortfall | None = None

    @property
    def batch(self) -> Batch | None:
        """Its batch, once it is whole."""
        return self.arrival.whole_batch

    @property
    def awaited(self) -> bool:
        """Whether the step waits for it."""
        return self.stand in OPEN

    # --- a step, from its side ---

    def offer(self, what: Broadcast) -> list[fx.Effect]:
        """Begin to offer this to its proxy."""
        self.stand, self.reason, self.shortfall = Stand.OFFERED, "", None
        self.outage = self.link
        self.manifest = what.manifest
        return [*self.out.offer(what.manifest, what.data), self.wait()]

    def linked(self, down: str) -> list[fx.Effect]:
        """A link on the way to its devices is `down`, or none is any more: its silence meanwhile
        was the link's."""
        before, self.link = self.link, down
        self.outage = down or self.outage
        return [self.wait()] if before and not down and self.awaited else []

    def hold(self) -> list[fx.Effect]:
        """Its proxy holds the broadcast; the proxy's deadline runs from here, not from sealing."""
        self.stand = Stand.HELD
        self.out.drop()
        return [self._cancel("resend"), self.wait()]

    def ask(self, asked: CheckMasks | Unmask) -> list[fx.Effect]:
        """Ask its proxy about masks."""
        self.stand, self.reason = Stand.ASKED, ""
        return [*self.masks.ask(asked), self.arrival.watch()]

    def blame(self, misfits: Misfits) -> fx.Effect:
        """Tell its proxy, while that knows their senders, which uploads do not fit."""
        return fx.Send(self.proxy, self._signer.note(misfits))

    def come(self) -> list[fx.Effect]:
        """What was awaited of it is here."""
        self.stand = Stand.CAME
        return [self._cancel("resend"), self._cancel("watchdog")]

    def fall_short(self, short: Shortfall) -> list[fx.Effect]:
        """Its round is over below the floor."""
        self.stand, self.shortfall = Stand.SHORT, short
        self.out.drop()
        return self.rest()

    def go(self, reason: str) -> list[fx.Effect]:
        """The step goes on without it."""
        self.stand, self.reason = Stand.GONE, reason
        self.out.drop()
        return [*self.arrival.drop(), *self.masks.drop(), *self.rest()]

    def leave(self) -> list[fx.Effect]:
        """Nothing is awaited of it any more, and nothing that came is kept."""
        self.stand, self.joining = Stand.OUT, False
        self.out.drop()
        return [*self.arrival.drop(), *self.masks.drop(), *self.rest()]

    def rest(self) -> list[fx.Effect]:
        """Its timers end."""
        return [self._cancel("watchdog"), self._cancel("resend")]

    def tell(self, commit: Commit, data: bytes) -> list[fx.Effect]:
        """What counted of its uploads; the proxy may forget the batch."""
        out = [*self.masks.drop(), *self.arrival.acknowledge(), *self.arrival.drop()]
        self.out.drop()
        signed, packet_bytes = self._signer.header(commit), self._settings.packet_bytes
        return [*out, *sends(self.proxy, signed, commit.blob, data, packet_bytes)]

    def wait(self) -> fx.SetTimer:
        """Its silence counts anew."""
        margin_s, of_it = self._settings.proxy_margin_s, self.manifest
        held = self._alone or self.stand is Stand.HELD
        round_s = of_it.deadline_s + of_it.grace_s if of_it and held else 0.0
        return fx.SetTimer(timer_name("watchdog", self._job_id, self.cell), round_s + margin_s)

    def send(self) -> list[fx.Effect]:
        """Say all that is not confirmed (again)."""
        return [*self.out.send(), *self.masks.send()]

    def closed(self, digest: bytes) -> fx.Effect:
        """Its proxy may forget what it offers under this digest."""
        return acknowledged(self.proxy, self._signer, digest, "closed")

    def about(self) -> dict[str, Any]:
        """Its name for a report; nothing where cells have none."""
        return {"cell": self.cell} if self.cell else {}

    def _cancel(self, what: str) -> fx.CancelTimer:
        return fx.CancelTimer(timer_name(what, self._job_id, self.cell))
