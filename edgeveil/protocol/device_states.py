"""Where a device stands in a round, as a table."""

from __future__ import annotations

from enum import Enum

from edgeveil.protocol.transitions import StateTable


class State(Enum):
    """Where a device stands in the round it last heard of."""

    IDLE = "idle"
    FETCHING = "fetching"
    OPENING = "opening"
    WORKING = "working"
    UPLOADING = "uploading"
    ANSWERED = "answered"


_S = State
TABLE = StateTable(
    _S.IDLE,
    {(state, "manifest"): _S.FETCHING for state in State}
    | {(state, "closed"): _S.IDLE for state in State}
    | {
        (_S.FETCHING, "complete"): _S.OPENING,
        (_S.OPENING, "not_for_me"): _S.IDLE,
        (_S.OPENING, "opened"): _S.WORKING,
        (_S.OPENING, "covering"): _S.WORKING,
        (_S.WORKING, "covering"): _S.WORKING,
        (_S.WORKING, "declined"): _S.IDLE,
        (_S.WORKING, "sealed"): _S.UPLOADING,
        (_S.IDLE, "restored"): _S.UPLOADING,
        (_S.IDLE, "restored_held"): _S.ANSWERED,
        (_S.UPLOADING, "held"): _S.ANSWERED,
        (_S.UPLOADING, "refused"): _S.IDLE,
        (_S.UPLOADING, "expired"): _S.IDLE,
        (_S.FETCHING, "expired"): _S.IDLE,
    },
)
