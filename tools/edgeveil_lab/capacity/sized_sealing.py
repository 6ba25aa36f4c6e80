"""Broadcasts of their real sizes, sealed to nobody: a million devices are told in seconds."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgeveil.crypto.buckets import bucket_bytes, bucket_level, bucket_of, bucket_stanzas
from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.crypto.sealing import stanza_area_bytes
from edgeveil.protocol.messages import Manifest
from edgeveil.protocol.sealed import Plaintext, Terms, front_bytes, in_pieces
from edgeveil.testing import PlainSealing


class SizedSealing(PlainSealing):
    """As `PlainSealing`, but that keys stand in as many bytes, and buckets, as stanzas do."""

    def seal_broadcast(
        self,
        terms: Terms,
        package: Plaintext,
        recipients: Sequence[SealingKey],
        part_bytes: int,
        *,
        bucketed: bool = False,
    ) -> tuple[Manifest, bytes, bytes]:
        """See `edgeveil.protocol.sealed.seal_broadcast`; always in buckets."""
        manifest, data, tag = super().seal_broadcast(terms, package, recipients, part_bytes)
        level = bucket_level(recipients)
        if level > 1:
            manifest = in_pieces(msgspec.structs.replace(manifest, buckets=level), data)
        return manifest, data, tag

    def front(self, recipients: Sequence[SealingKey]) -> bytes:
        """The keys of each bucket, filled up to its size."""
        level, count = bucket_level(recipients), len(recipients)
        dealt: list[list[bytes]] = [[] for _ in range(level)]
        for key in recipients:
            dealt[bucket_of(key, level) if level > 1 else 0].append(key.to_bytes())
        size = stanza_area_bytes(count)
        if level > 1:
            size = bucket_bytes(max(bucket_stanzas(count, level), *map(len, dealt)))
        return b"".join(b"".join(keys).ljust(size, b"\0") for keys in dealt)

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
