"""Results of a run: `Result` for Python, `result.json` (docs/python.md) for scripts."""

from __future__ import annotations

import json
import math
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from edgeveil.errors import UsageError
from edgeveil.evaluation.figures import (
    AUC,
    RMSE,
    cluster_text,
    federated_text,
    leading,
    leading_of,
    leading_text,
)
from edgeveil.jobs import Plan
from edgeveil.pages.parts import counted
from edgeveil.parts.round import EVALUATIONS, TRAIN
from edgeveil.privacy.guarantee import down, guarantee_lines, up
from edgeveil.privacy.policy import Quote
from edgeveil.statistics.answer_text import head_text, rows
from edgeveil.statistics.drift import lines as drift_lines
from edgeveil.units import byte_text, seconds_text

if TYPE_CHECKING:
    from edgeveil_tools.statistics.answers import Statistics

_ENDS = ("job_completed", "job_failed", "job_cancelled", "job_paused")  # events that end a run
Status = Literal["completed", "failed"]
SIMULATED = "simulated with seeded noise, protects nobody; ε is the cost of a real run of the job"
UNPROTECTED = (
    "computed from the run's own records without noise: no guarantee covers it; do not publish it"
)
MEASURED_ON = {
    True: "the published set's test records",
    False: "test records held back from the run's own: exact figures that no guarantee covers",
}
LIBRARIES = ("numpy", "torch", "onnxruntime", "cryptography")
_SCORES = ("eval_type", "score", "reason", "used", "wanted", "labels")
_MEAN = ("mean", "uploads", "noise_deviation")


