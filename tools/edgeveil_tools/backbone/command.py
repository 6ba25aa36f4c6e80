"""The public encoders: trained once on this machine, then kept in the user's cache."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edgeveil.config.file import parsed, read
from edgeveil.errors import ConfigError, DataError, UsageError
from edgeveil.parts.features.onnx import cached_backbone, opened, read_backbone, sha256_hex
from edgeveil.parts.models.network import packed_state_dict, unpacked

Progress = Callable[[float], None]  # gets the share that is done, up to 1
# batches, pictures drawn for it, its time on two cores
ENCODERS = {"digits": (3000, 12_000, "some minutes"), "pictures": (3000, 30_000, "20 minutes")}


def file_lines(found: Mapping[str, Any]) -> list[str]:
    """Facts of a backbone's or a state_dict's file, for a person."""
    if "features" in found:
        form = f"takes {list(found['input_shape'])}, gives {found['features']} features"
    else:
        form = f"{found['values']:,} values in {found['tensors']} tensors"
    return [f"{found['path']}: {form}", f"{found['size_bytes']} bytes, SHA-256 {found['sha256']}"]


def train(
    path: Path,
    name: str = "digits",
    *,
    seed: int = 0,
    force: bool = False,
    on_progress: Progress = lambda _: None,
) -> dict[str, Any]:
    """Train the encoder of this name and write it to `path`. UsageError for a file that is there,
    unless `force`."""
    from edgeveil_tools.backbone import encoders

    if path.exists() and not force:
        raise UsageError("is there already", where=str(path), fix="train again with --force")
    given = (*ENCODERS[name][:2], seed, on_progress)
    if name == "digits":
        graph = encoders.onnx_encoder(encoders.train_encoder(*given))
    else:
        encoder, drawn = encoders.train_pictures(*given)
        graph = encoders.onnx_pictures(encoder, *encoders.axes(encoder, drawn))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(graph)
    Path(part.name).replace(path)
    return facts(path)


def facts(path: Path) -> dict[str, Any]:
    """Digest, shapes and size of an ONNX file, checked as a job's backbone. Raises DataError."""
    graph = read_backbone(path)
    try:
        form = opened(graph).form
    except DataError as error:
        raise DataError(error.what, where=str(path), fix=error.fix) from error
    shapes = {"input_shape": form.input_shape, "features": form.output_dim}
    whole = {"path": str(path), "sha256": sha256_hex(graph), "size_bytes": len(graph)}
    return {**whole, **shapes}


def weight_facts(path: Path) -> dict[str, Any]:
    """Digest and size of a state_dict in the form that jobs name, checked. Raises DataError."""
    packed = packed_state_dict(path)
    found = unpacked(packed)
    whole = {"path": str(path), "sha256": sha256_hex(packed), "size_bytes": len(packed)}
    return {**whole, "tensors": len(found), "values": sum(a.size for a in found.values())}


def ensure_for_jobs(files: Iterable[Path], say: Callable[[str], None] | None = None) -> None:
    """Train each encoder that a job file names and the cache lacks; `say` gets lines."""
    say = say or partial(print, file=sys.stderr, flush=True)
    for name in sorted({name for path in files for name in _named(path)}):
        path = cached_backbone(name)
        if not path.exists():
            say(f"training the public encoder of {name}, once, {ENCODERS[name][2]}: {path}")
            train(path, name, on_progress=_in_tenths(name, say), force=True)


def _named(path: Path) -> set[str]:
    try:
        entries = parsed(read(path), str(path)).value["features"]
        return {entry["file"] for entry in entries if entry.get("file") in ENCODERS}
    except (ConfigError, AttributeError, KeyError, TypeError):
        return set()


def _in_tenths(name: str, say: Callable[[str], None]) -> Progress:
    told = 0

    def on_progress(share: float) -> None:
        nonlocal told
        if int(share * 10) > told:
            told = int(share * 10)
            say(f"training the public encoder of {name}: {10 * told} %")

    return on_progress
