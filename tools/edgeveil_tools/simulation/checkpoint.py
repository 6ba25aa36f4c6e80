"""Where an interrupted simulation goes on: what stood after a committed exchange, in one file.

It holds what simulated devices keep to themselves, and the state of all chance. It is for the one
who runs the simulation, mode 0600, and goes with the run's end.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from edgeveil.errors import UsageError
from edgeveil_tools.result import write_whole

CHECKPOINT = "simulation.checkpoint"
EVERY_S = 5.0  # between two; an interruption costs this and the open round at most


class KeptDevice(msgspec.Struct, frozen=True):
    """One device's: where its noise stands, the exchanges that it answered, and packed what it
    released of those that later ones build on, and what it keeps."""

    number: int
    noise: str
    answered: list[int]
    released: dict[int, bytes]
    kept: bytes


class Checkpoint(msgspec.Struct, frozen=True):
    """After `exchange`, whose event was number `events`. `stamp` says of which job and settings,
    `state` is the method's, packed, and `chance` where the streams of the front stand."""

    stamp: str
    exchange: int
    events: int
    seconds: float
    accuracy: float | None
    chance: list[str]
    state: bytes
    devices: list[KeptDevice]
    federated: dict[str, Any] | None = None  # of the exchange, where it was an evaluation

    def save(self, folder: Path) -> None:
        """Replace the folder's. Raises OSError."""
        path = folder / CHECKPOINT
        write_whole(path, msgspec.msgpack.encode(self), mode=0o600)


def load_checkpoint(folder: Path, stamp: str) -> Checkpoint:
    """The folder's. Raises UsageError where there is none of this stamp."""
    path = folder / CHECKPOINT
    try:
        found = msgspec.msgpack.decode(path.read_bytes(), type=Checkpoint)
    except FileNotFoundError:
        raise UsageError(
            "holds no interrupted simulation", where=str(folder), fix="leave out --resume"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        why = f"cannot be read ({type(error).__name__})"
        raise UsageError(why, where=str(path), fix="leave out --resume") from None
    if found.stamp != stamp:
        raise UsageError(
            "is of another job, other settings or another version of EdgeVeil",
            where=str(path),
            fix="put them back, or leave out --resume and begin anew",
        )
    return found


def drop_checkpoint(folder: Path) -> None:
    """The run has ended."""
    (folder / CHECKPOINT).unlink(missing_ok=True)


def by_number(states: Iterable[Iterable[KeptDevice]]) -> list[KeptDevice]:
    """All workers' devices in one list."""
    return sorted((one for some in states for one in some), key=lambda one: one.number)