@dataclass
class RunEvents:
    """The state of a job, updated event by event."""

    events: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0  # rounds that devices were asked to answer, committed or not
    ended: str = ""
    reason: str = ""
    privacy: dict[str, Any] | None = None
    early_stopping: dict[str, Any] | None = None
    statistics: dict[str, Any] | None = None
    drift: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Process the next event; events of unknown types are only stored."""
        self.events.append(event)
        kind, data = event["type"], event["data"]
        if kind == "exchange_committed":
            row = round_row(data)
            if found := data.get("statistics"):
                self.statistics, self.drift = found, data.get("drift")
            kept = {TRAIN: self.rounds, **dict.fromkeys(EVALUATIONS, self.evaluations)}
            kept.get(data["phase"], self.phases).append(row)
            if data["phase"] in EVALUATIONS and self.rounds and row.get("figures"):
                self.rounds[-1]["figures"] = row["figures"]  # more figures of the same model
        elif kind == "broadcast" and data.get("kind") == "round":
            self.asked = self.committed + 1
        elif kind == "all_declined":
            self.asked = self.committed
        elif kind in _ENDS:
            self.ended = kind.removeprefix("job_")
            self.reason = data.get("reason") or self.reason
            self.privacy = data.get("privacy") or self.privacy
            self.early_stopping = data.get("early_stopping")

    @property
    def released(self) -> dict[str, Any]:
        """The row of the training round whose model is released; {} without rounds."""
        facts = self.early_stopping or {}
        best = facts.get("best_round") if facts.get("releases") == "best" else None
        rows = [row for row in self.rounds if best in (None, row["round"])]
        return rows[-1] if rows else {}

    @property
    def committed(self) -> int:
        """Number of committed rounds, with preparatory ones and evaluations."""
        return len(self.rounds) + len(self.phases) + len(self.evaluations)

    @property
    def repeated(self) -> bool:
        """Whether a committed round took more than one attempt."""
        rows = (*self.phases, *self.rounds, *self.evaluations)
        return any(row["attempt"] > 1 for row in rows)


PlainTable = list[dict[str, Any]]


class Result:
    """The result of a run: `content` is `result.json`, `folder` the run's folder."""

    TABLES = ("rounds", "epsilon", "uploads", "evaluations")

    def __init__(self, content: Mapping[str, Any], folder: Path) -> None:
        self.content, self.folder = dict(content), folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the result of an earlier run by its folder; raises UsageError without one."""
        path = Path(folder) / "result.json"
        try:
            content = json.loads(path.read_bytes())
            if content["status"] not in get_args(Status) or not {"job", "final"} <= content.keys():
                raise ValueError("another file of this name")
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            fix = "name the folder of a run, its --out"
            raise UsageError("is no result of a run", where=str(path), fix=fix) from error
        return cls(content, Path(folder))

    @property
    def job(self) -> str:
        return str(self.content["job"])

    @property
    def status(self) -> str:
        """`completed` or `failed`."""
        return str(self.content["status"])

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the final model on the test records, in 0..1; None without a test."""
        return cast("float | None", self.content["final"]["accuracy"])

    @property
    def rmse(self) -> float | None:
        """RMSE of the final model on the test records, in the unit of a numeric label."""
        return leading_of(RMSE, self.content["final"])

    @property
    def auc(self) -> float | None:
        """AUC of the final model on the test records of an anomaly job."""
        return leading_of(AUC, self.content["final"])

    @property
    def reference_accuracy(self) -> float | None:
        """Accuracy of the noise-free reference, if one was trained."""
        return cast("float | None", self.content["reference"]["accuracy"])

    @property
    def privacy(self) -> dict[str, Any]:
        """Both guarantees, {training: {epsilon, …}, inference: {…}}; None: nothing is proven."""
        return dict(self.content["privacy"])

    @property
    def rounds(self) -> PlainTable:
        """Rows of committed training rounds: round, accuracy, loss, uploads, seconds and others."""
        return [_flat(row) for row in self.content["rounds"]]

    @property
    def evaluations(self) -> PlainTable:
        """Rows of federated evaluations.

        Keys are round, the cloud's accuracy, and `federated_…` figures of the devices' own
        records."""
        return [_flat(row) for row in self.content.get("evaluations", ())]

    @property
    def epsilon(self) -> PlainTable:
        """Planned ε up to each round, as progress; the guarantee is `privacy`.

        With shared noise `collusion` is training's ε if all others collude."""
        shared = any("collusion" in row["epsilon"] for row in self._rounds)
        keys = ("training", *["collusion"] * shared, "inference")
        return [_named(row) | {k: row["epsilon"].get(k) for k in keys} for row in self._rounds]

    @property
    def uploads(self) -> PlainTable:
        """Counted answers, declining devices and bytes by round."""
        keys = ("uploads", "declined", "attempt")
        return [
            _named(row)
            | {key: row[key] for key in keys}
            | {f"{hop}_bytes": count for hop, count in row["bytes"].items()}
            for row in self._rounds
        ]

    def table(self, name: str = "rounds") -> PlainTable:
        """Return one of TABLES by name; raises UsageError for another."""
        if name not in self.TABLES:
            raise UsageError(f"no table '{name}'", fix=f"name one of {', '.join(self.TABLES)}")
        return cast("PlainTable", getattr(self, name))

    @property
    def statistics(self) -> Statistics | None:
        """Answers of a job of kind statistics; None of others."""
        from edgeveil_tools.statistics.answers import Statistics

        found = self.content.get("statistics")
        return None if found is None else Statistics(found)

    @property
    def events(self) -> PlainTable:
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def model(self) -> Path:
        """The final ONNX model's path, for `edgeveil.predict` and every ONNX runtime."""
        return self.folder / "model.onnx"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def _rounds(self) -> list[dict[str, Any]]:
        evaluations = self.content.get("evaluations", ())
        found: list[dict[str, Any]] = [*self.content["phases"]]
        for row in self.content["rounds"]:
            found += [row, *(one for one in evaluations if one["round"] == row["round"])]
        return found

    def __str__(self) -> str:
        return "\n".join(f"{name}: {value}" for name, value in summary(self.content))

    def __repr__(self) -> str:
        final = self.content["final"]
        name, value = leading(final)
        figure = leading_text(name, value, final.get("figures"))
        return f"<Result of {self.job}: {self.status}, {name} {figure}>"


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"phase": row.get("phase", "train"), "round": row.get("round", 0)}


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        inner = value.items() if isinstance(value, Mapping) else [("", value)]
        found |= {f"{key}_{name}" if name else key: one for name, one in inner}
    return {key: one for key, one in found.items() if not isinstance(one, list | Mapping)}


