"""The box's own model as it lies in the state folder: its file, and what its owner may know of it.

Read by what shows or uses it, which needs nothing of what learns it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil.evaluation.figures import ACCURACY, leading_text
from edgeveil.storage import write_durably
from edgeveil_edge.releases import InstalledRelease

FOLDER = "personal"  # inside a device's state folder
_ABOUT = "about.json"


@dataclass(frozen=True)
class PersonalModel:
    """What a box made of a release, and how both do on its evaluation records. Private."""

    release: str  # the version it began with
    digest: str  # that release's, SHA-256 in hex
    training_records: int
    evaluation_records: int
    pull: float | None  # None: the release's own head did best, and stands
    shared_accuracy: float | None
    personal_accuracy: float | None
    shared_loss: float | None
    personal_loss: float | None
    largest_class_rate: float | None = None  # of the evaluation records
    shared_balanced_accuracy: float | None = None  # accuracy, where their classes are uneven
    personal_balanced_accuracy: float | None = None

    @property
    def shared_text(self) -> str:
        """The shared model's accuracy, beside what it is read against."""
        return self._text(self.shared_accuracy, self.shared_balanced_accuracy)

    @property
    def personal_text(self) -> str:
        """The same of the box's own."""
        return self._text(self.personal_accuracy, self.personal_balanced_accuracy)

    def _text(self, accuracy: float | None, balanced: float | None) -> str:
        rate = self.largest_class_rate
        beside = {"largest_class_rate": rate, "balanced_accuracy": balanced}
        return leading_text(ACCURACY, accuracy, beside)


def keep_personal(state_dir: Path, graph: bytes, about: PersonalModel) -> None:
    """Put it in its folder, durably, mode 0600."""
    folder = state_dir / FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(folder / "model.onnx", graph, mode=0o600)
    write_durably(folder / _ABOUT, json.dumps(asdict(about), indent=2).encode(), mode=0o600)


def kept_personal(state_dir: Path) -> PersonalModel | None:
    """What is known of it; None where none was made, or what was kept cannot be read."""
    try:
        return PersonalModel(**json.loads((state_dir / FOLDER / _ABOUT).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def personal_model(state_dir: Path, release: InstalledRelease) -> tuple[Path, PersonalModel]:
    """The file of the box's own model, which must be of the release in use. Raises UsageError."""
    about = kept_personal(state_dir)
    if about is None:
        raise UsageError(
            "holds no personal model",
            where=str(state_dir),
            fix="edgeveil edge personalise --config edge.yaml makes one",
        )
    if about.digest != release.digest:
        raise UsageError(
            f"the personal model is of the release {about.release}, in use is {release.version}",
            where=str(state_dir / FOLDER),
            fix="make it anew: edgeveil edge personalise --config edge.yaml",
        )
    return state_dir / FOLDER / "model.onnx", about
