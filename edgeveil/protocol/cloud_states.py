"""Where the cloud stands in a job, as a table."""

from __future__ import annotations

from enum import Enum

from edgeveil.protocol.transitions import StateTable


class State(Enum):
    """Where the cloud stands in the job it runs."""

    IDLE = "idle"
    SEALING_JOB = "sealing_job"
    ANNOUNCING = "announcing"
    SEALING = "sealing"
    BROADCASTING = "broadcasting"
    WAITING = "waiting"
    ABSORBING = "absorbing"
    SEALING_RELEASE = "sealing_release"
    RELEASING = "releasing"


_S = State
_RUNNING = [state for state in State if state is not _S.IDLE]
TABLE = StateTable(
    _S.IDLE,
    {
        (_S.IDLE, "start"): _S.SEALING_JOB,
        (_S.SEALING_JOB, "sealed"): _S.ANNOUNCING,
        (_S.ANNOUNCING, "held"): _S.SEALING,
        (_S.ANNOUNCING, "held_all_committed"): _S.SEALING_RELEASE,
        (_S.SEALING, "sealed"): _S.BROADCASTING,
        (_S.BROADCASTING, "held"): _S.WAITING,
        (_S.BROADCASTING, "batch"): _S.ABSORBING,
        (_S.WAITING, "batch"): _S.ABSORBING,
        (_S.ABSORBING, "committed"): _S.SEALING,
        (_S.ABSORBING, "committed_last"): _S.SEALING_RELEASE,
        (_S.SEALING_RELEASE, "sealed"): _S.RELEASING,
        (_S.RELEASING, "held"): _S.IDLE,
    }
    | {(s, "repeat"): _S.SEALING for s in (_S.BROADCASTING, _S.WAITING, _S.ABSORBING)}
    | {(s, how): _S.IDLE for how in ("pause", "end") for s in _RUNNING},
)
