"""Published figures that stand beside ours in a table, by the name of the job that is compared.

They are claims: docs/privacy.md says which of the guarantees behind them do not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """Accuracies as published, and where."""

    method: str
    low: float
    high: float
    source: str

    @property
    def text(self) -> str:
        """`DELM 0.962 to 0.981`."""
        span = f"{self.low:.3f}" + (f" to {self.high:.3f}" if self.high > self.low else "")
        return f"{self.method} {span}"


_SOURCE = "Cao et al. 2023, Differentially Private Federated Learning with Functional Mechanism"
_AT_1 = (
    Claim("DELM", 0.962, 0.981, f"{_SOURCE}, fig. 3a"),
    Claim("LDP-FL", 0.927, 0.927, f"{_SOURCE}, fig. 3a"),
)
_AT_01 = (
    Claim("DELM", 0.913, 0.922, f"{_SOURCE}, fig. 3b"),
    Claim("LDP-FL", 0.826, 0.826, f"{_SOURCE}, fig. 3b"),
)
CLAIMS: dict[str, tuple[Claim, ...]] = {
    "mnist_fm_local": _AT_1,
    "mnist_fm_nofeatures": _AT_1,
    "mnist_fm_local_eps01": _AT_01,
}


CHOSEN_ON = (
    "chosen on the images that devices learn from: features and parameters of {names} were set by"
    " the accuracy on 10,000 of MNIST's 60,000 training images, after learning on the others; the ε"
    " does not price that choice, and no test image took part in it"
)
_TUNED = ("mnist_fm_local", "mnist_fm_local_eps01", "mnist_fm_nofeatures")


def chosen_note(names: Sequence[str]) -> str:
    """What a table says of rows whose settings were chosen on the records that they learn from."""
    return CHOSEN_ON.format(names=", ".join(names)) if names else ""


def was_tuned(job: str, source: str) -> bool:
    """Whether the settings of this job were chosen on the very records of its data set."""
    return source == "mnist" and job.replace("-", "_") in _TUNED


def claims(job: str) -> tuple[Claim, ...]:
    """What was published for the task of this job; names may be written with - or _."""
    return CLAIMS.get(job.replace("-", "_"), ())
