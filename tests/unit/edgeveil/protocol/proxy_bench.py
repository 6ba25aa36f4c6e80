"""A proxy's machine with a small fleet, brought to the state that a test is about."""

import hashlib

import protocol_kit as kit

from edgeveil.protocol import effects as fx
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.messages import Hello, PeerKeys
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_broadcasts import BroadcastPart, KeepBroadcast
from edgeveil.protocol.proxy_uploads import UploadPart

FLEET = [kit.member(number) for number in range(6)]
MODEL = b"sealed model"


def keep_order(_items):
    """No shuffle at all, so that a test sees what was put in."""


class Bench(ProxyMachine):
    """A machine whose host does its work at once, with files in memory.

    `handle` gives the effects of the event and of all outcomes; `hold_work` leaves the work undone.
    """

    def __init__(self, memory, shuffle, disk, **settings):
        registry = kit.FakeRegistry({m.id: m.key for m in FLEET})
        bounds = pr.ProxySettings(**({"packet_bytes": kit.PACKET_BYTES} | settings))
        super().__init__(kit.PROXY, PeerKeys.pinned(cloud=kit.CLOUD_KEY), registry, memory, bounds)
        self.disk, self.shuffle = disk or Disk(), shuffle
        self.hold_work = False

    def handle(self, event, now_s):
        out = []
        for effect in super().handle(event, now_s):
            out.append(effect)
            if isinstance(effect, fx.Persist):
                self.disk.store(effect.item)
            if isinstance(effect, fx.Work) and not self.hold_work:
                result = self.disk.perform(effect.task, self.shuffle)
                out += self.handle(fx.WorkDone(effect.task, result), now_s)
        return out


class Disk:
    """The bytes that a proxy's host would have in files."""

    def __init__(self):
        self.uploads = {}
        self.arriving = {}

    def store(self, item):
        match item:
            case UploadPart(at=where, offset=offset, data=data):
                _put(self.uploads.setdefault(where, bytearray()), offset, data)
            case BroadcastPart(digest=digest, offset=offset, data=data):
                _put(self.arriving.setdefault(digest, bytearray()), offset, data)

    def perform(self, task, shuffle):
        match task:
            case KeepBroadcast(signed=signed, header=header):
                data = bytes(self.arriving.pop(header.blob.digest))
                good = hashlib.sha256(data).digest() == header.blob.digest
                return (
                    pr.KeptBroadcast(signed, header, data) if good else fx.WorkFailed("bad_digest")
                )
            case pr.ShuffleRound():
                return self._shuffled(task, shuffle)
        raise AssertionError(task)

    def _shuffled(self, task, shuffle):
        groups = [[] for _ in task.segment_bytes]
        for slot, held in task.uploads:
            offset = slot * task.slot_bytes
            for g in held:
                size = task.segment_bytes[g]
                groups[g].append(bytes(self.uploads[task.at][offset : offset + size]))
                offset += size
        groups = [group if len(group) >= task.floor else [] for group in groups]
        for group in () if task.keep_order else groups:
            shuffle(group)
        data = b"".join(b"".join(group) for group in groups)
        return pr.ShuffledBatch(tuple(map(len, groups)), hashlib.sha256(data).digest(), data)


def _put(file, offset, data):
    file.extend(bytes(max(0, offset + len(data) - len(file))))
    file[offset : offset + len(data)] = data


def proxy(memory=None, shuffle=keep_order, disk=None, **settings):
    return Bench(memory, shuffle, disk, **settings)


def from_cloud(machine, message):
    return machine.handle(fx.MessageReceived(fx.CloudAddress(), message), 0.0)


def send(machine, who, message, now_s=0.0):
    return machine.handle(fx.MessageReceived(fx.DeviceAddress(who.id), message), now_s)


def send_note(machine, who, body, now_s=0.0):
    return send(machine, who, who.signer.note(body), now_s)


def send_offer(machine, who, header, data=b"", now_s=0.0):
    return send(machine, who, kit.offer(header, data, who.signer), now_s)


def hello(machine, who, now_s=0.0):
    return send_note(machine, who, Hello(who.id, knows=3), now_s)


def part_by_part(machine, header, data):
    """The cloud's broadcast comes in parts; what all devices hear of it."""
    out = from_cloud(machine, kit.offer(header))
    for part in kit.parts_of(header, data):
        out += from_cloud(machine, part)
    return to_devices(out)


def fire(machine, what, number=1, attempt=1):
    name = f"{what}:{kit.at().job_id.hex()}:{number}:{attempt}"
    return machine.handle(fx.Timer(name), 0.0)


def open_round(machine, header=None):
    return from_cloud(machine, kit.offer(header or kit.manifest(MODEL), MODEL))


def upload(machine, number, **changes):
    header, data = kit.upload_of(changes.pop("where", kit.at()), number + 1, **changes)
    return send_offer(machine, FLEET[number], header, data)


def to_devices(effects):
    return [e.message for e in effects if isinstance(e, fx.Send) and e.to == fx.AllDevices()]


def to_cloud(effects):
    return [e.message for e in effects if isinstance(e, fx.Send) and e.to == fx.CloudAddress()]
