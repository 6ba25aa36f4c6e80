"""A scenario for one machine: what malicious peers say, in an order that a tape decides.

Messages have headers and bodies that are damaged and signed again, by whom they should be or by
somebody else. Parts, requests, timers and outcomes of work come in any order.
"""

import re
import zlib
from collections import Counter
from functools import cache, lru_cache

from edgeveil.crypto.keys import sign
from edgeveil.crypto.labels import BODY, HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.messages import decode, encode, encode_inner
from edgeveil.protocol.transfer import NEED_LIMIT, describe
from edgeveil_lab.load.device import SharedVerifyKey
from tests.fuzz.samples import BODIES, GROUPS, JOB, PACKET_BYTES, manifest, signer, signing_key
from tests.fuzz.target import demand

PART_BYTES = 256
SEALED_BYTES = tuple(group.padded_bytes + m.SEAL_OVERHEAD_BYTES for group in GROUPS)
TEXTS = (b"", b"blob", bytes(sum(SEALED_BYTES)), bytes(range(256)) * 9)
_SIGNERS = ("cloud", "proxy", "0", "1", "2", "9")  # number 9 was never admitted
_EVENTS = 16
_SENDS = 64  # of one event; more would be an amplifier
_SLUG = re.compile(r"[a-z0-9_]{1,64}")
_OTHER_JOB = b"another job, 16."


def _at(tape):
    job = JOB if tape.number(4) else _OTHER_JOB
    return m.RoundId(job, tape.choice((1, 2, 0, 2**31)), 1 + tape.number(3))


def _header(tape, text):
    at, blob = _at(tape), describe(text, tape.choice((PART_BYTES, 1024, 300)))
    digest = describe(tape.choice(TEXTS), 1).digest
    blob = tape.choice((blob, blob, blob, m.Blob(digest, tape.number(2**40), blob.part_bytes)))
    match tape.number(8):
        case 0 | 1 | 2:
            return manifest("round", at, tape.number(8), blob)
        case 3:
            return manifest("job", at, tape.number(8), blob)
        case 4:
            return manifest("release", at, tape.number(8), blob)
        case 5:
            return m.Upload(at, tape.choice(((0, 1), (0,), (1, 0), (0, 0), (0, 900))), blob)
        case 6:
            return m.Batch(at, 3, 0, (3, 3), blob)
        case _ if tape.number(2):
            return m.Roster(tape.number(4), blob)
    return m.Commit(at, 1, blob)


def _body(tape, known):
    match tape.number(6):
        case 0:
            return m.Ack(
                tape.choice(known), tape.choice(("held", "duplicate", "closed", "refused"))
            )
        case 1:
            return m.Decline(_at(tape))
        case 2:
            return m.Close(tape.choice((JOB, _OTHER_JOB)), "completed")
        case 3:
            return m.Shortfall(_at(tape), tape.number(4), tape.number(4))
        case _:
            return tape.choice(BODIES)


def _signed(tape, inner, by, label):
    payload = tape.damaged(encode_inner(inner), 1) if not tape.number(8) else encode_inner(inner)
    named = signer(by).name
    key = by if tape.number(16) else tape.choice(_SIGNERS)
    key = f"device {key}" if key.isdigit() else key
    return m.Envelope(named, payload, _signature(key, label, payload))


@cache
def public_key(name):
    return SharedVerifyKey(signing_key(name).public().to_bytes())


@lru_cache(maxsize=10_000)
def _signature(key, label, payload):
    return sign(signing_key(key), label, payload)


