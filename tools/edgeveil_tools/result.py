"""What a run leaves behind for scripts: `result.json`.

    job                   the job's name
    status, reason        `completed` or `failed`, and why (`interrupted`: by Ctrl-C); of a
                          completed job, whether a rule ended it before its last round
    rounds                one entry per committed training round:
        round             its number, from 1
        accuracy, loss    of the global model on the cloud's test records, or null; the loss is
                          the mean cross-entropy in nats
        uploads, declined answers that were counted, devices that refused
        cluster_scores    null, or {eval_type, score, reason, used, wanted, labels, squared,
                          corrected, corrected_error, corrected_reason, noise_variance}: `used` of
                          `wanted` uploads were scored; `corrected` estimates the score without the
                          noise, with standard error, null where the reason says why; of
                          silhouettes it is that of squared distances, `squared` the one with noise
        seconds           from sealing the broadcast to the commit
        bytes             {cloud_out, cloud_in}: payload that left and reached the cloud
        epsilon           {training, inference}: by plan, up to and with this round. Progress:
                          the guarantee, also of a run that ended here, is `privacy`
        attempt           from 1
    phases                the same for the exchanges before round 1, `phase` instead of `round`
    final                 {accuracy, measured_on}: after the last committed round, or null; and on
                          which records this and the loss and accuracy of all rounds are measured
    reference             noise-free on the same records: {accuracy, rounds: [accuracy …], note};
                          of a run on own records only with --reference, and the note then says
                          that it is a figure without any protection
    privacy.training      {epsilon, delta, unit, status} of what was spent, with Gaussian noise
                          the job's whole plan however early it ended; status is `proven`,
    privacy.inference     `claimed` or `none`; inference also has epsilon_per_round. An ε that is
                          infinite or not asked for is null. Neither alone is "the" ε. Noise that
                          hides a device from none has a record_epsilon for one record among
                          others; a note says of an ε that it is too large to protect
    shuffle               what the shuffle earned, proven by the clone bound against a curious cloud
                          alone; of training and of inference {purpose, epsilon, delta, uploads,
                          rounds, local_epsilon, segments, claimed_epsilon}; empty where its
                          conditions fail or a round was repeated
    aggregation           {rule, note}: how uploads became one, and what texts claim of its chance
    bytes                 by hop: {cloud_to_proxy, proxy_to_devices, devices_to_proxy,
                          proxy_to_cloud}; what the proxy publishes for all counts once
    broker, protocol      engine with version; MQTT version asked for, null in a simulation
    simulated, encryption whether all parties were played in one process; `on` or `off`
    note                  of a simulation: that it protects nobody; else empty
    devices               how many took part, `infer_only` of them without training
    seconds               of the whole command, starting and stopping included
    memory_peak_bytes     of all processes together, or null
    versions              {edgeveil, python, …}

Numbers are JSON numbers; NaN and infinity never occur.
"""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from edgeveil.privacy.events import Unit
from edgeveil.privacy.guarantee import up, worth
from edgeveil.privacy.policy import Quote

Status = Literal["completed", "failed"]
SIMULATED = (
    "simulated with seeded noise: this run protects nobody; ε is what a real run of the job costs"
)
UNPROTECTED = (
    "computed from the run's own records without any protection: no guarantee covers it, not for"
    " passing on"
)
MEASURED_ON = {
    True: "the published set's test records",
    False: "records held back from the run's own: exact figures of these, which no guarantee"
    " covers",
}
HOPS = ("cloud_to_proxy", "proxy_to_devices", "devices_to_proxy", "proxy_to_cloud")
LIBRARIES = ("numpy", "torch", "onnxruntime", "cryptography", "paho-mqtt")
_ENDS = ("job_completed", "job_failed", "job_cancelled", "job_paused")  # of a run
_SCORES = (
    *("eval_type", "score", "reason", "used", "wanted", "labels", "squared"),
    *("corrected", "corrected_error", "corrected_reason", "noise_variance"),
)


