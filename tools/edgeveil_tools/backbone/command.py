"""The public encoders: trained once on this machine, then kept in the user's cache."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from edgeveil.errors import ConfigError, DataError, UsageError
from edgeveil.parts.features.onnx import cached_backbone, opened, read_backbone, sha256_hex
from edgeveil.parts.models.state_dict import packed_state_dict, unpacked
from edgeveil.settings.file import parsed, read

_FRACTIONS = 10

Progress = Callable[[float], None]  # gets the share that is done, up to 1


@dataclass(frozen=True)
class Recipe:
    """How an encoder that EdgeVeil trains itself is made: `steps` batches of `drawings` pictures.

    `make(steps, drawings, seed, on_progress)` gives its ONNX, and `takes` so long on two cores.
    """

    steps: int
    drawings: int
    make: Callable[[int, int, int, Progress], bytes]
    takes: str


def _digits(steps: int, drawings: int, seed: int, on_progress: Progress) -> bytes:
    from edgeveil_tools.backbone.net import onnx_encoder, train_encoder

    return onnx_encoder(train_encoder(steps, drawings, seed, on_progress))


def _pictures(steps: int, drawings: int, seed: int, on_progress: Progress) -> bytes:
    from edgeveil_tools.backbone.contrastive import axes, onnx_pictures, train_pictures

    encoder, drawn = train_pictures(steps, drawings, seed, on_progress)
    return onnx_pictures(encoder, *axes(encoder, drawn))


ENCODERS: dict[str, Recipe] = {
    "digits": Recipe(3000, 12_000, _digits, "some minutes"),
    "pictures": Recipe(3000, 30_000, _pictures, "20 minutes"),
}


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

    @property
    def form(self) -> str:
        """What it takes and gives, for a person."""
        return f"takes {list(self.input_shape)}, gives {self.features} features"


@dataclass(frozen=True)
class WeightFacts:
    """What is known of a state_dict; digest and size are those of the form that jobs name."""

    path: str
    sha256: str
    tensors: int
    values: int
    size_bytes: int

    @property
    def form(self) -> str:
        """What it holds, for a person."""
        return f"{self.values:,} values in {self.tensors} tensor{'s' * (self.tensors > 1)}"


def train(
    path: Path,
    name: str = "digits",
    *,
    seed: int = 0,
    force: bool = False,
    on_progress: Progress = lambda _: None,
) -> BackboneFacts:
    """Train the encoder of this name and write it to `path`, all of it or nothing.

    Raises UsageError for a file that is there already, unless `force`.
    """
    if path.exists() and not force:
        raise UsageError("is there already", where=str(path), fix="train again with --force")
    path.parent.mkdir(parents=True, exist_ok=True)
    recipe = ENCODERS[name]
    graph = recipe.make(recipe.steps, recipe.drawings, seed, on_progress)
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


def weight_facts(path: Path) -> WeightFacts:
    """Digest and size of a state_dict, checked as a job's. Raises DataError."""
    packed = packed_state_dict(path)
    found = unpacked(packed)
    values = sum(array.size for array in found.values())
    return WeightFacts(str(path), sha256_hex(packed), len(found), values, len(packed))


def ensure_cached(name: str, say: Callable[[str], None]) -> Path:
    """The cached encoder, trained first where it is missing; `say` tells how that goes."""
    path = cached_backbone(name)
    if not path.exists():
        say(f"training the public encoder of {name}, once, {ENCODERS[name].takes}: {path}")
        train(path, name, on_progress=_said(name, say), force=True)
    return path


def ensure_for_jobs(files: Iterable[Path], say: Callable[[str], None] = _to_stderr) -> None:
    """`ensure_cached` for each encoder that one of the job files names.

    What else is wrong with a file, its loader says.
    """
    for name in sorted({name for path in files for name in _named(path)}):
        ensure_cached(name, say)


def _named(path: Path) -> set[str]:
    try:
        entries = parsed(read(path), str(path)).value["features"]
        return {entry["file"] for entry in entries if entry.get("file") in ENCODERS}
    except (ConfigError, AttributeError, KeyError, TypeError):
        return set()


def _said(name: str, say: Callable[[str], None]) -> Progress:
    told = 0

    def on_progress(share: float) -> None:
        nonlocal told
        if int(share * _FRACTIONS) > told:
            told = int(share * _FRACTIONS)
            say(f"training the public encoder of {name}: {100 * told // _FRACTIONS} %")

    return on_progress