class Play:
    def __init__(self, machine, tape, finish):
        self.machine, self.tape, self._finish = machine, tape, finish
        self.now_s = 0.0
        self.timers = []
        self.works = []
        self.known = [describe(text, 1).digest for text in TEXTS]
        self.stored = []
        self.asked = Counter()

    def run(self, starts, peers):
        for event in starts:
            self._tell(event)
        for _ in range(_EVENTS):
            if self.tape.over:
                return
            self._tell(self._event(peers))

    def _event(self, peers):
        tape = self.tape
        self.now_s += tape.choice((0.0, 0.0, 0.5, 7.0))
        what = tape.number(8)
        if what == 0 and self.timers:
            return fx.Timer(self.timers.pop(tape.number(len(self.timers))))
        if what <= 2 and self.works:
            task = self.works.pop(tape.number(len(self.works)))
            failed = not tape.number(4)
            return fx.WorkDone(
                task, fx.WorkFailed("no_luck") if failed else self._finish(task, tape)
            )
        peer = tape.choice(peers)
        if what == 3 and not tape.number(4):
            return fx.PeerConnected(peer)
        return fx.MessageReceived(peer, self._message(peer))

    def _message(self, peer):
        tape = self.tape
        own = {fx.CloudAddress: "cloud", fx.ProxyAddress: "proxy"}.get(type(peer))
        if own is None:
            own = next(
                (one for one in _SIGNERS if signer(one).name == getattr(peer, "id", "")), "9"
            )
        by = own if tape.number(8) else tape.choice(_SIGNERS)
        text = tape.choice(TEXTS)
        match tape.number(8):
            case 0 | 1 | 2:
                if isinstance(peer, fx.ProxyAddress) and tape.number(4):
                    by = tape.choice(("cloud", "proxy"))  # what the proxy passes on
                data = tape.choice((text, b"", text[:-1]))
                header = _signed(tape, _header(tape, text), by, HEADER)
                return m.Offer(header, data[: PACKET_BYTES // 2])
            case 3 | 4:
                return m.Note(_signed(tape, _body(tape, self.known), by, BODY))
            case 5:
                return self._part(text)
            case 6:
                indices = tuple(tape.number(12) for _ in range(tape.number(20)))
                return m.Need(tape.choice(self.known), indices)
            case _:
                try:
                    return decode(b"\1" + tape.take(64), PACKET_BYTES)
                except ProtocolError:
                    return self._part(text)

    def _part(self, text):
        tape = self.tape
        index, size = tape.number(10), tape.choice((PART_BYTES, 1024, 300))
        piece = text[index * size : (index + 1) * size] if tape.number(4) else tape.take(8)
        return m.BlobPart(describe(text, 1).digest, index, zlib.crc32(piece), piece)

    def _tell(self, event):
        effects = self.machine.handle(event, self.now_s)
        sends = [effect for effect in effects if isinstance(effect, fx.Send)]
        demand(len(sends) <= _SENDS, "one event has few answers")
        for send in sends:
            demand(len(encode(send.message)) <= PACKET_BYTES, "what is sent fits a packet")
            if isinstance(send.message, m.Offer) and send.message.header.signer != "cloud":
                self.known.append(describe(send.message.data, 1).digest)
        for one in {send.to for send in sends if isinstance(send.to, fx.DeviceAddress)}:
            parts = [s for s in sends if s.to == one and isinstance(s.message, m.BlobPart)]
            demand(len(parts) <= NEED_LIMIT, "no more parts than the credit")
        for effect in effects:
            match effect:
                case fx.SetTimer(name=name, delay_s=delay_s):
                    demand(0 <= delay_s <= 11 * 86400, "a timer ends")
                    self.timers = [one for one in self.timers if one != name] + [name]
                case fx.CancelTimer(name=name):
                    self.timers = [one for one in self.timers if one != name]
                case fx.Work(task=task):
                    self.works.append(task)
                    self.asked[_mark(task)] += 1
                case fx.Persist(item=item):
                    self.stored.append(item)
                case fx.Refuse(reason=reason):
                    demand(bool(_SLUG.fullmatch(reason)), "a reason is a slug")


def _mark(task):
    """Of work that must not be asked for twice: which; of other work its kind."""
    return ("train", task.manifest.at) if isinstance(task, dr.ComputeAnswer) else type(task)
