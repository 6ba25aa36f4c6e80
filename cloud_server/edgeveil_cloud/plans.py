"""A stored job's plan and graph, each made once; backbones come from the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from edgeveil.jobs import Job
from edgeveil.parts.features import backbone_digests
from edgeveil.plan import JobPlan

Backbones = Callable[[str], bytes | None]
"""A feature extractor by its digest; None where it is not kept."""


@lru_cache(maxsize=8)
def plan_of(canonical: bytes, backbone: Backbones) -> JobPlan:
    """The plan of canonical bytes; raises ProtocolError for others."""
    job = Job.from_canonical(canonical)
    found = {digest: backbone(digest) for digest in backbone_digests(job.features)}
    return JobPlan(job, {digest: graph for digest, graph in found.items() if graph is not None})


@lru_cache(maxsize=8)
def graph_of(canonical: bytes, backbone: Backbones) -> bytes:
    """The job's ONNX graph, its weights as inputs; DataError without the job's backbones."""
    return plan_of(canonical, backbone).graph()
