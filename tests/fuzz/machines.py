"""Targets: the three machines, told by malicious peers whatever a tape says."""

from collections import Counter

from edgeveil.protocol import cloud_job as ct
from edgeveil.protocol import device as dt
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_broadcasts as pb
from edgeveil.protocol import proxy_rounds as pr
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.sealed import JobPackage, ReleasePackage, RoundPackage
from edgeveil.protocol.transfer import describe
from tests.fuzz.samples import GROUPS, JOB, PACKET_BYTES, device_id, manifest, signer
from tests.fuzz.scenario import PART_BYTES, SEALED_BYTES, TEXTS, Play, public_key
from tests.fuzz.target import Tape, Target, demand

_SPOOL_BYTES, _CACHE_BYTES, _CREDIT_BYTES = 1024, 1 << 14, 1024

# --- the device ----------------------------------------------------------------------------


def _device(data):
    tape = Tape(data)
    memory = dr.DeviceMemory(jobs={JOB: None} if tape.number(4) else {})
    settings = dr.DeviceSettings(PACKET_BYTES, blob_bytes=1 << 14, fetch_bytes=1 << 15, jobs=2)
    keys = m.PeerKeys.pinned(cloud=public_key("cloud"), proxy=public_key("proxy"))
    machine = DeviceMachine(signer("0"), keys, memory, settings)
    play = Play(machine, tape, _finish_device)
    play.run([fx.PeerConnected(fx.ProxyAddress())], (fx.ProxyAddress(),))
    trained = [count for mark, count in play.asked.items() if isinstance(mark, tuple)]
    demand(max(trained, default=0) <= 1, "a round is trained for once")
    demand(len(memory.jobs) <= settings.jobs, "so many jobs at most")
    claimed = sum(f.header.blob.size_bytes for f in machine.fetches.under_way.values())
    demand(claimed <= settings.fetch_bytes, "so many bytes under way at most")


def _finish_device(task, tape):
    match task:
        case dt.FindStanza():
            return dt.StanzaLook(bool(tape.number(2)))
        case dr.OpenPackage():
            packages = (
                RoundPackage("train", 1, False, b"", b""),
                JobPackage(b"{}", b""),
                ReleasePackage("job", b""),
                None,
            )
            return dr.OpenedPackage(tape.choice(packages), 0.5, tape.choice((0.0, 1.0)))
        case dr.ComputeAnswer() | dr.SealDummies() if tape.number(4):
            text = bytes((tape.number(256),)) * sum(SEALED_BYTES)
            marks = (bytes(32), text[:32])
            return dr.SealedAnswer(
                (0, 1), SEALED_BYTES, text, marks, isinstance(task, dr.SealDummies)
            )
        case dr.ComputeAnswer() | dr.SealDummies():
            return dr.NoAnswer("no")
    return dt.Installation()


# --- the proxy -----------------------------------------------------------------------------


class _Registry:
    def verify_key(self, device):
        number = next((n for n in range(3) if device_id(n) == device), None)
        return None if number is None else public_key(f"device {number}")

    lineage = "5e" * 16

    def roster_expires_s(self):
        return 0.0

    def roster(self):
        return 1, bytes(96)

    def admitted(self):
        return [device_id(number) for number in range(3)]


def _proxy(data):
    tape = Tape(data)
    settings = pr.ProxySettings(
        packet_bytes=PACKET_BYTES,
        blob_bytes=1 << 13,
        upload_bytes=1 << 12,
        spool_bytes=_SPOOL_BYTES,
        cache_bytes=_CACHE_BYTES,
        credit_bytes=_CREDIT_BYTES,
        min_batch_floor=2,
        ended_kept=2,
        cover_window_s=tape.choice((0.0, 0.0, 5.0)),
    )
    machine = ProxyMachine(
        signer("proxy"), m.PeerKeys.pinned(cloud=public_key("cloud")), _Registry(), None, settings
    )
    play = Play(machine, tape, _finish_proxy)
    starts = []
    if tape.number(4):  # usually a round is open
        header = _round()
        starts.append(
            fx.MessageReceived(fx.CloudAddress(), m.Offer(signer("cloud").header(header), b"blob"))
        )
    devices = tuple(fx.DeviceAddress(device_id(number)) for number in (0, 1, 2, 9))
    play.run(starts, (fx.CloudAddress(), *devices))
    demand(machine.rounds.spooled_bytes <= _SPOOL_BYTES, "the spool has a bound")
    demand(machine.broadcasts.cached_bytes <= _CACHE_BYTES, "the cache has a bound")
    demand(machine.uploads.credit.granted_bytes <= _CREDIT_BYTES + 1024, "the credit has a bound")
    demand(machine.online <= {device_id(number) for number in range(3)}, "admitted devices alone")
    demand(len(machine.memory.ended) <= 2, "so many ends at most")
    kept = Counter((i.at, i.device) for i in play.stored if isinstance(i, pr.UploadKept))
    closed = Counter(item.at for item in play.stored if isinstance(item, pr.RoundDropped))
    once = all(count <= 1 + closed[at] for (at, _), count in kept.items())
    demand(once, "one upload of each device in a round")


