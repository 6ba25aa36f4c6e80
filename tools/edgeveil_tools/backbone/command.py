"""The public encoders: trained once on this machine, then kept in the user's cache."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from edgeveil.errors import ConfigError, DataError, UsageError
from edgeveil.parts.features.onnx import cached_backbone, opened, read_backbone, sha256_hex
from edgeveil.parts.models.network import packed_state_dict, unpacked
from edgeveil.settings.file import parsed, read

Progress = Callable[[float], None]  # gets the share that is done, up to 1


@dataclass(frozen=True)
class Recipe:
    """An encoder's training: batches, pictures drawn for it, and its time on two cores."""

    steps: int
    drawings: int
    takes: str


ENCODERS: dict[str, Recipe] = {
    "digits": Recipe(3000, 12_000, "some minutes"),
    "pictures": Recipe(3000, 30_000, "20 minutes"),
}


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class BackboneFacts:
    """A backbone file; shapes are those of one record."""

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
    """A state_dict; digest and size are those of the form that jobs name."""

    path: str
    sha256: str
    tensors: int
    values: int
    size_bytes: int

    @property
    def form(self) -> str:
        """What it holds, for a person."""
        return f"{self.values:,} values in {self.tensors} tensor{'s' * (self.tensors > 1)}"


def file_lines(found: BackboneFacts | WeightFacts) -> list[str]:
    """What a person reads of a backbone's or a state_dict's file."""
    return [f"{found.path}: {found.form}", f"{found.size_bytes} bytes, SHA-256 {found.sha256}"]


def train(
    path: Path,
    name: str = "digits",
    *,
    seed: int = 0,
    force: bool = False,
    on_progress: Progress = lambda _: None,
) -> BackboneFacts:
    """Train the encoder of this name and write it to `path`. UsageError for a file that is there,
    unless `force`."""
    from edgeveil_tools.backbone import encoders

    if path.exists() and not force:
        raise UsageError("is there already", where=str(path), fix="train again with --force")
    recipe = ENCODERS[name]
    given = (recipe.steps, recipe.drawings, seed, on_progress)
    if name == "digits":
        graph = encoders.onnx_encoder(encoders.train_encoder(*given))
    else:
        encoder, drawn = encoders.train_pictures(*given)
        graph = encoders.onnx_pictures(encoder, *encoders.axes(encoder, drawn))
    return written(path, graph)


def written(path: Path, graph: bytes) -> BackboneFacts:
    """Write an ONNX file, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
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
    digest = sha256_hex(graph)
    return BackboneFacts(str(path), digest, form.input_shape, form.output_dim, len(graph))


def weight_facts(path: Path) -> WeightFacts:
    """Digest and size of a state_dict, checked as a job's. Raises DataError."""
    packed = packed_state_dict(path)
    found = unpacked(packed)
    values = sum(array.size for array in found.values())
    return WeightFacts(str(path), sha256_hex(packed), len(found), values, len(packed))


def ensure_for_jobs(files: Iterable[Path], say: Callable[[str], None] = _to_stderr) -> None:
    """Train each encoder that a job file names and the cache lacks; `say` gets lines."""
    for name in sorted({name for path in files for name in _named(path)}):
        path = cached_backbone(name)
        if not path.exists():
            say(f"training the public encoder of {name}, once, {ENCODERS[name].takes}: {path}")
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
