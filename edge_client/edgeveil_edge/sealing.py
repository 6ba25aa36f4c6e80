"""Sealing of an answer's segments to the round's cloud key: masked if summed, or dummies.

Sealing requires the ledger's receipt, so nothing unpriced leaves the device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgeveil.crypto.keys import MaskSeed
from edgeveil.errors import CryptoError, PrivacyError, ProtocolError
from edgeveil.jobs.round_context import RoundContext
from edgeveil.parts.round import Array, Tensors
from edgeveil.privacy.ledger import Receipt
from edgeveil.protocol import sealed as real_sealing
from edgeveil.protocol.device_round import SealedAnswer
from edgeveil.protocol.messages import Manifest
from edgeveil.protocol.sealed import (
    MaskedVector,
    Plaintext,
    RoundCheck,
    Sealing,
    masked_vectors,
    seal_seed,
    segment_mark,
)
from edgeveil.protocol.tensors import masked_segment, tensor_views


@dataclass(frozen=True)
class Masks:
    """Masks of one answer, drawn again for each attempt."""

    vectors: Mapping[int, MaskedVector]  # by group
    seed: MaskSeed
    sealed: bytes  # the seed, to the proxy
    manifest: Manifest

    @classmethod
    def of(cls, manifest: Manifest, device: str, round_key: bytes) -> Masks:
        """Draw masks. Raises ProtocolError `malformed_masks` or `bad_round_key`."""
        found = masked_vectors(manifest.at, manifest.groups, manifest.masked)
        seed, sealed = MaskSeed.generate(), b""
        if found:
            try:
                sealed = seal_seed(seed, manifest, device, round_key)
            except CryptoError:
                raise ProtocolError("bad_round_key") from None
        return cls({one.group: one for one in found}, seed, sealed, manifest)

    def applied(self, group: int, array: Array, membership: bytes) -> bytes:
        check = RoundCheck.of_manifest(self.manifest, membership)
        return masked_segment(self.vectors[group], array.astype(np.int64), self.seed, check)

    def seed_for(self, groups: Sequence[int]) -> bytes:
        return self.sealed if any(group in self.vectors for group in groups) else b""


def seal_release(
    receipt: Receipt,
    payload: bytes,
    context: RoundContext,
    manifest: Manifest,
    membership: bytes,
    sealing: Sealing = real_sealing,
    masks: Masks | None = None,
    weight: float = 1.0,
) -> SealedAnswer:
    """Seal each segment, masked or not, to the cloud. Raises PrivacyError without a receipt."""
    if not receipt.covers(payload):
        raise PrivacyError("the ledger's receipt is for other tensors")
    groups, sealed = [], []
    for index, array in wire_arrays(context, weighed(tensor_views(payload), weight)).items():
        spec, group = context.segments[index], manifest.groups[index]
        groups.append(index)
        if masks and spec.bits:
            tensor: Plaintext = masks.applied(index, array, membership)
        else:
            tensor = array.reshape(-1).view(np.uint8).data
        sealed.append(sealing.seal_segment(manifest, group, membership, tensor))
    answer = _joined(groups, sealed, membership)
    return replace(answer, seed=masks.seed_for(groups)) if masks else answer


def weighed(segments: Tensors, weight: float) -> Tensors:
    if weight == 1.0:
        return segments
    return {
        name: (array.astype(np.float64) * weight).astype(array.dtype)
        for name, array in segments.items()
    }


def wire_arrays(context: RoundContext, segments: Tensors) -> dict[int, Array]:
    """Return an answer's segments in wire form, by group. Raises ProtocolError `wrong_shape`."""
    found = dict[int, Array]()
    for index, spec in enumerate(context.segments):
        if spec.name in segments:
            array = np.ascontiguousarray(segments[spec.name], dtype=np.dtype(spec.dtype))
            if array.shape != spec.shape:
                raise ProtocolError("wrong_shape")
            found[index] = array
    return found


def seal_dummies(
    manifest: Manifest, groups: Sequence[int], masks: Masks, sealing: Sealing = real_sealing
) -> SealedAnswer:
    """Seal empty segments that look like a real answer to all but the cloud."""
    membership = os.urandom(32)
    sealed = [
        sealing.seal_segment(manifest, manifest.groups[index], membership, b"") for index in groups
    ]
    answer = _joined(groups, sealed, membership)
    return replace(answer, dummy=True, seed=masks.seed_for(groups))


def _joined(groups: Sequence[int], sealed: Sequence[bytes], membership: bytes) -> SealedAnswer:
    marks = tuple(segment_mark(membership, segment) for segment in sealed)
    return SealedAnswer(tuple(groups), tuple(map(len, sealed)), b"".join(sealed), marks)
