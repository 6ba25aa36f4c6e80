"""One round as the cloud sees it: its secret, and batches made of any segments."""

import numpy as np

from edgeveil.crypto.keys import OpeningKey
from edgeveil.jobs import Job
from edgeveil.jobs.plan import Plan
from edgeveil.jobs.round_context import RoundContext
from edgeveil.protocol.messages import Batch, RoundId
from edgeveil.protocol.sealed import seal_segment
from edgeveil.protocol.transfer import describe
from edgeveil_cloud.broadcasts import seal_round
from edgeveil_cloud.validate_batch import validate_batch

JOB_ID = b"J" * 16
CENTRE, TRAIN = 1, 3  # indices of rounds: one segment; one and a softmax


def job(**changes):
    plain = {
        "job": "batched",
        "data": {"source": "bench", "classes": 3, "input_shape": (4,), "nominal_records": 30},
        "features": ({"name": "identity"},),
        "train": {"method": "fm", "rounds": 2},
        "privacy": {"epsilon": 4.0, "delta": 1e-5},
        "round": {"min_batch": 3},
        "encrypt": {"privacy_eval_type": "LAPLACE", "laplace_eval": {"laplace_eval_eps": 5.0}},
        "unsupervised": {"every_rounds": 1},
    }
    return Job.model_validate({**plain, **changes})


def public_keys(count):
    return [OpeningKey.generate().public().to_bytes() for _ in range(count)]


def batched(at, groups, uploads, declined=0, **changes):
    """The header and the bytes of a batch of these segments by group."""
    data = b"".join(b"".join(group) for group in groups)
    values = {"counts": tuple(map(len, groups)), "blob": describe(data, 4096), **changes}
    return Batch(at, uploads, declined, **values), data


class CloudRound:
    """A sealed round; `selected` keys that nobody needs to open here."""

    def __init__(self, index=TRAIN, attempt=1, plan=None, selected=5, job_id=JOB_ID):
        self.plan = plan or Plan(job())
        self.context = RoundContext.of(self.plan, index)
        self.round = self.context.round
        self.state = self.plan.cloud.initial_state()
        self.selected = selected
        sealed = seal_round(
            self.context,
            self.state,
            public_keys(selected),
            RoundId(job_id, index, attempt),
            1,
            4096,
        )
        self.manifest = sealed[0]
        self.secret = sealed[2]

    def segment(self, g, array, membership=None):
        """One sealed segment of group `g`, as a selected device makes it."""
        raw = array if isinstance(array, bytes) else array.tobytes()
        tag = self.secret.membership if membership is None else membership
        return seal_segment(self.manifest, self.manifest.groups[g], tag, raw)

    def array(self, g, value):
        """A tensor of the group's form, filled."""
        spec = self.plan.segments(self.round)[g]
        return np.full(spec.shape, value, spec.dtype)

    def honest(self, count=3):
        """Per group, segments of `count` devices: 1, 2, 3, …"""
        groups = range(len(self.manifest.groups))
        return [[self.segment(g, self.array(g, n + 1)) for n in range(count)] for g in groups]

    def batch(self, groups, **changes):
        return batched(self.manifest.at, groups, 3, **changes)

    def opened(self, groups, **changes):
        batch, data = self.batch(groups, **changes)
        return validate_batch(self.context, self.secret, batch, data)
