"""Which numbers of a round are masked, and what the proxy holds for it: seeds, and a choice.

Without numpy: a proxy that sums nothing carries nothing that computes. The sums themselves stand in
`masked_sums.py`, and who may ask for which in `proxy_masks.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from edgeveil.crypto.keys import MaskSeed, OpeningKey, SealingKey
from edgeveil.crypto.labels import MASK_SEED, context
from edgeveil.crypto.ring import Ring
from edgeveil.crypto.sealing import open_sealed, seal
from edgeveil.errors import CryptoError, ProtocolError
from edgeveil.protocol.messages import ExchangeId, Group, Manifest, MaskedGroup


@dataclass(frozen=True)
class MaskedVector:
    """One masked group of a round: its index, its name and its ring."""

    at: ExchangeId
    group: int
    name: str
    ring: Ring

    @property
    def use(self) -> bytes:
        """What its masks are bound to: job, exchange, attempt and group."""
        return self.at.job_id + self.at.numbers + self.name.encode()


def masked_vectors(
    at: ExchangeId, groups: Sequence[Group], said: Sequence[MaskedGroup]
) -> tuple[MaskedVector, ...]:
    """The masked groups that a manifest says.

    Raises ProtocolError `malformed_masks`: a group that is not there, twice or out of order, or one
    that its vector does not fit.
    """
    indices = [one.group for one in said]
    if indices != sorted(set(indices)) or (indices and indices[-1] >= len(groups)):
        raise ProtocolError("malformed_masks")
    found = []
    for one in said:
        ring, group = Ring(one.count, one.bits), groups[one.group]
        if ring.byte_count > group.padded_bytes:
            raise ProtocolError("malformed_masks")
        found.append(MaskedVector(at, one.group, group.name, ring))
    return tuple(found)


# --- seeds, from a device to the proxy --------------------------------------------------------


def _seed_info(manifest: Manifest, device: str) -> bytes:
    at = manifest.at
    return context(MASK_SEED, at.job_id, at.numbers, manifest.job_digest, device.encode())


def seal_seed(seed: MaskSeed, manifest: Manifest, device: str, round_key: bytes) -> bytes:
    """The seed to the proxy's key of the round, bound to round and device.

    Raises CryptoError for a key that cannot be sealed to.
    """
    return seal(SealingKey(round_key), _seed_info(manifest, device), seed.to_bytes())


def open_seed(key: OpeningKey, manifest: Manifest, device: str, sealed: bytes) -> MaskSeed:
    """The seed that this device sealed for this round. Raises ProtocolError `bad_seed`."""
    raw = open_sealed(key, _seed_info(manifest, device), sealed)
    try:
        return MaskSeed(raw or b"")
    except CryptoError:
        raise ProtocolError("bad_seed") from None


# --- the choice of uploads --------------------------------------------------------------------


def choice(chosen: Collection[int], uploads: int) -> bytes:
    """As `Unmask` says it: the indices `chosen` out of so many uploads."""
    said = bytearray(-(-uploads // 8))
    for index in chosen:
        said[index >> 3] |= 1 << (index & 7)
    return bytes(said)


def dealt(chosen: Collection[int], sets: int) -> list[list[int]]:
    """The chosen uploads of each set, by the places that the proxy's shuffle gave them: who chooses
    can leave an upload out, and moves no other by it."""
    return [[index for index in chosen if index % sets == number] for number in range(sets)]


def chosen_of(said: bytes, uploads: int) -> list[int]:
    """The indices.

    Raises ProtocolError `malformed_choice`: another size, or one that was not uploaded.
    """
    if len(said) != -(-uploads // 8) or int.from_bytes(said, "little") >> uploads:
        raise ProtocolError("malformed_choice")
    return [index for index in range(uploads) if said[index >> 3] >> (index & 7) & 1]
