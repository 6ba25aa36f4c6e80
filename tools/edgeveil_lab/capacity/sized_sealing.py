"""Broadcasts of their real sizes, sealed to nobody: a million devices are told in seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgeveil.crypto.buckets import bucket_bytes, bucket_of
from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.crypto.sealing import stanza_area_bytes
from edgeveil.protocol.messages import Manifest
from edgeveil.protocol.sealed import Terms, front_bytes, in_pieces
from edgeveil.testing import PlainSealing


class SizedSealing(PlainSealing):
    """As `PlainSealing`, but that keys stand in as many bytes, and buckets, as stanzas do."""

    def seal_broadcast(
        self,
        terms: Terms,
        package: bytes,
        recipients: Sequence[SealingKey],
        part_bytes: int,
        level: int = 1,
    ) -> tuple[Manifest, bytes, bytes]:
        """See `edgeveil.protocol.sealed.seal_broadcast`."""
        dealt: list[list[bytes]] = [[] for _ in range(level)]
        for key in recipients:
            dealt[bucket_of(key, level) if level > 1 else 0].append(key.to_bytes())
        size = bucket_bytes(len(recipients), level)
        size = size if level > 1 else stanza_area_bytes(len(recipients))
        front = b"".join(b"".join(keys).ljust(size, b"\0") for keys in dealt)
        manifest, _, tag = super().seal_broadcast(terms, package, recipients, part_bytes)
        data = front + package
        sized = terms.manifest(
            package,
            data,
            selected=len(recipients),
            stanza_bytes=len(front),
            commitment=manifest.commitment,
            part_bytes=part_bytes,
        )
        if level > 1:
            sized = in_pieces(msgspec.structs.replace(sized, buckets=level), data)
        return sized, data, tag

    def open_broadcast(
        self, key: OpeningKey, manifest: Manifest, data: bytes
    ) -> tuple[bytes, bytes] | None:
        """See `edgeveil.protocol.sealed.open_broadcast`."""
        front = front_bytes(manifest, len(data))
        if not self.is_listed(key, manifest, data[:front]):
            return None
        return data[front:], self.membership(manifest)

    def is_listed(self, key: OpeningKey, manifest: Manifest, stanzas: bytes) -> bool:
        """Whether the key stands there."""
        return key.public().to_bytes() in stanzas
