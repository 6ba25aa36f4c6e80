"""A cloud's machine, brought to the state that a test is about."""

import protocol_kit as kit

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CloudMachine
from edgeveil.protocol.messages import Ack, Batch, PeerKeys, RoundId
from edgeveil.protocol.transfer import describe

OTHER = b"K" * 16
START = cj.StartJob(kit.JOB, 1, 1, rounds=2, retries=1)


def cloud(**settings):
    bounds = cj.CloudSettings(**({"packet_bytes": kit.PACKET_BYTES} | settings))
    return CloudMachine(kit.CLOUD, {"": PeerKeys.pinned(proxy=kit.PROXY_KEY)}, bounds)


def start(machine, what=START):
    return machine.handle(fx.Command(what), 0.0)


def receive(machine, message):
    return machine.handle(fx.MessageReceived(fx.ProxyAddress(), message), 0.0)


def done(machine, task, result):
    return machine.handle(fx.WorkDone(task, result), 0.0)


def fire(machine, name, job=kit.JOB):
    beside = name in ("close", "release", "statement", "roster")
    return machine.handle(fx.Timer(cj.timer_name(name, b"" if beside else job)), 0.0)


def state(machine, job=kit.JOB):
    """Where the job stands; `IDLE` if it does not run."""
    return machine.runs[job].state if job in machine.runs else cj.CloudState.IDLE


def ack(header, status="held", reason=""):
    return kit.PROXY.note(Ack(header.blob.digest, status, reason))


def sealed(task, size=30):
    """What the host makes of a sealing task; the bytes differ for each."""
    data = repr(task).encode().ljust(size, b".")
    match task:
        case cj.SealRound(job_id, round_, attempt):
            return kit.manifest(data, RoundId(job_id, round_, attempt)), data
        case cj.SealRelease(job_id):
            return kit.manifest(data, RoundId(job_id, 0, 1), kind="release"), data
        case cj.SealJob(job_id):
            return kit.manifest(data, RoundId(job_id, 0, 0), kind="job"), data
    raise TypeError(task)


def seal(machine, task, size=30):
    header, data = sealed(task, size)
    return header, done(machine, task, cj.CellBroadcasts({"": cj.Broadcast(header, data)}))


def broadcast(machine, task):
    return receive(machine, ack(seal(machine, task)[0]))


def batch(where=None, fill=b"a", size=90):
    data = fill * size
    return Batch(where or kit.at(), 3, 0, (3,), describe(data, kit.PART_BYTES)), data


def waiting(machine=None, what=START):
    machine = machine or cloud()
    start(machine, what)
    broadcast(machine, cj.SealJob(kit.JOB))
    broadcast(machine, cj.SealRound(kit.JOB, what.round, what.attempt))
    return machine


def both_waiting(**settings):
    machine = cloud(**settings)
    for job in (kit.JOB, OTHER):
        start(machine, cj.StartJob(job, 1, 1, rounds=1, retries=1))
        broadcast(machine, cj.SealJob(job))
        broadcast(machine, cj.SealRound(job, 1, 1))
    return machine


def hand_over(machine, where=None):
    header, data = batch(where)
    return receive(machine, kit.offer(header, data, kit.PROXY))


def absorbing(where=None):
    return cj.Absorb({"": batch(where)[0]})


def absorb(machine, where=None):
    where = where or kit.at()
    hand_over(machine, where)
    record, data = kit.commit_of(where, [b"a", b"b"])
    return done(machine, absorbing(where), cj.RoundCommit(record, data))
