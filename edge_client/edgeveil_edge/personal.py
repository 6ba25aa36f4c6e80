"""Personal model of this box: the release in use, with weights of the box's own.

They are those that the job's training kept here (`fedrep`, `fedbn`, `ditto`), or else the head,
fine-tuned on local records. Neither has noise, so no guarantee covers the model and it never leaves
the state folder. A head's pull towards the release is chosen by cross-validation on training
records; accuracy is measured on evaluation records, which are not used in training.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeveil.config.edge import EdgeSite
from edgeveil.data.records import Records
from edgeveil.data.schema import schema_in
from edgeveil.data.split import SPLIT_KEY_FILE, load_split_key
from edgeveil.errors import DataError, UsageError
from edgeveil.evaluation.figures import ACCURACY, baselines, classification_figures, leading_text
from edgeveil.evaluation.model_head import LinearHead, find_head, with_output, with_tensors
from edgeveil.evaluation.onnx_session import BATCH_RECORDS, aligned, open_session, run_session
from edgeveil.parts.own_records import device_records, of_shape
from edgeveil.parts.round import personal_weights
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.protocol.tensors import unpack_tensors
from edgeveil.storage import StorageError, write_durably
from edgeveil_edge.releases import PERSONAL_FOLDER, InstalledRelease, ReleaseStore, personal_file
from edgeveil_edge.store import SPLIT_SHARE, STORE_FILE, USUAL_SHARE, split_fact

PULLS = (10.0, 1.0, 0.1, 0.01, 0.001)  # towards the release, strongest first
FOLDS = 5
LEAST_RECORDS = 10  # to learn from
_STEPS = 300
_ABOUT = "about.json"
_LEAST = 1e-12  # floor of probabilities before the logarithm

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class PersonalModel:
    """Figures of a personal model and its release on the box's evaluation records. Private."""

    release: str  # version that was fine-tuned
    digest: str  # of that release, SHA-256 in hex
    training_records: int
    evaluation_records: int
    pull: float | None  # None: the release's own head did best, or training kept weights
    shared_accuracy: float | None
    personal_accuracy: float | None
    shared_loss: float | None
    personal_loss: float | None
    largest_class_rate: float | None = None  # of the evaluation records
    shared_balanced_accuracy: float | None = None  # accuracy, where their classes are uneven
    personal_balanced_accuracy: float | None = None
    kept_weights: int = 0  # tensors that the job's training kept on this box


def personal_model(state_dir: Path, release: InstalledRelease) -> tuple[Path, PersonalModel]:
    """Return the file and figures. Raises UsageError unless made of the release in use."""
    try:
        about = PersonalModel(**json.loads((state_dir / PERSONAL_FOLDER / _ABOUT).read_bytes()))
    except (OSError, ValueError, TypeError):
        fix = "edgeveil edge personalise --config edge.yaml creates one"
        raise UsageError("holds no personal model", where=str(state_dir), fix=fix) from None
    if about.digest != release.digest:
        what = f"the personal model is of the release {about.release}, in use is {release.version}"
        fix = "create it again: edgeveil edge personalise --config edge.yaml"
        raise UsageError(what, where=str(state_dir / PERSONAL_FOLDER), fix=fix)
    return state_dir / PERSONAL_FOLDER / "model.onnx", about


