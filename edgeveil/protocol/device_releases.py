"""Which release a device may install: never one that is older than one it has heard of."""

from __future__ import annotations

from edgeveil.errors import ProtocolError
from edgeveil.protocol.messages import Manifest
from edgeveil.protocol.tasks import Memory


class Releases:
    """`memory.release_sequence` is the installed one's."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._newest = memory.release_sequence  # heard of, perhaps not yet installed

    def fresh(self, release: Manifest) -> bool:
        """Whether to fetch it; raises ProtocolError `replayed_release`."""
        if release.sequence < self._newest:
            raise ProtocolError("replayed_release")
        return release.sequence != self._memory.release_sequence

    def check_round(self, round_: Manifest) -> None:
        """Raise ProtocolError `outdated_round` for a round from before a release heard of.

        A cloud whose numbers have fallen behind could not bring its model here in the end: to
        answer would spend budget for nothing.
        """
        if round_.sequence < self._newest:
            raise ProtocolError("outdated_round")

    def heard(self, release: Manifest) -> None:
        """It is being fetched: older ones are refused from now on."""
        self._newest = release.sequence

    def is_newest(self, release: Manifest) -> bool:
        """Whether no newer one came while this one was opened."""
        return release.sequence >= self._newest

    def installed(self, release: Manifest) -> None:
        """The host has put it in use."""
        newest = max(release.sequence, self._memory.release_sequence)
        self._memory.release_sequence = newest
