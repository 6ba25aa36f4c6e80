"""The public encoder of digits: trained once on this machine, then kept in the user's cache."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from edgeveil.errors import ConfigError, DataError, UsageError
from edgeveil.parts.features.onnx import cached_backbone, opened, read_backbone, sha256_hex
from edgeveil.settings.file import parsed, read

NAME = "digits"
STEPS = 3000  # batches of 128 images
DRAWINGS = 12_000
_FRACTIONS = 10


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class BackboneFacts:
    """What is known of a backbone file; shapes are those of one record."""

    path: str
    sha256: str
    input_shape: tuple[int, ...]
    features: int
    size_bytes: int


def train(
    path: Path,
    *,
    seed: int = 0,
    force: bool = False,
    steps: int | None = None,
    drawings: int | None = None,
    on_step: Callable[[int], None] = lambda _: None,
) -> BackboneFacts:
    """Train the encoder and write it to `path`, all of it or nothing.

    Raises UsageError for a file that is there already, unless `force`.
    """
    if path.exists() and not force:
        raise UsageError("is there already", where=str(path), fix="train again with --force")
    path.parent.mkdir(parents=True, exist_ok=True)
    from edgeveil_tools.backbone.net import onnx_encoder, train_encoder

    graph = onnx_encoder(train_encoder(steps or STEPS, drawings or DRAWINGS, seed, on_step))
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        part.write(graph)
    Path(part.name).replace(path)
    return facts(path)


def facts(path: Path) -> BackboneFacts:
    """Digest, shapes and size of an ONNX file, checked as a job's backbone. Raises DataError."""
    graph = read_backbone(path)
    try:
        form = opened(graph).form
    except DataError as error:
        raise DataError(error.what, where=str(path), fix=error.fix) from error
    return BackboneFacts(
        str(path), sha256_hex(graph), form.input_shape, form.output_dim, len(graph)
    )


def ensure_cached(say: Callable[[str], None]) -> Path:
    """The cached encoder, trained first where it is missing; `say` tells how that goes."""
    path = cached_backbone(NAME)
    if not path.exists():
        say(f"training the public encoder, once, some minutes: {path}")
        train(path, on_step=_said(say), force=True)
    return path


def ensure_for_jobs(files: Iterable[Path], say: Callable[[str], None] = _to_stderr) -> None:
    """`ensure_cached` if one of the job files names the encoder.

    What else is wrong with a file, its loader says.
    """
    if any(_names_encoder(path) for path in files):
        ensure_cached(say)


def _names_encoder(path: Path) -> bool:
    try:
        entries = parsed(read(path), str(path)).value["features"]
        return any(entry.get("file") == NAME for entry in entries)
    except (ConfigError, AttributeError, KeyError, TypeError):
        return False


def _said(say: Callable[[str], None]) -> Callable[[int], None]:
    def on_step(step: int) -> None:
        if step * _FRACTIONS % STEPS == 0:
            say(f"training the public encoder: {100 * step // STEPS} %")

    return on_step
