"""A device's machine, brought to the state that a test is about."""

import copy
import hashlib

import protocol_kit as kit

from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import DeviceMachine
from edgeveil.protocol.messages import PeerKeys
from edgeveil.protocol.sealed import RoundPackage

ME = kit.member(0)
MODEL = b"sealed model"
PACKAGE = RoundPackage("train", 1, False, b"", b"")
SEGMENTS = tuple(bytes((65 + g,)) * size for g, size in enumerate(kit.SEALED_BYTES))
MARKS = tuple(hashlib.sha256(segment).digest() for segment in SEGMENTS)
SEALED = dr.SealedAnswer((0, 1, 2), kit.SEALED_BYTES, b"".join(SEGMENTS), MARKS)


def device(memory=None, data_set=b"", sealing=(), **settings):
    bounds = dr.DeviceSettings(**({"packet_bytes": kit.PACKET_BYTES} | settings))
    memory = dr.DeviceMemory(jobs={kit.JOB: None}) if memory is None else memory
    keys = PeerKeys.pinned(cloud=kit.CLOUD_KEY, proxy=kit.PROXY_KEY)
    return DeviceMachine(ME.signer, keys, memory, bounds, data_set, sealing)


def receive(machine, message, now_s=0.0):
    return machine.handle(fx.MessageReceived(fx.ProxyAddress(), message), now_s)


def done(machine, task, result, now_s=0.0):
    return machine.handle(fx.WorkDone(task, result), now_s)


def fire(machine, name):
    return machine.handle(own(name) if name in ("resend", "deadline") else fx.Timer(name), 0.0)


def own(name, job=kit.JOB):
    return fx.Timer(dr.timer_name(name, job))


def work_on(machine, header, data=MODEL):
    """The round's model arrives and opens; the effects ask for the work."""
    receive(machine, kit.offer(header, data))
    return done(machine, dr.OpenPackage(header, data), dr.OpenedPackage(PACKAGE))


def upload(machine, header=None):
    header = header or kit.manifest(MODEL)
    work_on(machine, header)
    return done(machine, dr.ComputeAnswer(header, PACKAGE), SEALED)


def snapshot(machine):
    """Everything that a refused message must leave alone."""
    memory = copy.deepcopy(machine.memory)
    rounds = [(one.state, one.manifest) for one in machine.rounds if not one.is_over]
    return rounds, memory, list(machine.fetches.under_way)