def personalise(site: EdgeSite, releases: Path) -> PersonalModel:
    """Train and store the personal model of the release in use. Raises UsageError or DataError."""
    release = ReleaseStore(releases).current()
    if release is None:
        what = "holds no released model yet"
        raise UsageError(what, where=str(releases), fix="wait until a job is completed")
    graph = release.path.read_bytes()
    head = find_head(graph)
    features = _HeadFeatures(graph, head)
    key = load_split_key(site.state_dir / SPLIT_KEY_FILE)
    fixed = _split_share(site.state_dir, site.data.name)  # no job trains on the evaluation share
    share = USUAL_SHARE if fixed is None else fixed
    halves = device_records(site.data, key, evaluation_share=share, schema=features.schema)
    training, evaluation = (features.of(half) for half in halves)
    if len(training.y) < LEAST_RECORDS:
        what = f"has {len(training.y)} usable records to learn from, {LEAST_RECORDS} are needed"
        raise DataError(what, where="data", fix="use the shared model, or collect more")
    kept, pull = kept_weights(site, release), None
    if kept:
        content = with_tensors(graph, kept)
        whole = _HeadFeatures(content, learned := find_head(content))
        own = _score(learned, whole.of(halves[1]))
    else:
        pull = chosen_pull(head, training)
        learned = head if pull is None else fine_tuned(head, training, pull)
        content = head.replaced(graph, learned.weight, learned.bias)
        own = _score(learned, evaluation)
    shared = _score(head, evaluation)
    counts = len(training.y), len(evaluation.y)
    figures = shared[0], own[0], shared[1], own[1], shared[2].get("largest_class_rate")
    balanced = shared[2].get("balanced_accuracy"), own[2].get("balanced_accuracy")
    facts = *counts, pull, *figures, *balanced
    found = PersonalModel(release.version, release.digest, *facts, len(kept))
    folder = site.state_dir / PERSONAL_FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_durably(folder / "model.onnx", content, mode=0o600)
    write_durably(folder / _ABOUT, json.dumps(asdict(found), indent=2).encode(), mode=0o600)
    return found


def kept_weights(site: EdgeSite, release: InstalledRelease) -> dict[str, NDArray[np.generic]]:
    """Return the weights that the release's job trained and kept on this box, by name."""
    ledger_file, job = site.state_dir / LEDGER_FILE, str(release.meta.get("job_id", ""))
    if (path := personal_file(site.state_dir, job)).exists():
        return unpack_tensors(path.read_bytes())
    if not ledger_file.exists():
        return {}
    with closing(Ledger(ledger_file, site.data.name)) as ledger:
        kept = ledger.kept(job)  # the job has not ended here
    return personal_weights(unpack_tensors(kept) if kept else {})


@dataclass(frozen=True)
class _HeadRecords:
    """Input of the head: features (n, d), labels (n,)."""

    phi: Float64
    y: NDArray[np.int64]

    def at(self, where: NDArray[np.bool_]) -> _HeadRecords:
        return _HeadRecords(self.phi[where], self.y[where])


class _HeadFeatures:
    def __init__(self, graph: bytes, head: LinearHead) -> None:
        self._session = open_session(with_output(graph, head.features))
        (given,) = (one for one in self._session.get_inputs() if one.name == "x")
        self._shape = tuple(axis if isinstance(axis, int) else 0 for axis in given.shape[1:])
        self._head = head
        self.schema = schema_in(self._session.get_modelmeta().custom_metadata_map, self._shape)

    def of(self, records: Records) -> _HeadRecords:
        fitting = of_shape(records, self._shape)
        x = fitting.x.reshape(len(fitting), *self._shape)
        classes, width = self._head.weight.shape[1], self._head.weight.shape[0]
        batches = (x[start : start + BATCH_RECORDS] for start in range(0, len(x), BATCH_RECORDS))
        session, features = self._session, self._head.features
        parts = [run_session(session, features, {"x": aligned(batch)}) for batch in batches]
        phi = np.concatenate(parts).astype(np.float64) if parts else np.zeros((0, width))
        sound = np.isfinite(phi).all(axis=1) & (fitting.y >= 0) & (fitting.y < classes)
        return _HeadRecords(phi[sound], fitting.y[sound])


def chosen_pull(head: LinearHead, records: _HeadRecords) -> float | None:
    """Return the pull with the least cross-validated loss; None if the release is as good."""
    part = np.random.default_rng(0).permutation(len(records.y)) % FOLDS
    shared = _losses(head, records)
    best, least = None, 0.0
    for pull in PULLS:
        gained = np.empty(len(records.y))
        for fold in range(FOLDS):
            learned = fine_tuned(head, records.at(part != fold), pull)
            left_out = part == fold
            gained[left_out] = _losses(learned, records.at(left_out)) - shared[left_out]
        error = float(gained.std(ddof=1) / np.sqrt(len(gained)))
        if gained.mean() < min(least, -error):
            best, least = pull, float(gained.mean())
    return best


