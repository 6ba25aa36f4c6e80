"""Which numbers of a round are masked, and what the proxy holds for it: seeds, and a choice.

Without numpy: a proxy that sums nothing carries nothing that computes. The sums themselves stand in
`masked_sums.py`, and who may ask for which in `proxy_masks.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from msgspec import structs

from edgeveil.crypto.keys import CheckKey, MaskSeed, OpeningKey, SealingKey
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
    said = (at.job_id, at.numbers, manifest.job_digest, device.encode())
    return context(MASK_SEED, *said, *([manifest.check] if manifest.check else []))


def seal_seed(seed: MaskSeed, manifest: Manifest, device: str, round_key: bytes) -> bytes:
    """The seed to the proxy's key of the round, bound to round, device, and factors of the checks.

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


# --- the key of the checks --------------------------------------------------------------------


@dataclass(frozen=True)
class RoundCheck:
    """The key of the checks of one round's vectors. `disclosed`: the proxy hears it, so that each
    upload is checked by itself, mod 2^k; else their sum alone is, mod 2^64.
    """

    key: CheckKey
    disclosed: bool

    @classmethod
    def of(cls, at: ExchangeId, membership: bytes, *, disclosed: bool) -> RoundCheck:
        """Derive it from what those share who opened the round's package."""
        if not disclosed:
            return cls(CheckKey(membership), disclosed)
        return cls(CheckKey.disclosable(membership, _names(at)), disclosed)

    @classmethod
    def said(cls, manifest: Manifest, membership: bytes) -> RoundCheck:
        """Derive it as the manifest says that masks are checked."""
        return cls.of(manifest.at, membership, disclosed=bool(manifest.check))

    def bits(self, ring: Ring) -> int:
        """How many low bits of a check of this ring count."""
        return ring.bits if self.disclosed else 64


def committed(manifest: Manifest, membership: bytes) -> Manifest:
    """Return the manifest with its commitment to the factors by which its masks are checked."""
    key = RoundCheck.of(manifest.at, membership, disclosed=True).key
    return structs.replace(manifest, check=key.commitment(_names(manifest.at)))


def check_factors(manifest: Manifest, key: CheckKey) -> None:
    """Raise ProtocolError `wrong_factors` unless the manifest commits to this key.

    With other factors than those of a device's own check, the check of its mask would give the
    cloud a linear form of the device's numbers.
    """
    if not manifest.check or key.commitment(_names(manifest.at)) != manifest.check:
        raise ProtocolError("wrong_factors")


def _names(at: ExchangeId) -> bytes:
    return at.job_id + at.numbers


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