@dataclass
class Record:
    """A job's course, taken from its events one by one."""

    events: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    phases: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0  # exchanges that devices were asked to answer, committed or not
    ended: str = ""
    reason: str = ""
    privacy: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Take the next event; events of unknown types are kept and change nothing."""
        self.events.append(event)
        kind, data = event["type"], event["data"]
        if kind == "exchange_committed":
            row = _row(data)
            (self.rounds if data["phase"] == "train" else self.phases).append(row)
        elif kind == "broadcast" and data.get("kind") == "round":
            self.asked = self.committed + 1
        elif kind == "all_declined":
            self.asked = self.committed
        elif kind in _ENDS:
            self.ended = kind.removeprefix("job_")
            self.reason = data.get("reason") or self.reason
            self.privacy = data.get("privacy") or self.privacy

    @property
    def committed(self) -> int:
        """Exchanges committed so far, preparatory ones included."""
        return len(self.rounds) + len(self.phases)

    @property
    def repeated(self) -> bool:
        """Whether a committed exchange took more than one attempt."""
        return any(row["attempt"] > 1 for row in (*self.phases, *self.rounds))

    @property
    def accuracy(self) -> float | None:
        """After the last committed round."""
        return self.rounds[-1]["accuracy"] if self.rounds else None


@dataclass(frozen=True)
class Facts:
    """What the run itself knows, beside the job's events.

    `privacy` prices all exchanges that devices were asked for: of a job that did not complete,
    the last ones may have been answered though nothing of it was committed.
    """

    job: str
    status: Status
    reason: str
    broker: str
    protocol: int | None
    devices: int
    infer_only: int
    seconds: float
    memory_peak_bytes: int | None
    reference: Sequence[float]
    bytes: Mapping[str, int]
    privacy: Mapping[str, Any]
    simulated: bool = False
    published: bool = True  # whether the records are those of a published set
    shuffle: Sequence[Mapping[str, Any]] = ()
    aggregation: Mapping[str, str] = field(default_factory=dict)


def build(record: Record, facts: Facts) -> dict[str, Any]:
    """The content of `result.json`."""
    reference = [float(value) for value in facts.reference]
    found = {
        "job": facts.job,
        "status": facts.status,
        "reason": facts.reason or record.reason,
        "rounds": record.rounds,
        "phases": record.phases,
        "final": {"accuracy": record.accuracy, "measured_on": MEASURED_ON[facts.published]},
        "reference": {
            "accuracy": reference[-1] if reference else None,
            "rounds": reference,
            "note": UNPROTECTED if reference and not facts.published else "",
        },
        "privacy": (facts.status == "completed" and record.privacy) or dict(facts.privacy),
        "shuffle": [dict(credit) for credit in facts.shuffle],
        "aggregation": dict(facts.aggregation),
        "bytes": dict(facts.bytes),
        "broker": facts.broker,
        "protocol": facts.protocol,
        "simulated": facts.simulated,
        "encryption": "off" if facts.simulated else "on",
        "note": SIMULATED if facts.simulated else "",
        "devices": facts.devices,
        "infer_only": facts.infer_only,
        "seconds": round(facts.seconds, 3),
        "memory_peak_bytes": facts.memory_peak_bytes,
        "versions": versions(),
    }
    plain: dict[str, Any] = finite(found)
    return plain


def privacy_of(
    quote: Quote, epsilon_per_round: float | None, inference_unit: Unit = "device"
) -> dict[str, Any]:
    """Both guarantees as `result.json` holds them; `inference_unit` is that of the job's uploads,
    which an inference guarantee without any release does not know."""
    parts: dict[str, dict[str, Any]] = {
        name: {
            "epsilon": g.epsilon,
            "delta": g.delta,
            "unit": g.unit,
            "status": g.status,
            **g.of_records,
            **g.notes,
        }
        for name, g in (("training", quote.training), ("inference", quote.inference))
    }
    parts["inference"]["epsilon_per_round"] = epsilon_per_round
    if not quote.inference.epsilon:
        parts["inference"]["unit"] = inference_unit
    return parts


def guarantee_text(privacy: Mapping[str, Any], which: str) -> str:
    """One guarantee in words: `(ε = 8, δ = 1e-05) per record, whole job, proven`."""
    part = privacy[which]
    if part["status"] != "proven" or part["epsilon"] is None:
        return "no proven guarantee"
    if not part["epsilon"]:
        return "nothing was released" + (" of any record, ε = 0" if which == "training" else "")
    unit, delta = part["unit"], part["delta"]
    total = f"ε = {up(part['epsilon'])}" + (f", δ = {up(delta)}" if delta else "")
    if which == "inference" and part.get("epsilon_per_round"):
        return (
            f"ε = {up(part['epsilon_per_round'])} per round, {total} in total, per {unit},"
            f" proven{worth(part['epsilon'])}"
        )
    return f"({total}) per {unit}, whole job, proven{record_text(part)}{worth(part['epsilon'])}"


def record_text(part: Mapping[str, Any]) -> str:
    """`; per record ε = 19.15` where that is not the guarantee itself, else nothing."""
    if "record_epsilon" not in part:
        return ""
    among = part["record_epsilon"]
    return f"; per record {'none' if among is None else f'ε = {up(among)}'}"


def course_text(result: Mapping[str, Any]) -> str:
    """How far a run came: `15 rounds after 1 preparatory exchange`."""
    rounds, phases = len(result["rounds"]), len(result["phases"])
    text = f"{rounds} round{'' if rounds == 1 else 's'}"
    return (
        f"{text} after {phases} preparatory exchange{'' if phases == 1 else 's'}"
        if phases
        else text
    )


def versions() -> dict[str, str]:
    """Versions that decide what came out."""
    found = {"python": platform.python_version()}
    for name in ("edgeveil", *LIBRARIES):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write whole or not at all."""
    write_whole(path, json.dumps(content, indent=2, allow_nan=False).encode() + b"\n")


def write_whole(path: Path, raw: bytes) -> None:
    """Replace a file in one step, so that a reader never sees a part of it."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        scratch.write_bytes(raw)
        os.replace(scratch, path)  # noqa: PTH105 - says what it does
    finally:
        scratch.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """The same with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def _row(data: Mapping[str, Any]) -> dict[str, Any]:
    clusters = data.get("clusters")
    name = {"round": data["number"]} if data["phase"] == "train" else {"phase": data["phase"]}
    return {
        **name,
        "accuracy": data.get("accuracy"),
        "loss": data.get("loss"),
        "uploads": data["uploads"],
        "declined": data.get("declined", 0),
        "cluster_scores": {key: clusters.get(key) for key in _SCORES} if clusters else None,
        "seconds": data.get("seconds", 0.0),
        "bytes": dict(data.get("bytes", {})),
        "epsilon": dict(data.get("epsilon", {})),
        "attempt": data.get("attempt", 1),
    }
