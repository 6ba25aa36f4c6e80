"""What devices tell of a release: one word of few, sealed like a segment, the same size for all.

A report follows from the release, the owner's policy and a trial on made-up records. No record has
a part in it, so it costs no ε; who adds an outcome must keep that true.
"""

from __future__ import annotations

from enum import Enum

from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, Group, Manifest

HEALTH = Group("release_health", 64)
REPORT_BYTES = HEALTH.padded_bytes + SEAL_OVERHEAD_BYTES


class ReleaseOutcome(Enum):
    """What became of a release on one device. Its value is what the report says."""

    IN_USE = "in_use"
    REFUSED_BY_CHECK = "refused_by_check"
    FAILED_TRIAL = "failed_trial"
    ROLLED_BACK = "rolled_back"
    REFUSED_BY_POLICY = "refused_by_policy"

    @property
    def failed(self) -> bool:
        """Whether it speaks against the release; an owner's policy does not."""
        return self not in (ReleaseOutcome.IN_USE, ReleaseOutcome.REFUSED_BY_POLICY)

    def to_bytes(self) -> bytes:
        """What is sealed."""
        return self.value.encode()

    @classmethod
    def from_bytes(cls, padded: bytes) -> ReleaseOutcome | None:
        """Of an opened report; None for anything else."""
        text = padded.rstrip(b"\0")
        return next((one for one in cls if one.to_bytes() == text), None)


def wants_reports(header: Manifest) -> bool:
    """Whether the cloud asks what became of this release."""
    return header.kind == "release" and header.groups == (HEALTH,)
