"""A stored job's plan and graph, each made once; backbones come from the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from edgeveil.jobs import Plan, compile_canonical
from edgeveil.parts.features import backbone_digests

Backbones = Callable[[str], bytes | None]
"""A feature extractor by its digest; None where it is not kept."""


@lru_cache(maxsize=8)
def plan_of(canonical: bytes, backbone: Backbones) -> Plan:
    """The plan of canonical bytes; raises ProtocolError for others."""
    plan = compile_canonical(canonical)
    found = {digest: backbone(digest) for digest in backbone_digests(plan.job.features)}
    kept = {digest: graph for digest, graph in found.items() if graph is not None}
    return plan.with_artifacts(kept)


@lru_cache(maxsize=8)
def graph_of(canonical: bytes, backbone: Backbones) -> bytes:
    """The job's ONNX graph, its weights as inputs; DataError without the job's backbones."""
    return plan_of(canonical, backbone).graph()