def fine_tuned(head: LinearHead, records: _HeadRecords, pull: float) -> LinearHead:
    """Minimise mean cross-entropy + pull/2 · size · squared distance to the release's head.

    `size` is the mean squared norm of the features, which makes pulls comparable. Uses accelerated
    gradient descent (Nesterov 1983).
    """
    phi, begin, n = records.phi, head.weight, len(records.y)
    if head.bias is not None:
        phi, begin = np.hstack([phi, np.ones((n, 1))]), np.vstack([begin, head.bias])
    target = np.eye(begin.shape[1])[records.y]
    size = float(np.square(phi).sum() / max(n, 1)) or 1.0
    strength = pull * size
    # The softmax's curvature is at most half of that of the features (Böhning 1992).
    largest = float(np.linalg.norm(phi.T @ phi, 2)) / (2 * max(n, 1)) + strength
    here, ahead, speed = begin, begin, 1.0
    for _ in range(_STEPS):
        slope = phi.T @ (_softmax(phi @ ahead) - target) / max(n, 1) + strength * (ahead - begin)
        after = ahead - slope / largest
        faster = (1 + np.sqrt(1 + 4 * speed * speed)) / 2
        ahead = after + (speed - 1) / faster * (after - here)
        here, speed = after, faster
    width = head.weight.shape[0]
    bias = here[width] if head.bias is not None else None
    return LinearHead(head.features, here[:width], bias, -1, -1, _transposed=False)


def _probabilities(head: LinearHead, phi: Float64) -> Float64:
    return _softmax(phi @ head.weight + (0.0 if head.bias is None else head.bias))


def _softmax(logits: Float64) -> Float64:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float64)


def _losses(head: LinearHead, records: _HeadRecords) -> Float64:
    found = _probabilities(head, records.phi)[np.arange(len(records.y)), records.y]
    return np.asarray(-np.log(np.maximum(found, _LEAST)), np.float64)


def _score(
    head: LinearHead, records: _HeadRecords
) -> tuple[float | None, float | None, Mapping[str, float]]:
    """Return (accuracy, mean cross-entropy, figures of guessing); None without records."""
    if not len(records.y):
        return None, None, {}
    found = _probabilities(head, records.phi)
    right, figures = np.argmax(found, axis=1) == records.y, classification_figures(found, records.y)
    return float(right.mean()), float(_losses(head, records).mean()), baselines(figures)


def summary(found: PersonalModel, state_dir: Path) -> Sequence[str]:
    """Return lines for the owner, for the box's console only."""

    def text(accuracy: float | None, balanced: float | None) -> str:
        rates = {"largest_class_rate": found.largest_class_rate, "balanced_accuracy": balanced}
        return leading_text(ACCURACY, accuracy, rates)

    records = f"{found.training_records} records of this box"
    lines = [f"release {found.release}: its head learned further on {records}"]
    if found.kept_weights:
        lines = [
            f"release {found.release}: with {found.kept_weights} weights that training kept here"
        ]
    elif found.pull is None:
        lines = [f"release {found.release}: on {records} its own head does best and is kept"]
    if found.evaluation_records and found.shared_loss is not None:
        shared = text(found.shared_accuracy, found.shared_balanced_accuracy)
        personal = text(found.personal_accuracy, found.personal_balanced_accuracy)
        lines.append(
            f"on {found.evaluation_records} evaluation records of this box, which neither learned"
            f" from: shared model accuracy {shared}, loss {found.shared_loss:.3f}; personal model"
            f" accuracy {personal}, loss {found.personal_loss:.3f}"
        )
    else:
        lines.append("no evaluation records to compare the two models on")
    lines.append("private: trained without noise, no guarantee covers it; it stays on this box")
    lines.append(f"use it: edgeveil predict --personal {state_dir} RECORDS")
    return lines


def _split_share(state_dir: Path, dataset: str) -> float | None:
    path = state_dir / STORE_FILE
    if not path.exists():
        return None
    names = (split_fact(SPLIT_SHARE, dataset), split_fact(SPLIT_SHARE, ""), SPLIT_SHARE)
    query = "SELECT value FROM facts WHERE name IN (?, ?, ?) ORDER BY name DESC"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            row = db.execute(query, names).fetchone()
            return None if row is None else float(row[0])
    except (sqlite3.Error, ValueError, TypeError) as error:
        fix = "see edgeveil check"
        raise StorageError(f"cannot be read ({error})", where=str(path), fix=fix) from error
