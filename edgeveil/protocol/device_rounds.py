"""The rounds that a device has at hand: one of each job, and whose work on records is when.

Theory of operation. Rounds of different jobs go on beside each other, each with its own state,
upload, timers and moment; one that waits holds up no other. They share the link, what the proxy
says to the device as a whole (cover traffic, keys of rounds), and the box that computes.

That is done one at a time, in *turns*. How long work on records takes may tell about them, so a
turn does not end when the work ends: it ends at a moment that was public before a record was read,
the end of what work may take and of what ledger and seals may take after it. What comes next
begins then, and its own moment follows from that (`AnswerWindow.moment`). So the moment of an
answer follows from when packages came and from what jobs say of themselves, never from how long
another job's work took. Of those that wait the one whose time ends first is next (earliest deadline
first); one that has too little time left is declined, which follows from the same. A turn in which
no record was read ends at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device_round import (
    LEAVE_SHARE,
    WORK_SHARE,
    CoverTraffic,
    DeviceRound,
    RoundKeys,
)
from edgeveil.protocol.device_tasks import (
    ComputeAnswer,
    DeviceMemory,
    DeviceSettings,
    SealedAnswer,
)
from edgeveil.protocol.messages import Cover, Manifest, Signer
from edgeveil.protocol.sealed import Package
from edgeveil.protocol.transfer import Backoff

TURN = "turn"
TURN_SHARE = LEAVE_SHARE / WORK_SHARE  # of the time for work


class DeviceRounds:
    """By job. One timer beside those of the rounds, `turn`."""

    def __init__(
        self, signer: Signer, memory: DeviceMemory, settings: DeviceSettings, backoff: Backoff
    ) -> None:
        self._signer, self._memory, self._settings = signer, memory, settings
        self._backoff = backoff
        self.keys = RoundKeys(settings.jobs)
        self._cover = CoverTraffic()
        self._rounds: dict[bytes, DeviceRound] = {}
        self._last: DeviceRound | None = None  # that was asked for
        self._at_work: ComputeAnswer | None = None
        self._free_s = -math.inf  # when the turn of it ends
        for job_id in memory.uploads:
            self._begin(job_id)

    # --- which round ---

    def __iter__(self) -> Iterator[DeviceRound]:
        return iter(list(self._rounds.values()))

    def of(self, job_id: bytes) -> DeviceRound | None:
        """The job's, which the machine is about from now on."""
        found = self._rounds.get(job_id)
        self._last = found or self._last
        return found

    @property
    def last(self) -> DeviceRound | None:
        """The one that something happened to last."""
        return self._last

    def with_upload(self, digest: bytes) -> DeviceRound | None:
        """The one whose upload has this blob."""
        for round_ in self:
            item = round_.outbox.item
            if item is not None and item.upload.blob.digest == digest:
                return self.of(round_.job_id)
        return None

    def take_up(self, job_id: bytes) -> DeviceRound:
        """The job's, made where there is none; of too many one that is over goes.

        Raises ProtocolError `too_many_rounds`.
        """
        found = self.of(job_id)
        if found is not None:
            return found
        if len(self._rounds) >= self._settings.jobs:
            over = [round_.job_id for round_ in self if round_.is_over]
            if not over:
                raise ProtocolError("too_many_rounds")
            del self._rounds[over[0]]
        return self._begin(job_id)

    def _begin(self, job_id: bytes) -> DeviceRound:
        made = DeviceRound(
            job_id,
            self._signer,
            self._memory,
            self._settings,
            self._backoff,
            copy(self._cover),
            self.keys,
        )
        self._rounds[job_id] = self._last = made
        return made

    # --- what concerns all ---

    @property
    def under_way(self) -> bool:
        """Whether the device still owes one of them something."""
        return any(round_.under_way for round_ in self)

    @property
    def at_hand(self) -> frozenset[bytes]:
        """The jobs that have one which is not over."""
        return frozenset(round_.job_id for round_ in self if not round_.is_over)

    def connected(self) -> list[fx.Effect]:
        """The link is up (again)."""
        self._cover.connected()
        return [effect for round_ in self for effect in round_.connected()]

    def offer_again(self) -> list[fx.Effect]:
        """The proxy may have missed uploads."""
        return [effect for round_ in self for effect in round_.offer_again()]

    def cover_asked(self, cover: Cover) -> None:
        """From now on, uploads leave within this window."""
        for one in (self._cover, *(round_.cover for round_ in self)):
            one.asked(cover)

    # --- turns ---

    def opened(self, manifest: Manifest, package: Package, now_s: float) -> list[fx.Effect]:
        """A package is for this device: its work begins now, or when its turn has come."""
        round_ = self.of(manifest.at.job_id)
        if round_ is None:
            return []
        out = round_.opened(manifest, package)
        before = self._at_work
        if self._free_s == math.inf and before and before.manifest.at.job_id == round_.job_id:
            self._free_s = now_s  # a turn without an end ends with its round
        return out + self.next_turn(now_s)

    def worked(self, task: ComputeAnswer, result: object, now_s: float) -> list[fx.Effect]:
        """The host ended a round's work; to be told after its round."""
        if self._at_work is None or task.manifest != self._at_work.manifest:
            return []
        unread = not isinstance(result, SealedAnswer) or result.at_once
        if unread or self._free_s == math.inf:
            self._free_s = now_s
        return self.next_turn(now_s)

    def next_turn(self, now_s: float) -> list[fx.Effect]:
        """If the box is free, begin the work whose time ends first; decline what is too late."""
        if self._free_s == math.inf:
            return []
        waiting = [(due_s, one) for one in self if (due_s := one.due_s) is not None]
        waiting.sort(key=lambda pair: pair[0])
        late = [one for _, one in waiting if not one.has_time(self._free_s)]
        waits = [one for _, one in waiting if one not in late]
        out = [effect for one in late for effect in one.out_of_time()]
        if waits and self._free_s <= now_s:
            task = waits.pop(0).begin_work(self._free_s)
            self._at_work, self._free_s = task, task.begun_s + task.allowed_s * TURN_SHARE
            out.append(fx.Work(task))
        if waits and self._free_s < math.inf:  # else the work's end is told
            out.append(fx.SetTimer(TURN, max(0.0, self._free_s - now_s)))
        return out
