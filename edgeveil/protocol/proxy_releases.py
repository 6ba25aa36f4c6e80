"""Releases at the proxy: devices' reports on them, handed over mixed, and the cloud's statement.

Theory of operation. A device's report is kept in memory alone, one for each device and release, and
acknowledged when the cloud has it; until then the device says it again, so a proxy that starts anew
loses nothing. Reports are handed over together, at least as many as a batch has, sorted by their
ciphertext, and of no release that was sealed for fewer devices than a round selects: what the cloud
counts is then never one device's. Every device reports, those that could not open the release a
dummy, so who was among the first ones is not seen here.

Of the cloud's statements the newest is kept, passed on, and told to whoever comes. A release that
it withdraws is served no more.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, field

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import (
    REPORT_BYTES,
    Ack,
    ExchangeId,
    Manifest,
    Note,
    ReleaseReport,
    ReleaseReports,
    ReleaseStatement,
    wants_reports,
)
from edgeveil.protocol.proxy_tasks import KeptBroadcast, ProxyContext, ReleaseStated

_FRAME_BYTES = 1024  # of a note, beside its reports
_EACH_BYTES = REPORT_BYTES + 8
_AT_ONCE = 4096


@dataclass
class _Reports:
    """Of one release: what each device said, by its note's digest, and what the cloud has."""

    waiting: dict[str, tuple[bytes, bytes]] = field(default_factory=dict)  # (note digest, sealed)
    told: dict[str, bytes] = field(default_factory=dict)  # device -> its note's digest
    under_way: tuple[Note, dict[str, tuple[bytes, bytes]]] | None = None


class ProxyReleases:
    """Reports and the statement. One timer, `reports`."""

    def __init__(self, context: ProxyContext) -> None:
        self._context = context
        self._of: dict[ExchangeId, _Reports] = {}

    # --- reports ---

    def report(self, device: str, report: ReleaseReport, note: Note) -> list[fx.Effect]:
        """A device's report, verified to be its own. Raises ProtocolError `wrong_size`."""
        digest = hashlib.sha256(note.body.payload).digest()
        release = self._release(report.at)
        if release is None:
            return [self._ack(device, digest, "closed")]
        if len(report.sealed) != REPORT_BYTES:
            raise ProtocolError("wrong_size")
        self._of = {at: one for at, one in self._of.items() if self._release(at)}
        reports = self._of.setdefault(report.at, _Reports())
        if device in reports.told:  # the first one counts
            return [self._ack(device, digest, "held")]
        if reports.under_way is not None and device in reports.under_way[1]:
            return []
        reports.waiting.setdefault(device, (digest, report.sealed))
        out = self._hand_over(release) if self._all_said(reports) else []
        return [*out, fx.SetTimer("reports", self._context.settings.resend_s)]

    def look(self) -> list[fx.Effect]:
        """The timer: hand over what waits, or what the cloud did not acknowledge, again."""
        out: list[fx.Effect] = []
        for at, reports in self._of.items():
            release = self._release(at)
            if reports.under_way is not None:
                out.append(fx.Send(fx.CloudAddress(), reports.under_way[0]))
            elif release is not None:
                out += self._hand_over(release)
        return [*out, fx.SetTimer("reports", self._context.settings.resend_s)] if out else []

    def acknowledged(self, ack: Ack) -> list[fx.Effect] | None:
        """The cloud has what was handed over, and its devices hear so; None for anything else."""
        for at, reports in self._of.items():
            if reports.under_way is None:
                continue
            note, handed = reports.under_way
            if hashlib.sha256(note.body.payload).digest() != ack.blob:
                continue
            reports.under_way = None
            reports.told |= {device: digest for device, (digest, _) in handed.items()}
            told = [self._ack(device, digest, "held") for device, (digest, _) in handed.items()]
            release = self._release(at)
            more = self._hand_over(release) if release else []
            again = fx.SetTimer("reports", self._context.settings.resend_s)
            return [*told, *more, *([again] if more else [])]
        return None

    def _hand_over(self, release: Manifest) -> list[fx.Effect]:
        reports, context = self._of[release.at], self._context
        floor = context.settings.min_batch_floor
        # The last few follow once nobody is left for whom they could wait.
        rest = reports.told and self._all_said(reports)
        few = len(reports.waiting) < (1 if rest else floor) or release.selected < floor
        if few or reports.under_way is not None:
            return []
        most = min(_AT_ONCE, (context.settings.packet_bytes - _FRAME_BYTES) // _EACH_BYTES)
        handed = dict(sorted(reports.waiting.items(), key=lambda one: one[1][1])[: max(most, 1)])
        for device in handed:
            del reports.waiting[device]
        sealed = tuple(sealed for _, sealed in handed.values())
        note = context.signer.note(ReleaseReports(release.at, sealed))
        reports.under_way = note, handed
        return [fx.Send(fx.CloudAddress(), note)]

    def _all_said(self, reports: _Reports) -> bool:
        """Whether every device that is there has said what became of the release."""
        return len(reports.waiting) + len(reports.told) >= len(self._context.online)

    def _release(self, at: ExchangeId) -> Manifest | None:
        """The release of these numbers, if it is kept and asks for reports."""
        for kept in self._context.memory.kept.values():
            header = kept.header
            if isinstance(header, Manifest) and header.at == at and wants_reports(header):
                return header
        return None

    def _ack(self, device: str, digest: bytes, status: str) -> fx.Effect:
        return fx.Send(fx.DeviceAddress(device), self._context.ack(digest, status))

    # --- the cloud's statement ---

    def stated(self, said: ReleaseStatement, note: Note) -> list[fx.Effect]:
        """Keep the newest, pass it on. Raises ProtocolError `replayed_statement` or
        `far_sequence`."""
        memory = self._context.memory
        if self._context.is_far(said.number):
            raise ProtocolError("far_sequence")
        known = self.number()
        if said.number < known:
            raise ProtocolError("replayed_statement")
        digest = hashlib.sha256(note.body.payload).digest()
        held = fx.Send(fx.CloudAddress(), self._context.ack(digest, "held"))
        if said.number == known:
            return [held]
        memory.statement = note
        gone = [d for d, kept in memory.kept.items() if _is_withdrawn(kept, said)]
        for blob in gone:
            del memory.kept[blob]
        return [
            fx.Persist(ReleaseStated(note, tuple(gone))),
            held,
            fx.Send(fx.AllDevices(), note),
        ]

    def welcome(self, device: str) -> list[fx.Effect]:
        """What a device that came should know of releases."""
        note = self._context.memory.statement
        return [fx.Send(fx.DeviceAddress(device), note)] if note else []

    def withdrawn(self, header: Manifest) -> bool:
        """Whether the cloud has taken this release back."""
        said = self._said()
        return said is not None and header.sequence in said.withdrawn

    def number(self) -> int:
        """Of the newest statement; -1 without one."""
        said = self._said()
        return -1 if said is None else said.number

    def _said(self) -> ReleaseStatement | None:
        """The newest statement; none where its key counts no more, for numbers begin anew then, or
        where no cloud's clock can have given its number."""
        note = self._context.memory.statement
        with suppress(ProtocolError):
            said = self._context.keys.cloud_body(note.body) if note else None
            if isinstance(said, ReleaseStatement) and not self._context.is_far(said.number):
                return said
        return None


def _is_withdrawn(kept: KeptBroadcast, said: ReleaseStatement) -> bool:
    header = kept.header
    return isinstance(header, Manifest) and (
        header.kind == "release" and header.sequence in said.withdrawn
    )