def _round():
    return manifest(blob=describe(b"blob", PART_BYTES))


def _finish_proxy(task, tape):
    match task:
        case pb.KeepBroadcast(signed=signed, header=header):
            known = {describe(text, 1).digest: text for text in TEXTS}
            text = known.get(header.blob.digest)
            return (
                fx.WorkFailed("bad_digest")
                if text is None
                else pr.KeptBroadcast(signed, header, text)
            )
        case pr.ShuffleRound(uploads=uploads):
            counts = tuple(sum(g in groups for _, groups in uploads) for g in range(len(GROUPS)))
            sizes = zip(counts, SEALED_BYTES, strict=True)
            text = bytes((tape.number(256),)) * sum(count * size for count, size in sizes)
            return pr.ShuffledBatch(counts, describe(text, 1).digest, text)
    return fx.WorkFailed("unknown_task")


# --- the cloud -----------------------------------------------------------------------------


def _cloud(data):
    tape = Tape(data)
    settings = ct.CloudSettings(PACKET_BYTES, blob_bytes=1 << 13, spool_bytes=1 << 13)
    machine = CloudMachine(
        signer("cloud"), {"": m.PeerKeys.pinned(proxy=public_key("proxy"))}, settings
    )
    play = Play(machine, tape, _finish_cloud)
    start = fx.Command(ct.StartJob(JOB, 1, 1, rounds=2, retries=2))
    play.run([fx.PeerConnected(fx.ProxyAddress()), start], (fx.ProxyAddress(),))
    ends = [item for item in play.stored if isinstance(item, ct.JobStatus)]
    demand(len(ends) <= 1, "a job ends once")
    parts = [item for item in play.stored if isinstance(item, ct.BatchPart)]
    furthest = max((part.offset + len(part.data) for part in parts), default=0)
    demand(furthest <= settings.spool_bytes, "a batch has a bound")


def _finish_cloud(task, tape):
    if not tape.number(8):
        return ct.Obstacle("no room")
    match task:
        case ct.SealRound(job_id=job, round=number, attempt=attempt):
            return _sealed("round", m.RoundId(job, number, attempt), tape)
        case ct.SealJob(job_id=job):
            return _sealed("job", m.RoundId(job, 0, 1), tape)
        case ct.SealRelease(job_id=job):
            return _sealed("release", m.RoundId(job, 0, 2), tape)
        case ct.Absorb(at=at) if tape.number(4):
            return ct.RoundCommit(m.Commit(at, 1, describe(bytes(32), PART_BYTES)), bytes(32))
    return ct.TooFewUploads("too few")


def _sealed(kind, at, tape):
    text = tape.choice(TEXTS[1:])
    return ct.CellBroadcasts(
        {"": ct.Broadcast(manifest(kind, at, 1, describe(text, PART_BYTES)), text)}
    )


def _tapes():
    yield b"\1" * 60
    yield bytes(range(1, 250))
    yield bytes(range(250, 3, -1))
    yield bytes((7 * n) % 256 for n in range(300))
    yield bytes((n * n) % 251 for n in range(300))


TARGETS = {
    "device": Target(_device, _tapes, (), max_bytes=512),
    "proxy": Target(_proxy, _tapes, (), max_bytes=512),
    "cloud": Target(_cloud, _tapes, (), max_bytes=512),
}
