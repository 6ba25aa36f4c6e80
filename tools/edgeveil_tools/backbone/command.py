"""The public encoder of digits, trained once on this machine and cached."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgeveil.config.file import parsed, read
from edgeveil.errors import ConfigError, DataError, UsageError
from edgeveil.parts.features.onnx import cached_backbone, opened, read_backbone, sha256_hex
from edgeveil.parts.models.network import packed_state_dict, unpacked
from edgeveil_tools.result import write_whole

NAME = "digits"
STEPS, DRAWINGS = 3000, 12_000  # batches, and digits drawn for them


def file_lines(found: Mapping[str, Any]) -> list[str]:
    if "features" in found:
        form = f"input {list(found['input_shape'])}, {found['features']} features"
    else:
        form = f"{found['values']:,} values in {found['tensors']} tensors"
    return [f"{found['path']}: {form}", f"{found['size_bytes']} bytes, SHA-256 {found['sha256']}"]


def train(
    path: Path, *, seed: int = 0, force: bool = False, report: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Train the encoder and write it to `path`; raises UsageError if it exists, unless `force`.

    `report` gets lines on the way; default: standard error."""
    from edgeveil_tools.backbone.encoders import onnx_encoder, train_encoder

    report, reported = report or partial(print, file=sys.stderr, flush=True), 0

    def on_progress(share: float) -> None:
        nonlocal reported
        if int(share * 10) > reported:
            reported = int(share * 10)
            report(f"training the public encoder of {NAME}: {10 * reported} %")

    if path.exists() and not force:
        raise UsageError("already exists", where=str(path), fix="train again with --force")
    report(f"training the public encoder of {NAME}, once, some minutes: {path}")
    graph = onnx_encoder(train_encoder(STEPS, DRAWINGS, seed, on_progress))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, graph)
    return facts(path)


def facts(path: Path) -> dict[str, Any]:
    """Return digest, shapes and size of an ONNX backbone; raises DataError."""
    graph = read_backbone(path)
    try:
        form = opened(graph).form
    except DataError as error:
        raise DataError(error.what, where=str(path), fix=error.fix) from error
    shapes = {"input_shape": form.input_shape, "features": form.output_dim}
    whole = {"path": str(path), "sha256": sha256_hex(graph), "size_bytes": len(graph)}
    return {**whole, **shapes}


def weight_facts(path: Path) -> dict[str, Any]:
    packed = packed_state_dict(path)
    found = unpacked(packed)
    whole = {"path": str(path), "sha256": sha256_hex(packed), "size_bytes": len(packed)}
    return {**whole, "tensors": len(found), "values": sum(a.size for a in found.values())}


def ensure_for_jobs(files: Iterable[Path], report: Callable[[str], None] | None = None) -> None:
    path = cached_backbone(NAME)
    if not path.exists() and any(map(_names_it, files)):
        train(path, report=report, force=True)


def _names_it(path: Path) -> bool:
    try:
        entries = parsed(read(path), str(path)).value["features"]
        return any(entry.get("file") == NAME for entry in entries)
    except (ConfigError, AttributeError, KeyError, TypeError):
        return False