def build(
    record: RunEvents,
    *,
    privacy: Mapping[str, Any],
    reference: Sequence[float],
    published: bool = True,
    simulated: bool = False,
    **facts: Any,
) -> dict[str, Any]:
    """Return the content of `result.json`.

    Args:
        record: the job's events.
        privacy: price of all rounds that devices were asked for, committed or not.
        reference: the noise-free figure by round.
        published: whether the records are those of a published set.
        simulated: whether the run was simulated.
        facts: job, status, reason, broker, protocol, devices, infer_only, seconds,
            memory_peak_bytes, bytes; optionally engine, shuffle, aggregation, seen and audit.
    """
    ideal = [float(value) for value in reference]
    final = record.released
    led, sums = leading(final)[0], _last(record.evaluations, "cluster_scores")
    last = {led.lower(): ideal[-1] if ideal else None}
    whole = finite(
        {
            "shuffle": [],
            "aggregation": {},
            "seen": [],
            "engine": None,
            **facts,
            "reason": facts["reason"] or record.reason,
            "rounds": record.rounds,
            "phases": record.phases,
            "evaluations": record.evaluations,
            "final": {
                "accuracy": final.get("accuracy"),
                "figures": final.get("figures"),
                "measured_on": MEASURED_ON[published],
                "federated": _last(record.evaluations, "federated"),
                **({"cluster_scores": sums} if sums else {}),
                **({"early_stopping": stopped} if (stopped := record.early_stopping) else {}),
            },
            "reference": {
                "accuracy": None,
                **last,
                "rounds": ideal,
                "note": UNPROTECTED if ideal and not published else "",
            },
            **({"statistics": record.statistics} if record.statistics else {}),
            **({"drift": record.drift} if record.drift else {}),
            "privacy": (facts["status"] == "completed" and record.privacy) or dict(privacy),
            "simulated": simulated,
            "encryption": "off" if simulated else "on",
            "note": SIMULATED if simulated else "",
            "seconds": round(facts["seconds"], 3),
            "versions": versions(),
        }
    )
    return cast("dict[str, Any]", whole)


def _last(rows: Sequence[Mapping[str, Any]], key: str) -> Any:
    return next((row[key] for row in reversed(rows) if row.get(key)), None)


def privacy_of_plan(plan: Plan, quote: Quote) -> dict[str, Any]:
    """Return both guarantees for `result.json`."""
    parts = {"training": quote.training.plain, "inference": quote.inference.plain}
    parts["inference"]["epsilon_per_round"] = plan.epsilon_per_inference
    if not quote.inference.epsilon:
        parts["inference"]["unit"] = plan.softmax_event().unit
    return parts


