"""The backbones that a job's features name: read, matched by digest, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeveil.errors import DataError
from edgeveil.parts.features.backbone import MAX_BACKBONE_BYTES, read_backbone, sha256_hex
from edgeveil.parts.features.onnx_map import OnnxMap, OnnxParameters

Artifacts = Mapping[str, bytes]
NONE: Artifacts = MappingProxyType({})


def backbone_digests(entries: Iterable[Any]) -> tuple[str, ...]:
    """SHA-256 (hex) of each backbone that `entries` of a job's features name, once."""
    named = (entry.sha256 for entry in entries if isinstance(entry, OnnxParameters))
    return tuple(dict.fromkeys(named))


def read_backbones(entries: Iterable[Any]) -> dict[str, bytes]:
    """Backbones by digest, from the files that a job file's entries name. Raises DataError."""
    files = {e.sha256: e.file for e in entries if isinstance(e, OnnxParameters) and e.file}
    found = {digest: read_backbone(Path(file)) for digest, file in files.items()}
    for digest, graph in found.items():
        if sha256_hex(graph) != digest:
            raise DataError("changed while it was read", where=files[digest], fix="start again")
    return found


def match_backbones(entries: Iterable[Any], graphs: Iterable[bytes]) -> dict[str, bytes]:
    """`graphs` by digest. Raises DataError unless they are what `entries` name, no more, no less.

    Looks at digests and sizes alone: nothing of a graph is read.
    """
    found = {sha256_hex(graph): graph for graph in graphs}
    wanted = backbone_digests(entries)
    if sum(map(len, found.values())) > MAX_BACKBONE_BYTES:
        raise DataError(f"have more than {MAX_BACKBONE_BYTES} bytes together", where="backbones")
    for digest in wanted:
        if digest not in found:
            raise DataError(
                "the backbone that the job names is not here",
                where=digest,
                fix="submit the job file again with edgeveil job submit",
            )
    if len(found) > len(wanted):
        raise DataError("holds a backbone that the job does not name", where="backbones")
    return found


def check_backbones(entries: Iterable[Any], artifacts: Artifacts) -> None:
    """Open each backbone. Raises DataError unless it is plain layers of the form the job says."""
    for entry in entries:
        if isinstance(entry, OnnxParameters):
            OnnxMap(entry, artifacts.get(entry.sha256)).graph()
