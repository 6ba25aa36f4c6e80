"""Published figures that stand beside ours in a table, by the name of the job that is compared.

They are claims: docs/privacy.md says which of the guarantees behind them do not hold.
"""

from __future__ import annotations

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


def claims(job: str) -> tuple[Claim, ...]:
    """What was published for the task of this job; names may be written with - or _."""
    return CLAIMS.get(job.replace("-", "_"), ())
