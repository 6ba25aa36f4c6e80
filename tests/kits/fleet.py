"""A small fleet over digits and a short job: real hosts, real encryption, virtual time."""

import json
import time
from dataclasses import asdict

import torch
from threadpoolctl import threadpool_limits

from edgeveil.config.data import Partition
from edgeveil.jobs import Job
from edgeveil.testing import DIGITS, PlainSealing, device_sites
from edgeveil_tools.local.job import local_job, site_of
from tests.kits.memory_fleet import MemoryFleet

PACKET_BYTES = 16384
LOOK_S = 0.1  # between two reads of a store, each of which takes milliseconds


class Fleet(MemoryFleet):
    """`devices` devices on digits, one proxy, one cloud; device names begin with `secret-`."""

    def __init__(self, folder, devices, *, policy=None, infer_only=0, floor=3, seed=7, **options):
        sites = device_sites(
            devices,
            infer_only=infer_only,
            partition=Partition(kind="n_class", classes_per_device=2),
            policy=policy,
            seed=seed,
        )
        proxy = {"min_batch_floor": floor, **options.pop("proxy", {})}
        super().__init__(
            folder,
            [site.model_copy(update={"name": f"secret-{site.name}"}) for site in sites],
            test_data=DIGITS,
            seed=seed,
            clock=lambda: self.net.now_s,
            proxy=proxy,
            **{"packet_bytes": PACKET_BYTES, **options},
        )


def small_job(**changes):
    data = {"source": "digits", "classes": 10, "input_shape": (64,)}
    plain = {
        "job": "small",
        "data": {**data, "nominal_records": 150, "evaluation_share": 0.1},
        "features": ({"name": "identity", "input_scale": 16.0, "shift": -0.3},),
        "train": {"method": "fm", "rounds": 3},
        "privacy": {"epsilon": 8.0, "delta": 1e-5},
        "round": {"deadline_s": 20.0, "min_batch": 3, "grace_s": 1.0},
        "encrypt": {"privacy_eval_type": "LAPLACE", "laplace_eval": {"laplace_eval_eps": 20.0}},
        "unsupervised": {"every_rounds": 2, "eval_type": "SILHOUETTE_SCORE"},
    }
    return Job.model_validate({**plain, **changes})


def committed(fleet, job):
    events = fleet.store.events_after(0, job)
    return [dict(event.data) for event in events if event.type == "exchange_committed"]


def played_by_all_parties(path, folder, overrides):
    """Play a job file's local run by the parties themselves in memory, unencrypted.

    Returns the job's status, its model as ONNX and safetensors, its events, and the owners'
    messages."""
    job, run = local_job(path, overrides)
    site = site_of(job, run, folder)
    devices = device_sites(
        site.devices,
        site.source,
        infer_only=site.infer_only,
        partition=site.partition,
        classes=site.classes,
        policy=site.policy,
        seed=site.seed,
    )
    told = []
    fleet = MemoryFleet(
        folder,
        devices,
        test_data=site.source,
        seed=site.seed,
        sealing=PlainSealing(),
        on_message=told.append,
        proxy={"min_batch_floor": site.min_batch_floor},
    )
    looked_s = 0.0

    def settled():
        nonlocal looked_s
        if time.monotonic() < looked_s + LOOK_S:
            return False
        looked_s = time.monotonic()
        return fleet.settled(job_id)

    torch.set_num_threads(1)  # the last bits of a product depend on the number of threads
    with threadpool_limits(1):
        job_id = fleet.submit(job)
        fleet.net.run(settled, float("inf"))
    status = fleet.store.job(job_id).status
    events = [asdict(event) for event in fleet.store.events_after(0, job_id)]
    release = fleet.store.release(job_id)
    model = (release.onnx, release.safetensors) if release else (b"", b"")
    fleet.close()
    return status, *model, json.loads(json.dumps(events)), told
