"""The proxy's broadcast side: keep what the cloud sends, serve identical bytes to every device."""

from __future__ import annotations

import hashlib

from fl_core.crypto.labels import HEADER
from fl_core.errors import ProtocolError
from fl_core.protocol import effects as fx
from fl_core.protocol.blob import NEED_LIMIT
from fl_core.protocol.codec import decode_header
from fl_core.protocol.envelope import check
from fl_core.protocol.messages import Close, Commit, Manifest, Need, Note, Offer, Part
from fl_core.protocol.proxy_rounds import Rounds
from fl_core.protocol.proxy_tasks import JobEnded, Kept, ProxyParts, key_of
from fl_core.protocol.transfer import Fetch, answer_need, check_fetchable, first_data, sends

_ORDER = {"job": 0, "round": 1, "release": 2, "commit": 3}


class Broadcasts:
    """What devices may ask for. A complete round's manifest opens the round."""

    def __init__(self, parts: ProxyParts, rounds: Rounds) -> None:
        self._parts, self._rounds = parts, rounds
        self.arriving: dict[bytes, Fetch] = {}  # by blob digest
        # Per device: the blob, until when, and the parts it was last sent.
        self._served: dict[str, tuple[bytes, float, frozenset[int]]] = {}

    # --- from the cloud ---

    def offer(self, offer: Offer) -> list[fx.Effect]:
        """The cloud offers a broadcast, perhaps with the whole blob inside."""
        check(offer.header, "cloud", self._parts.cloud_key, HEADER)
        header = decode_header(offer.header)
        if not isinstance(header, Manifest | Commit):
            raise ProtocolError("unexpected_header")
        digest = header.blob.digest
        for kept in self._parts.memory.kept.values():
            if _slot(kept.header) == _slot(header):
                if kept.signed.payload == offer.header.payload:
                    return [fx.Send(fx.Cloud(), self._parts.ack(digest, "held"))]
                return self._refuse(digest, "forked_manifest")
        reason = self._why_not(header)
        if reason:
            return self._refuse(digest, reason)
        check_fetchable(offer, header.blob, self._parts.settings.blob_bytes)
        self._forget_fetches(header)
        if digest not in self.arriving:
            self.arriving[digest] = Fetch(offer, header, self._parts.settings.blob_bytes)
        fetch = self.arriving[digest]
        complete = False
        for part in first_data(offer, header.blob):
            complete = fetch.add(part)
        if complete:
            return self._keep(fetch)
        return [fx.SetTimer("repair", self._parts.settings.repair_s)]

    def _why_not(self, header: Manifest | Commit) -> str:
        """The reason to refuse a broadcast, or an empty string."""
        kind = _kind(header)
        if kind != "release" and header.at.job_id in self._parts.memory.ended:
            return "closed_job"
        if isinstance(header, Commit):
            return ""
        if kind != "round":
            kept = [k.header for k in self._parts.memory.kept.values()]
            newer = [h for h in kept if isinstance(h, Manifest) and h.sequence > header.sequence]
            over = any(_supersedes(header, old) for old in newer)
            return f"replayed_{kind}" if over else ""
        if (header.at.round, header.at.attempt) < self._rounds.newest(header.at.job_id):
            return "replayed_round"
        if header.selected < max(header.min_batch, self._parts.settings.min_batch_floor):
            return "selected_below_floor"
        return ""

    def _forget_fetches(self, header: Manifest | Commit) -> None:
        """The cloud has moved on: what it no longer offers cannot be completed."""
        for digest, fetch in list(self.arriving.items()):
            old = fetch.header
            if isinstance(old, Manifest | Commit) and header != old and _supersedes(header, old):
                del self.arriving[digest]

    def _refuse(self, digest: bytes, reason: str) -> list[fx.Effect]:
        return [
            fx.Refuse(reason),
            fx.Send(fx.Cloud(), self._parts.ack(digest, "refused", reason)),
        ]

    def part(self, part: Part) -> list[fx.Effect]:
        """A part of a broadcast under way."""
        fetch = self.arriving.get(part.blob)
        if fetch is None:
            return []
        if fetch.add(part):
            return self._keep(fetch)
        need = fetch.next_need(timer=False)
        return [fx.Send(fx.Cloud(), need)] if need else []

    def _keep(self, fetch: Fetch) -> list[fx.Effect]:
        """The whole blob is here: keep it, say so, open the round, pass it on."""
        data = fetch.assembly.finish()
        header = fetch.header
        if not isinstance(header, Manifest | Commit):
            return []
        del self.arriving[header.blob.digest]
        kept = Kept(fetch.offer.header, header, data)
        out: list[fx.Effect] = self._make_room(header)
        self._parts.memory.kept[header.blob.digest] = kept
        out += [fx.Store(kept), fx.Send(fx.Cloud(), self._parts.ack(header.blob.digest, "held"))]
        if isinstance(header, Commit):
            out += self._rounds.drop(header.at)
        elif header.kind == "round":
            out += self._rounds.begin(header)
        return out + self._pass_on(fx.AllDevices(), kept)

    def _make_room(self, header: Manifest | Commit) -> list[fx.Effect]:
        """A new round of a job ends its earlier ones; of broadcasts only the newest stays."""
        memory = self._parts.memory
        memory.kept = {d: k for d, k in memory.kept.items() if not _supersedes(header, k.header)}
        return self._rounds.drop_job(header.at.job_id) if _kind(header) == "round" else []

    def close(self, close: Close, note: Note) -> list[fx.Effect]:
        """A job ended: forget all of it but the release, tell the devices, say that we heard."""
        memory, job_id = self._parts.memory, close.job_id
        out: list[fx.Effect] = []
        if job_id not in memory.ended:
            out += self._rounds.drop_job(job_id)
            self.arriving = {d: f for d, f in self.arriving.items() if not _of_job(f, job_id)}
            memory.kept = {
                digest: kept
                for digest, kept in memory.kept.items()
                if kept.header.at.job_id != job_id or _kind(kept.header) == "release"
            }
            memory.ended[job_id] = note
            while len(memory.ended) > self._parts.settings.ended_kept:
                del memory.ended[next(iter(memory.ended))]
            out += [fx.Store(JobEnded(job_id, note)), fx.Send(fx.AllDevices(), note)]
        digest = hashlib.sha256(note.body.payload).digest()
        return [*out, fx.Send(fx.Cloud(), self._parts.ack(digest, "held"))]

    def repair(self) -> list[fx.Effect]:
        """Ask the cloud for what did not come."""
        if not self.arriving:
            return []
        needs = [fetch.next_need(timer=True) for fetch in self.arriving.values()]
        out: list[fx.Effect] = [fx.Send(fx.Cloud(), need) for need in needs if need]
        return [*out, fx.SetTimer("repair", self._parts.settings.repair_s)]

    # --- to devices ---

    def _pass_on(self, to: fx.Address, kept: Kept) -> list[fx.Effect]:
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
        blob, until_s, sent = self._served.get(device, (b"", 0.0, frozenset[int]()))
        if blob != need.blob or now_s >= until_s:
            sent = frozenset()
        fresh = frozenset(sorted(set(need.indices) - sent)[:NEED_LIMIT])
        if not fresh:
            return []
        repeat_s = self._parts.settings.need_repeat_s
        self._served[device] = (need.blob, now_s + repeat_s, fresh)
        asked = Need(need.blob, tuple(fresh))
        return list(answer_need(fx.Device(device), asked, kept.header.blob, kept.data))

    def want(self, device: str, job_id: bytes) -> list[fx.Effect]:
        """A device asks for a job."""
        kept = [k for k in self._parts.memory.kept.values() if k.header.at.job_id == job_id]
        jobs = [k for k in kept if _kind(k.header) == "job"]
        return [effect for job in jobs for effect in self._pass_on(fx.Device(device), job)]

    def welcome(self, device: str) -> list[fx.Effect]:
        """What a device that just came should know, jobs first."""
        memory, out = self._parts.memory, list[fx.Effect]()
        for kept in sorted(memory.kept.values(), key=lambda k: _ORDER[_kind(k.header)]):
            out += self._pass_on(fx.Device(device), kept)
        return out + [fx.Send(fx.Device(device), note) for note in memory.ended.values()]


def _kind(header: Manifest | Commit) -> str:
    return "commit" if isinstance(header, Commit) else header.kind


def _slot(header: Manifest | Commit) -> tuple[object, ...]:
    """The place of which there is only one: a second, different header there is a fork."""
    return (_kind(header), *key_of(header.at))


def _of_job(fetch: Fetch, job_id: bytes) -> bool:
    return isinstance(fetch.header, Manifest | Commit) and fetch.header.at.job_id == job_id


def _supersedes(new: Manifest | Commit, old: Manifest | Commit) -> bool:
    """Only the newest release stays; of a job, its announcement, newest round and its commit."""
    same_job = new.at.job_id == old.at.job_id
    match _kind(new):
        case "release":
            return _kind(old) == "release"
        case "job":
            return same_job and _kind(old) == "job"
        case "round":
            return same_job and _kind(old) in ("round", "commit")
    return False
