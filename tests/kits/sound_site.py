"""The disks of a correct site after one completed job, on which checks find no fault."""

from hashlib import sha256

import numpy as np

from edgeveil.jobs import load_plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.privacy.ledger_chain import JobAccount, PricedAnswer
from edgeveil.protocol.tensors import pack_tensors
from edgeveil_cloud.commit_round import aggregate
from edgeveil_cloud.validate_batch import ValidatedBatch
from edgeveil_edge.store import UploadReceipt
from tests.chaos.__main__ import JOB
from tests.chaos.evidence import CommittedRound, DeviceFacts, Evidence, JobFacts

PLAN = load_plan(JOB)
DEVICES = 4
NAME = "chaos-0001"
LARGEST = 1 << 28  # in whole steps
ROUNDS = range(1, len(PLAN.all_rounds) + 1)


def segments(device, index):
    groups = PLAN.groups(PLAN.round(index))
    return tuple(sha256(f"{device} {index} {k}".encode()).digest() for k in range(len(groups)))


def sound(cells=("",)):
    numbers = range(DEVICES * len(cells))
    accepted = {index: tuple(h for n in numbers for h in segments(n, index)) for index in ROUNDS}
    commits = tuple(
        CommittedRound(index, 1, len(numbers), accepted[index], float(index), tuple(cells))
        for index in ROUNDS
    )
    state = state_of(numbers, devices=len(numbers))
    job = JobFacts(NAME, "completed", "", PLAN, commits, "digest", state)
    devices = tuple(device_of(job, number, cells[number % len(cells)]) for number in numbers)
    logs = {"cloud": "running", "worker-1": "box-1: counted"}
    return Evidence((job,), devices, logs, cells=tuple(cells))


def tensors(device, index):
    random = np.random.default_rng((device, index))
    specs = PLAN.segments(PLAN.round(index))
    spread = {True: float(LARGEST), False: 1.0}  # of what is summed under masks, and of the rest
    return {s.name: random.normal(0, spread[s.bits > 0], s.shape).astype(s.dtype) for s in specs}


def state_of(counted, only=None, devices=DEVICES):
    """Return the state as the cloud computes it; rounds other than `only` count all `devices`."""
    state = PLAN.cloud.initial_state()
    for index in ROUNDS:
        chosen = counted if only in (None, index) else range(devices)
        found = [tensors(device, index) for device in chosen]
        arrays = {name: [one[name] for one in found] for name in found[0]}
        state, _ = aggregate(RoundContext.of(PLAN, index), state, ValidatedBatch(arrays))
    return pack_tensors(state)


def device_of(job, number, cell=""):
    wire = job.wire.hex()
    releases = {}
    for index, round in ((index, PLAN.round(index)) for index in ROUNDS):
        inferred = (PLAN.softmax_event(),) if round.infer else ()
        releases[index] = PricedAnswer(index, (*PLAN.device.price(round), *inferred), b"")
    return DeviceFacts(
        number=number + 1,
        trains=True,
        receipts=tuple(
            UploadReceipt(job.wire, k, 1, "counted", segments(number, k)) for k in ROUNDS
        ),
        links=tuple((wire, index) for index in ROUNDS),
        ledger={wire: JobAccount(PLAN.request(wire), answers=releases)},
        release=(wire, "digest"),
        releases={(wire, index): pack_tensors(tensors(number, index)) for index in ROUNDS},
        cell=cell,
    )
