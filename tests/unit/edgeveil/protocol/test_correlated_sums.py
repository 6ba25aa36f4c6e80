"""Sums with correlated noise: what cloud and proxy compute apart, and what each of them sees."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeveil.crypto.keys import CheckKey, MaskSeed
from edgeveil.crypto.masking import Vector
from edgeveil.crypto.ring import NOISE_BITS, Ring
from edgeveil.errors import ProtocolError
from edgeveil.protocol import tensors
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.sealed import MaskedVector, RoundCheck
from edgeveil.protocol.tensors import (
    correlated_mask_sums,
    correlated_sums,
    masked_segment,
    opened_vector,
    packed_vectors,
    unpacked_vectors,
)

SIZES, BITS = (3, 5), 30
COUNT = sum(SIZES)


def vectors(number, fine=0):
    names = [*(f"layer{place}" for place in range(len(SIZES))), "noise"]
    rings = [*(Ring(size, BITS + fine) for size in SIZES), Ring(COUNT, BITS + NOISE_BITS)]
    where = RoundId(b"J" * 16, number, 1)
    return tuple(
        MaskedVector(where, place, name, ring)
        for place, (name, ring) in enumerate(zip(names, rings, strict=True))
    )


class Round:
    """One round of some devices: what the cloud sums, and what the proxy answers.

    Updates are in steps of 2^-`fine`; the product's are in whole steps."""

    def __init__(self, number, updates, noises, fine=0):
        self.vectors = vectors(number, fine)
        self.check = RoundCheck(CheckKey(bytes([number]) * 32), disclosed=True)
        self.seeds = [MaskSeed.generate() for _ in updates]
        self.update, self.noise = np.sum(updates, axis=0), np.sum(noises, axis=0)
        self.totals = [Vector.zeros(one.ring) for one in self.vectors]
        for seed, update, noise in zip(self.seeds, updates, noises, strict=True):
            parts = [*np.split(update + noise << fine, np.cumsum(SIZES)[:-1]), noise]
            for one, total, part in zip(self.vectors, self.totals, parts, strict=True):
                total.add(opened_vector(one, masked_segment(one, part, seed, self.check)))

    def answer(self, coefficient=0, before=b""):
        sums = (self.vectors, self.seeds, coefficient, before, self.check)
        return correlated_mask_sums(*sums)

    @property
    def half(self):
        """The cloud's half of this round's noise."""
        return packed_vectors(self.totals[-1:])

    def opened(self, answer, coefficient=0, before=b""):
        sums = correlated_sums(self.vectors, self.totals, answer, coefficient, before, self.check)
        return np.concatenate(list(sums.values()))


def played(number, seed, devices=4, fine=0):
    rng = np.random.default_rng(seed)
    updates = rng.integers(-1000, 1000, size=(devices, COUNT))
    noises = rng.integers(-(2**20), 2**20, size=(devices, COUNT))
    return Round(number, updates, noises, fine)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_each_round_takes_back_a_share_of_the_noise_before_within_one_step(seed, coefficient):
    first, second = played(1, seed), played(2, seed + 1)
    answer, half = first.answer()
    assert (first.opened(answer) == first.update + first.noise).all()
    answer, _ = second.answer(coefficient, half)
    found = second.opened(answer, coefficient, first.half)
    error = found - (second.update + second.noise - coefficient / 256 * first.noise)
    assert (np.abs(error) <= 1).all()


def test_the_rounding_errs_to_both_sides_alike():
    errors = []
    for seed in range(400):
        first, second = played(1, seed, 1), played(2, seed + 1, 1)
        answer, _ = second.answer(77, first.answer()[1])
        found = second.opened(answer, 77, first.half)
        errors.append(found - (second.update + second.noise - 77 / 256 * first.noise))
    assert abs(np.mean(errors)) < 0.03 and np.std(errors) > 0.3


def last_bytes_read(fine):
    """Return the share of an earlier update's last bytes that each guess of the cloud gets right.

    All that the cloud has: its half, not rounded, and the sums that it opens."""
    coefficient = 225  # odd, so that it can be divided by, mod 2⁸
    inverse, right = pow(coefficient, -1, 256), []
    for seed in range(150):
        first, second = played(1, seed, fine=fine), played(2, seed + 1, fine=fine)
        answer, half = first.answer()
        seen = first.opened(answer) >> fine  # X + N of the first round
        answer, _ = second.answer(coefficient, half)
        own = Vector.from_bytes(first.vectors[-1].ring, first.half).numbers.astype(np.int64)
        theirs = second.opened(answer, coefficient, first.half) << NOISE_BITS - fine
        guesses = np.stack([theirs - 1, theirs, theirs - coefficient * own, -coefficient * own])
        right.append((seen + guesses * inverse) % 256 == first.update % 256)
    return np.mean(right, axis=(0, 2))


@pytest.mark.parametrize("fine", [0, NOISE_BITS])
def test_low_bits_of_what_is_opened_do_not_show_an_earlier_update(fine):
    """Not in fractions of a step either, where nothing but the rounding hides them."""
    assert (last_bytes_read(fine) < 5 / 256).all()


def test_without_the_rounding_low_bits_give_the_earlier_update_away(monkeypatch):
    def whole(half, ring, coefficient):
        return half * np.uint64(coefficient % 2**64) & np.uint64((1 << ring.bits) - 1)

    monkeypatch.setattr(tensors, "taken_back", whole)
    assert last_bytes_read(NOISE_BITS)[0] == 1


def test_the_proxys_answer_is_no_longer_than_the_updates_masks():
    first = played(1, 5)
    answer, half = first.answer()
    assert len(answer) == 1 + sum(one.ring.byte_count for one in first.vectors[:-1])
    assert half not in answer and first.half not in answer


def test_no_check_in_the_answer_has_more_bits_than_its_ring():
    """Higher bits of the check would show which numbers of the proxy's share wrapped around."""
    for seed in range(4):
        first, second = played(1, seed), played(2, seed + 1)
        answer, _ = second.answer(200, first.answer()[1])
        *updates, _ = second.vectors
        for sums in unpacked_vectors(updates, answer[1:]):
            assert sums.check < 1 << sums.ring.bits


def test_a_half_that_one_side_lost_leaves_the_share_out():
    first, second = played(1, 5), played(2, 6)
    answer, _ = second.answer(200, b"")
    assert answer[0] == 0
    assert (second.opened(answer, 200, first.half) == second.update + second.noise).all()


def test_a_wrong_answer_is_refused():
    first, second = played(1, 5), played(2, 6)
    answer, _ = second.answer(200, first.answer()[1])
    wrong = [
        b"\x02" + answer[1:],
        answer[:-1],
        b"",
        answer[:1] + bytes([answer[1] ^ 1]) + answer[2:],
        b"\x00" + second.answer(200)[0][1:-1] + b"\x00",
    ]
    for one in wrong:
        with pytest.raises(ProtocolError, match="wrong_mask_sums"):
            second.opened(one, 200, first.half)
    with pytest.raises(ProtocolError, match="wrong_mask_sums"):  # this cloud has no half
        second.opened(answer, 200)


def test_an_answer_with_another_half_gives_a_sum_beyond_all_bounds():
    """The check holds for any share that the proxy takes back; its size shows a wrong one."""
    first, second, other = played(1, 5), played(2, 6), played(1, 7)
    answer, _ = second.answer(200, other.answer()[1])
    for found in (second.opened(answer, 200, first.half), second.opened(b"\x00" + answer[1:])):
        assert np.abs(found).max() > 8 * (1000 + 2**20)
