"""Broadcasts for devices: identical bytes for all, parts for those who ask, within bounds."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.blob import NEED_LIMIT
from edgeveil.protocol.messages import Need
from edgeveil.protocol.proxy_tasks import Kept, ProxyParts, RoundKey, key_of, kind_of
from edgeveil.protocol.transfer import answer_need, sends

_ORDER = {"job": 0, "round": 1, "release": 2, "commit": 3}


@dataclass(frozen=True)
class _Served:
    """What a device was sent of a blob, in its last two requests, and until when that counts."""

    blob: bytes
    until_s: float = 0.0
    last: frozenset[int] = frozenset()
    before: frozenset[int] = frozenset()


class Serving:
    """Serves what the proxy's memory keeps; only slices of it are read."""

    def __init__(self, parts: ProxyParts) -> None:
        self._parts = parts
        self._served: dict[str, _Served] = {}  # of admitted devices alone
        self._wanted: dict[str, float] = {}  # likewise: until when no job is sent again

    def pass_on(self, to: fx.Address, kept: Kept) -> list[fx.Effect]:
        """The broadcast's offer; to all at once, the whole of one that is small."""
        blob, limit = kept.header.blob, self._parts.settings
        push = isinstance(to, fx.AllDevices) and blob.size_bytes <= limit.push_bytes
        return list(sends(to, kept.signed, blob, kept.data, limit.packet_bytes, push=push))

    def need(self, device: str, need: Need, now_s: float) -> list[fx.Effect]:
        """An admitted device asks for parts; what is still on its way is not sent again."""
        if self._parts.registry.verify_key(device) is None:
            raise ProtocolError("unknown_signer")
        kept = self._parts.memory.kept.get(need.blob)
        if kept is None:
            raise ProtocolError("unknown_blob")
        served = self._served.get(device)
        if served is None or served.blob != need.blob or now_s >= served.until_s:
            served = _Served(need.blob)
        sent = served.last | served.before
        fresh = frozenset(sorted(set(need.indices) - sent)[:NEED_LIMIT])
        if not fresh:
            return []
        until_s = now_s + self._parts.settings.need_repeat_s
        self._served[device] = _Served(need.blob, until_s, fresh, served.last)
        asked = Need(need.blob, tuple(fresh))
        return list(answer_need(fx.Device(device), asked, kept.header.blob, kept.data))

    def want(self, device: str, job_id: bytes, now_s: float) -> list[fx.Effect]:
        """An admitted device asks for a job; raises ProtocolError `want_too_often`."""
        if now_s < self._wanted.get(device, 0.0):
            raise ProtocolError("want_too_often")
        self._wanted[device] = now_s + self._parts.settings.want_repeat_s
        kept = [k for k in self._parts.memory.kept.values() if k.header.at.job_id == job_id]
        jobs = [k for k in kept if kind_of(k.header) == "job"]
        return [effect for job in jobs for effect in self.pass_on(fx.Device(device), job)]

    def welcome(self, device: str, open_rounds: Container[RoundKey]) -> list[fx.Effect]:
        """What a device that just came should know, jobs first.

        A round that takes no more uploads is not among it: work for it would be for nothing.
        """
        memory, out = self._parts.memory, list[fx.Effect]()
        for kept in sorted(memory.kept.values(), key=lambda k: _ORDER[kind_of(k.header)]):
            if kind_of(kept.header) != "round" or key_of(kept.header.at) in open_rounds:
                out += self.pass_on(fx.Device(device), kept)
        return out + [fx.Send(fx.Device(device), note) for note in memory.ended.values()]
