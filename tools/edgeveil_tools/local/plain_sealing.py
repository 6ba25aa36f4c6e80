"""Packages and segments of a simulation: the same sizes and rules, nothing encrypted.

All parties of a simulation live in one process, which could read every key anyway. No process of a
site can be told to use this: it takes part in no configuration, and what it makes opens nowhere
else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from edgeveil.crypto.keys import OpeningKey, SealingKey
from edgeveil.protocol.messages import SEAL_OVERHEAD_BYTES, ExchangeId, Group, Manifest
from edgeveil.protocol.sealed import Terms

_KEY_BYTES = 32
_TAG = b"edgeveil/v1/simulation/not-encrypted"


class PlainSealing:
    """See `edgeveil.protocol.sealed.Sealing`. Whom a broadcast is for, it lists in clear."""

    def seal_broadcast(
        self, terms: Terms, package: bytes, recipients: Sequence[SealingKey], part_bytes: int
    ) -> tuple[Manifest, bytes, bytes]:
        """The manifest, the recipients' keys followed by the package, the membership tag."""
        keys = b"".join(key.to_bytes() for key in recipients)
        data = keys + package
        manifest = terms.manifest(
            package,
            data,
            selected=len(recipients),
            stanza_bytes=len(keys),
            commitment=bytes(32),
            part_bytes=part_bytes,
        )
        return manifest, data, _membership(manifest)

    def open_broadcast(
        self, key: OpeningKey, manifest: Manifest, data: bytes
    ) -> tuple[bytes, bytes] | None:
        """(package, membership tag) for one that is listed, None for anybody else."""
        own = key.public().to_bytes()
        for start in range(0, manifest.stanza_bytes, _KEY_BYTES):
            if data[start : start + _KEY_BYTES] == own:
                return data[manifest.stanza_bytes :], _membership(manifest)
        return None

    def seal_segment(
        self, manifest: Manifest, group: Group, membership: bytes, tensor: bytes
    ) -> bytes:
        """As many bytes as a sealed segment has: tag, chance (equal tensors differ), tensor."""
        tag = _segment_tag(manifest.at, manifest.job_digest, group, membership)
        head = tag + os.urandom(SEAL_OVERHEAD_BYTES - len(tag))
        return head + tensor.ljust(group.padded_bytes, b"\0")

    def open_segment(
        self,
        key: OpeningKey,
        at: ExchangeId,
        job_digest: bytes,
        group: Group,
        membership: bytes,
        sealed: bytes,
    ) -> bytes | None:
        """The padded tensor; None if it was not made for this very round."""
        tag = _segment_tag(at, job_digest, group, membership)
        fits = len(sealed) == SEAL_OVERHEAD_BYTES + group.padded_bytes
        return sealed[SEAL_OVERHEAD_BYTES:] if fits and sealed.startswith(tag) else None


def _membership(manifest: Manifest) -> bytes:
    return hashlib.sha256(_TAG + manifest.cloud_key + manifest.package_digest).digest()


def _segment_tag(at: ExchangeId, job_digest: bytes, group: Group, membership: bytes) -> bytes:
    bound = at.job_id + at.numbers + job_digest + membership + group.name.encode()
    return hashlib.sha256(_TAG + bound).digest()
