"""One round at the proxy: uploads come in, one shuffled batch goes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Manifest, Upload
from edgeveil.protocol.transitions import StateTable


class State(Enum):
    """Where the proxy stands in one round."""

    COLLECTING = "collecting"
    GRACE = "grace"
    SHUFFLING = "shuffling"
    HANDING_OVER = "handing_over"
    SHORT = "short"
    DELIVERED = "delivered"


_S = State
TABLE = StateTable(
    _S.COLLECTING,
    {(state, "dropped"): _S.DELIVERED for state in State}
    | {
        (_S.COLLECTING, "quorum"): _S.GRACE,
        (_S.COLLECTING, "all_answered"): _S.SHUFFLING,
        (_S.GRACE, "all_answered"): _S.SHUFFLING,
        (_S.GRACE, "grace_over"): _S.SHUFFLING,
        (_S.COLLECTING, "deadline_with_enough"): _S.SHUFFLING,
        (_S.GRACE, "deadline_with_enough"): _S.SHUFFLING,
        (_S.COLLECTING, "below_floor"): _S.SHORT,
        (_S.SHUFFLING, "shuffled"): _S.HANDING_OVER,
        (_S.HANDING_OVER, "held_by_cloud"): _S.DELIVERED,
    },
)


@dataclass(frozen=True)
class Held:
    """A device's complete upload: which groups, its digest, and its place in the round's file.

    Once the batch is made, `digest` is empty and `slot` is -1.
    """

    groups: tuple[int, ...]
    digest: bytes
    slot: int


@dataclass
class Collection:
    """Uploads of one round. `floor` is the larger of the job's and this proxy's minimum.

    `pending`, with cover traffic: the devices that are there and have not answered; None while
    that is not known, since not all have had their time to say hello.
    """

    manifest: Manifest
    floor: int
    cover: bool = False
    state: State = TABLE.start
    uploads: dict[str, Held] = field(default_factory=dict)
    declined: set[str] = field(default_factory=set)
    slots: dict[str, int] = field(default_factory=dict)
    pending: set[str] | None = None
    told: int = 0  # how often a shortfall was

    def __post_init__(self) -> None:
        sealed = (group.padded_bytes + SEAL_OVERHEAD_BYTES for group in self.manifest.groups)
        self.segment_bytes = tuple(sealed)
        self.slot_bytes = sum(self.segment_bytes)
        self._next_slot = 0

    @property
    def open(self) -> bool:
        """Uploads are still taken."""
        return self.state in (State.COLLECTING, State.GRACE)

    @property
    def spooled_bytes(self) -> int:
        """Disk that uploads take, or were promised when they began to come."""
        return len(self.slots) * self.slot_bytes

    def slot(self, device: str) -> int:
        """The device's place in the round's file: one, however often it begins anew."""
        if device not in self.slots:
            self.slots[device] = self._next_slot
            self._next_slot += 1
        return self.slots[device]

    def restore(self, device: str, held: Held) -> None:
        """An upload that is on the disk already."""
        self.uploads[device] = held
        self.slots[device] = held.slot
        self._next_slot = max(self._next_slot, held.slot + 1)

    def check_form(self, upload: Upload) -> None:
        """Raise `wrong_groups` or `wrong_size` unless it is exactly what the manifest allows."""
        groups, known = upload.groups, self.manifest.groups
        if list(groups) != sorted(set(groups)) or groups[-1] >= len(known):
            raise ProtocolError("wrong_groups")
        if upload.blob.size_bytes != sum(self.segment_bytes[g] for g in groups):
            raise ProtocolError("wrong_size")

    def step(self, happened: str) -> None:
        """Move on, or raise and change nothing."""
        self.state = TABLE.step(self.state, happened)

    def hold(self, device: str, held: Held) -> None:
        """The device's upload is here."""
        self.uploads[device] = held
        self.left(device)

    def decline(self, device: str) -> None:
        """The device will not upload."""
        self.declined.add(device)
        self.left(device)

    def came(self, device: str) -> None:
        """With cover traffic a device that is there is waited for."""
        known = device in self.uploads or device in self.declined
        if self.pending is not None and self.open and not known:
            self.pending.add(device)

    def left(self, device: str) -> None:
        """The device is not waited for any more."""
        if self.pending is not None:
            self.pending.discard(device)

    def verdict(self, *, deadline: bool = False, grace_over: bool = False) -> str | None:
        """What the counts mean now: the transition to take, or None to keep waiting."""
        enough = len(self.uploads) >= self.floor
        answered = self._all_answered()
        if self.open and enough and answered:
            return "all_answered"
        if self.open and enough and deadline:
            return "deadline_with_enough"
        if self.state is State.GRACE and grace_over:
            return "grace_over"
        # With cover traffic those who are not there yet may still come.
        hopeless = answered and not self.cover
        if self.state is State.COLLECTING and (deadline or hopeless):
            return "below_floor"
        quorum = len(self.uploads) >= max(self._quorum(), self.floor)
        return "quorum" if quorum and self.state is State.COLLECTING else None

    def _all_answered(self) -> bool:
        if self.cover and (self.pending is None or self.pending):
            return False
        return len(self.uploads) + len(self.declined) >= self.manifest.selected

    def _quorum(self) -> float:
        """With cover traffic, the job's share of the selected is one of all who are there.

        Never less than the job's number: who is not there yet may be among the selected.
        """
        if not self.cover:
            return self.manifest.quorum
        if self.pending is None:
            return float("inf")
        there = len(self.uploads) + len(self.declined) + len(self.pending)
        share = there * self.manifest.quorum / max(1, self.manifest.selected)
        return max(self.manifest.quorum, share)

    def forget_ciphertext(self) -> None:
        """Keep who answered, so that a repeated upload is still known. Its place is gone, and its
        digest: of a single group it would name the segment in the batch.
        """
        self.uploads = {d: Held(h.groups, b"", -1) for d, h in self.uploads.items()}
        self.slots.clear()
