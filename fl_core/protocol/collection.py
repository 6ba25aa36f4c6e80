"""One round at the proxy: uploads come in, one shuffled batch goes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from fl_core.errors import ProtocolError
from fl_core.protocol.messages import SEAL_OVERHEAD_BYTES, Manifest, Upload
from fl_core.protocol.transitions import StateTable

Shuffle = Callable[[list[bytes]], None]
"""Permutes a list in place, uniformly, from the operating system's randomness."""


class State(Enum):
    """Where the proxy stands in one round."""

    COLLECTING = "collecting"
    GRACE = "grace"
    HANDING_OVER = "handing_over"
    SHORT = "short"
    DELIVERED = "delivered"


_S = State
TABLE = StateTable(
    _S.COLLECTING,
    {(state, "dropped"): _S.DELIVERED for state in State}
    | {
        (_S.COLLECTING, "quorum"): _S.GRACE,
        (_S.COLLECTING, "all_answered"): _S.HANDING_OVER,
        (_S.GRACE, "all_answered"): _S.HANDING_OVER,
        (_S.GRACE, "grace_over"): _S.HANDING_OVER,
        (_S.COLLECTING, "deadline_with_enough"): _S.HANDING_OVER,
        (_S.GRACE, "deadline_with_enough"): _S.HANDING_OVER,
        (_S.COLLECTING, "below_floor"): _S.SHORT,
        (_S.HANDING_OVER, "held_by_cloud"): _S.DELIVERED,
    },
)


@dataclass(frozen=True)
class Held:
    """A device's complete upload: which groups, and the sealed segments in one blob."""

    groups: tuple[int, ...]
    digest: bytes
    data: bytes


@dataclass
class Collection:
    """Uploads of one round. `floor` is the larger of the job's and this proxy's minimum."""

    manifest: Manifest
    floor: int
    state: State = TABLE.start
    uploads: dict[str, Held] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)

    @property
    def open(self) -> bool:
        """Uploads are still taken."""
        return self.state in (State.COLLECTING, State.GRACE)

    def check_form(self, upload: Upload) -> None:
        """Raise `wrong_groups` or `wrong_size` unless it is exactly what the manifest allows."""
        groups, known = upload.groups, self.manifest.groups
        if list(groups) != sorted(set(groups)) or groups[-1] >= len(known):
            raise ProtocolError("wrong_groups")
        expected = sum(known[g].padded_bytes + SEAL_OVERHEAD_BYTES for g in groups)
        if upload.blob.size_bytes != expected:
            raise ProtocolError("wrong_size")

    def step(self, happened: str) -> None:
        """Move on, or raise and change nothing."""
        self.state = TABLE.step(self.state, happened)

    def verdict(self, *, deadline: bool = False, grace_over: bool = False) -> str | None:
        """What the counts mean now: the transition to take, or None to keep waiting."""
        enough = len(self.uploads) >= self.floor
        answered = len(self.uploads) + len(self.declined) >= self.manifest.selected
        if self.open and enough and answered:
            return "all_answered"
        if self.open and enough and deadline:
            return "deadline_with_enough"
        if self.state is State.GRACE and grace_over:
            return "grace_over"
        if self.state is State.COLLECTING and (deadline or answered):
            return "below_floor"
        quorum = len(self.uploads) >= max(self.manifest.quorum, self.floor)
        return "quorum" if quorum and self.state is State.COLLECTING else None

    def forget_ciphertext(self) -> None:
        """Keep who answered, so that a repeated upload is still known, and drop what they sent."""
        self.uploads = {d: Held(h.groups, h.digest, b"") for d, h in self.uploads.items()}

    def shuffled(self, shuffle: Shuffle) -> tuple[tuple[int, ...], bytes]:
        """Segments of each group, permuted independently of the others: (counts, blob).

        A group with fewer segments than the floor is left out: its few senders would stand alone.
        """
        groups: list[list[bytes]] = [[] for _ in self.manifest.groups]
        for held in self.uploads.values():
            offset = 0
            for g in held.groups:
                size = self.manifest.groups[g].padded_bytes + SEAL_OVERHEAD_BYTES
                groups[g].append(held.data[offset : offset + size])
                offset += size
        groups = [segments if len(segments) >= self.floor else [] for segments in groups]
        for segments in groups:
            shuffle(segments)
        return tuple(map(len, groups)), b"".join(b"".join(segments) for segments in groups)
