"""A small job, its sealed rounds, and one device's host, shared by the edge client's tests."""

import math

import numpy as np

from edgeveil.config.edge import EdgeSite
from edgeveil.crypto.keys import OpeningKey, SealingKey, SigningKey
from edgeveil.data.records import Records
from edgeveil.jobs import Job, compile_job
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.features.values import Identity, IdentityParameters
from edgeveil.parts.models.heads import bake, build_graph
from edgeveil.privacy.ledger import Ledger
from edgeveil.protocol.device import Installation, InstallJob
from edgeveil.protocol.device_round import ComputeAnswer, NoAnswer, OpenPackage, SealedAnswer
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, RoundId
from edgeveil.protocol.sealed import JobPackage, Terms, open_segment, seal_broadcast
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_edge.compute import Computer
from edgeveil_edge.host import DeviceHost
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.store import DeviceStore

JOB_ID = b"J" * 16
CENTRE, QUADRATIC, FIRST = 1, 2, 3  # indices of the rounds; FIRST asks for inferences too


def job(**changes):
    plain = {
        "job": "boxed",
        "data": {"source": "bench", "classes": 3, "input_shape": (4,), "nominal_records": 30},
        "features": ({"name": "identity"},),
        "train": {"method": "fm", "rounds": 3},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "encrypt": {"privacy_eval_type": "LAPLACE", "laplace_eval": {"laplace_eval_eps": 5.0}},
        "unsupervised": {"every_rounds": 1},
    }
    return Job.model_validate({**plain, **changes})


PLAN = compile_job(job())


def final_model(classes=3, shape=(4,)):
    dimension = math.prod(shape)
    weights = {
        "centre": np.zeros(dimension, np.float32),
        "radius": np.ones(1, np.float32),
        "weight": np.eye(dimension, classes, dtype=np.float32),
    }
    return bake(build_graph(Identity(IdentityParameters()), shape, classes), weights)


def site(folder, **changes):
    plain = {
        "name": "Aunt-Emmas-kitchen",
        "broker": {"url": "mqtt://127.0.0.1:1"},
        "state_dir": folder,
        "cloud_key_file": folder / "cloud.pub",
        "proxy_key_file": folder / "proxy.pub",
        "data": {"name": "bench", "source": "digits"},
        "policy": {"min_devices": 3, "max_records": 2000},
        "device": "cpu",
    }
    return EdgeSite.model_validate({**plain, **changes})


def own_site(folder, **changes):
    """A site whose keys are there, as of a device that was set up."""
    for peer in ("cloud", "proxy"):
        SigningKey.generate().public().save(folder / f"{peer}.pub")
    DeviceIdentity.load_or_create(folder)
    return site(folder, **changes)


def records(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (count, 4)).astype(np.float32)
    return Records(x, rng.integers(0, 3, count))


class Loader:
    """The device's data: counts how often it is read, and may be broken."""

    def __init__(self, error=None):
        self.reads, self.error = 0, error

    def __call__(self, *_asked):
        self.reads += 1
        if self.error is not None:
            raise self.error
        return records(30, 1), records(6, 2)


class Round:
    """One sealed round of a job, and what the cloud can make of the answer."""

    def __init__(self, plan, index, keys, *, attempt=1, job_id=JOB_ID):
        self.plan, self.round = plan, plan.round(index)
        where = keys, RoundId(job_id, index, attempt), index * 10 + attempt, 4096
        sealed = seal_round(RoundContext.of(plan, index), trained(plan), *where)
        self.manifest, self.blob, self.secret = sealed[:3]

    def tensors(self, answer):
        """The plaintext of every segment of the answer, as the cloud opens it."""
        assert isinstance(answer, SealedAnswer), answer
        manifest, secret, found, at = self.manifest, self.secret, {}, 0
        for g, size in zip(answer.groups, answer.sizes, strict=True):
            group, sealed = manifest.groups[g], answer.data[at : at + size]
            assert size == group.padded_bytes + SEAL_OVERHEAD_BYTES
            where = secret.opening, manifest.at, manifest.job_digest, group, secret.membership
            found[group.name] = open_segment(*where, sealed)
            assert found[group.name] is not None
            at += size
        assert at == len(answer.data)
        return found


def trained(plan):
    state = dict(plan.cloud.initial_state())
    if "iterate" in state:
        state["iterate"] = state["iterate"] + 7
    return state


class Device:
    """One device: its files in a folder, its host, and its data."""

    def __init__(self, folder, load=None, compute=None, trust=None, **changes):
        self.folder, self.load = folder, load or Loader()
        self.said = []
        self.site = site(folder, **changes)
        self.identity = DeviceIdentity.load_or_create(folder)
        self.store = DeviceStore(folder / "device.sqlite")
        self.ledger = Ledger(folder / "ledger.sqlite", self.site.data.name)
        compute = compute or (lambda site, own: Computer(site, own.split_key, self.load))
        parts = self.site, self.identity, self.store, self.ledger
        computer = compute(self.site, self.identity)
        on_message = self.said.append
        self.host = DeviceHost(*parts, on_message=on_message, compute=computer, trust=trust)

    @property
    def key(self):
        return self.identity.opening.public().to_bytes()

    def keys(self, count=3):
        """This device's key among others'."""
        others = [OpeningKey.generate().public().to_bytes() for _ in range(count - 1)]
        return [self.key, *others]

    def restarted(self, **changes):
        return Device(self.folder, **changes)

    def learn(self, plan, job_id=JOB_ID):
        modelled = any(round.carries_model for round in plan.all_rounds)
        graph = plan.graph() if modelled else b""
        package = JobPackage(plan.job.canonical(), graph, tuple(plan.artifacts.values()))
        manifest = announcement(plan, self.keys(), job_id=job_id)
        return self.host.perform(InstallJob(manifest, package))

    def knows(self, plan, job_id=JOB_ID):
        assert self.learn(plan, job_id) == Installation()
        return self

    def answer(self, sealed, between=lambda: None):
        opened = self.host.perform(OpenPackage(sealed.manifest, sealed.blob))
        between()
        return self.host.perform(ComputeAnswer(sealed.manifest, opened.package))

    def declines(self, plan, index):
        answer = self.answer(Round(plan, index, self.keys()))
        assert isinstance(answer, NoAnswer), answer
        return answer

    def seals(self, plan, index):
        sealed = Round(plan, index, self.keys())
        return sealed.tensors(self.answer(sealed))


def announcement(plan, keys, kind="job", job_id=JOB_ID):
    at, digest = RoundId(job_id, 0, 1), plan.job.digest()
    terms = Terms(kind=kind, at=at, sequence=99, job_digest=digest, phase=kind)
    return seal_broadcast(terms, b"x", [SealingKey(k) for k in keys], 4096)[0]