def summary(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a run as (name, text) rows; both guarantees always appear together."""
    from edgeveil.jobs.shuffle_amplification import ShuffleCredit

    rounds, phases = result["rounds"], result["phases"]
    uploads = sum(row["uploads"] for row in (*rounds, *phases, *result.get("evaluations", ())))
    hops, final, reference = result["bytes"], result["final"], result["reference"]
    own = "" if final["measured_on"] == MEASURED_ON[True] else f", on {final['measured_on']}"
    stopped = final.get("early_stopping") or {}
    if stopped.get("judged_by") == "cloud's test":
        own += "; not held out, as early stopping was judged by the same records"
    figures, (led, value) = final.get("figures"), leading(final)
    found = [("note", result["note"])]
    if not result.get("statistics") or result.get("evaluations"):
        found.append((f"final {led}", leading_text(led, value, figures) + own))
    if statistics := result.get("statistics"):
        found.append(("asked", head_text(statistics)))
        found += [(f"{column}: {name}", text) for column, name, text in rows(statistics)]
        found += [("note", text) for text in statistics.get("remarks", ())]
        found += [("drift", text) for text in drift_lines(result.get("drift", {}))]
    if federated := final.get("federated"):
        found.append(("federated", federated_text(federated)))
    if clusters := final.get("cluster_scores") or _last(rounds, "cluster_scores"):
        found.append(("clusters", cluster_text(clusters)))
    if figures:
        found.append(("other figures", figures_text(figures)))
    if (ideal := reference_of(reference)) is not None:
        unprotected = ", " * bool(reference["note"]) + reference["note"]
        found.append(("without noise", leading_text(led, ideal) + unprotected))
    found += guarantee_lines(result["privacy"])
    if audit := result.get("audit"):
        found.append(("  audit", audit_text(audit)))
    found += [("after the shuffle", str(ShuffleCredit(**c))) for c in result.get("shuffle", ())]
    after = f" after {counted(len(phases), 'preparation round')}" * bool(phases)
    why = "; " * bool(result["reason"]) + result["reason"]
    sent = f", {byte_text(sum(hops.values()))}" * bool(hops)
    if stopped.get("releases") == "best":
        after += f", of which round {stopped['best_round']} had the best figure and is released"
    found.append(("progress", f"{counted(len(rounds), 'round')}{after}{why}"))
    found.append(("uploads", f"{uploads} from {result['devices']} devices{sent}"))
    if engine := result.get("engine"):
        workers = engine["workers"]
        shown = f", {counted(workers, 'worker')}" if workers else ""
        found.append(("engine", f"{engine['name']}{shown}"))
    memory = byte_text(result["memory_peak_bytes"] or 0)
    found.append(("time", f"{seconds_text(result['seconds'])}, {memory} of memory"))
    return [row for row in found if row[1]]


def audit_text(audit: Mapping[str, Any]) -> str:
    """Return the lower bound of an audit in one run, with what it could have shown at most."""
    return (
        f"ε ≥ {down(audit['epsilon_at_least'])}, printed {up(audit['printed_epsilon'])}, at"
        f" {audit['confidence']:.0%} confidence: {audit['right']} of {audit['guesses']} guesses"
        f" about {audit['canaries']} canaries right; could show at most"
        f" {down(audit['epsilon_if_all_right'])}"
    )


def reference_of(reference: Mapping[str, Any]) -> float | None:
    """Return the leading figure of a result's `reference`; None if none was trained."""
    found = (reference.get(key) for key in ("accuracy", "rmse", "auc"))
    return next((value for value in found if value is not None), None)


def figures_text(figures: Mapping[str, Any]) -> str:
    """Return secondary figures as text, such as `balanced accuracy 0.891, macro-F1 0.893`."""
    if "average_precision" in figures:
        shown = ("average_precision", "detection_rate", "false_alarm_rate")
        return ", ".join(
            f"{k.replace('_', ' ')} {share_text(figures[k])}" for k in shown if k in figures
        )
    if "rmse" in figures:
        return f"MAE {figures['mae']:.4g}, R² {share_text(figures['r2'])}"
    named = {"balanced accuracy": figures["balanced_accuracy"], "macro-F1": figures["macro_f1"]}
    named |= {"AUC": figures["auc"], "calibration error": figures["calibration"]["error"]}
    return ", ".join(f"{name} {share_text(value)}" for name, value in named.items())


def share_text(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("edgeveil", *LIBRARIES):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")


def write_whole(path: Path, raw: bytes) -> None:
    """Replace a file atomically: a reader never sees a part of it."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        scratch.write_bytes(raw)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def writing(
    where: Path, fix: str = "name a folder that you may write to with --out"
) -> Iterator[None]:
    """Raise a UsageError that names the file, or `where`, for an OSError in the context."""
    try:
        yield
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise UsageError(what, where=str(error.filename or where), fix=fix) from error


def finite(value: Any) -> Any:
    """Return the value with None for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def round_row(data: Mapping[str, Any]) -> dict[str, Any]:
    clusters, averaged = data.get("clusters"), data.get("mean_softmax")
    federated = data.get("federated") or {}
    if clusters and clusters.get("upload") != "sums":
        clusters = {key: clusters.get(key) for key in _SCORES}
    row: dict[str, Any] = {} if data["phase"] == TRAIN else {"phase": data["phase"]}
    if data["phase"] == TRAIN or data["phase"] in EVALUATIONS:
        row["round"] = data["number"]
    if federated:
        skipped = ("eval_type", "round")
        row["federated"] = {key: value for key, value in federated.items() if key not in skipped}
    return {
        **row,
        "accuracy": data.get("accuracy"),
        "loss": data.get("loss"),
        "figures": data.get("figures"),
        "uploads": data["uploads"],
        "declined": data.get("declined", 0),
        "cluster_scores": dict(clusters) if clusters else None,
        "mean_softmax": {key: averaged[key] for key in _MEAN} if averaged else None,
        "seconds": data.get("seconds", 0.0),
        "bytes": dict(data.get("bytes", {})),
        "epsilon": dict(data.get("epsilon", {})),
        "attempt": data.get("attempt", 1),
    }
