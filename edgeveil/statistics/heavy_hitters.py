"""Frequent values that nobody listed, in four exchanges: a prefix tree of hashes, then codes.

A value is the first `length` bytes of a text in UTF-8, padded with zeros; a public hash maps it to
64 bits. Of each level's noised sums the cloud keeps at most KEPT rows and broadcasts them.

    HASHED     records by the first 13 bits of the hash; the cloud keeps the fullest prefixes
    PREFIXES   by the next 6 bits under each kept prefix; the cloud keeps the fullest of 19 bits
    CODED      under each kept prefix, sums of the code words of a record's bytes, 16 signs a byte;
               the cloud decodes a candidate for each and drops it if its hash is not the prefix
    CANDIDATES records of each candidate, of other values, and without a value

With `words` a record has several values, and adds for each but once to a cell, or a row.

Why not a tree over the text itself (Bassily et al. 2017; Zhu et al. 2020): at a byte a level, 16
bytes take 16 exchanges, each at 1/16 of the price, with 256 cells a byte. Under a prefix of 19 bits
a value is nearly alone, so all its bytes are summed at once: in one exchange, with 16 cells a byte,
and the known hash corrects errors. If σ is the noise of one count at the price of all bytes
together, values of 16 bytes are found from 20·σ records on, by the tree from 28·σ.

A false value passes the last level alone by noise, so the threshold there bounds its probability,
whatever the levels before did. Levels before the last need no threshold: a prefix kept in vain
costs nothing.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import ProtocolError
from edgeveil.evaluation.figures import to_digits
from edgeveil.logs import printable
from edgeveil.parts.round import Array, Tensors, required

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bytes = NDArray[np.uint8]
HASHED, PREFIXES, CODED, CANDIDATES = LEVELS = range(4)
KEPT = 128  # rows of a broadcast: more than values above 1 % of records there can be
NORMAL_95 = 1.959964  # deviations of noise in ±
FALSE_POSITIVES = 0.01  # bound on the probability of any false value
_BITS = (13, 19, 19)  # of the hash that a level knows after it
_SIGNS = 16  # of a byte's code word
_LIST = 1024  # likeliest values that are compared with the hash
_LIKELY = 16  # likeliest bytes of a place that are tried
_HASH = b"edgeveil values 1\0"


@dataclass(frozen=True)
class HeavyHitters:
    """The block of one level for `column`, whose bytes start at `place` of a record.

    `kept`: what the package broadcasts, but for HASHED: prefixes (KEPT,) int64, ascending, or for
    CANDIDATES values (KEPT, length) uint8, ascending after rows of zeros."""

    column: str
    place: int
    length: int
    level: int = HASHED
    words: int | None = None
    kept: Array | None = field(default=None, compare=False, repr=False)
    whole: ClassVar[int] = 1

    @property
    def cells(self) -> int:
        words = KEPT * self.length * _SIGNS
        return (1 << _BITS[0], KEPT << _BITS[1] - _BITS[0], words, KEPT + 2)[self.level]

    @property
    def bound(self) -> float:
        """A record adds 1 to one cell for each value; of CODED, ±1 to each sign of its bytes.

        Of words' CANDIDATES, it adds to one more: whether it has words."""
        most = self.words or 1
        if self.level == CODED:
            return float(most * _SIGNS * self.length)
        return float(most + 1 if self.words and self.level == CANDIDATES else most)

    @property
    def scale(self) -> float:
        """Weights by which each level finds about the same values, and the counts are precise."""
        return (1.25, 1.25, 0.25, 2.0)[self.level]

    def tensor(self, level: int) -> str:
        """Return the name of a level's broadcast in packages and in the cloud's state."""
        return f"values/{self.place}/{level}"

    def initial(self) -> dict[str, Array]:
        """Return broadcasts of all levels as if there were no values."""
        kept = [np.arange(KEPT, dtype=np.int64)] * 2 + [np.zeros((KEPT, self.length), np.uint8)]
        return {self.tensor(level): one for level, one in enumerate(kept, PREFIXES)}

    def about(self, tensors: Tensors) -> HeavyHitters:
        """Return the block about its broadcast, before any record is read. Raises ProtocolError."""
        if self.level == HASHED:
            return self
        shape = (KEPT, self.length) if self.level == CANDIDATES else (KEPT,)
        dtype = "uint8" if self.level == CANDIDATES else "int64"
        kept = required(tensors, self.tensor(self.level), shape, dtype)
        if self.level == CANDIDATES:
            texts = _texts(kept)
            ordered = (texts[:-1] < texts[1:]) | (texts[:-1] == b"")
        else:
            # Compared, as a difference can overflow.
            within = [kept[0] >= 0, kept[-1] >> self._known == 0]
            ordered = np.append(np.less(kept[:-1], kept[1:]), within)
        if not ordered.all():
            raise ProtocolError("bad_package", f"values of '{self.column}': not in ascending order")
        return replace(self, kept=kept)

    @property
    def _known(self) -> int:
        """Bits of the prefixes of `kept`."""
        return _BITS[self.level - 1]

    @cached_property
    def _kept(self) -> Array:
        if self.kept is None:
            raise TypeError(f"level {self.level} is about a broadcast")
        return self.kept

    def of(self, x: NDArray[np.float32]) -> Int64:
        """Return the sums (cells,) over records x (n, values); what is no byte is no value."""
        most = self.words or 1
        x = x[:, self.place : self.place + most * self.length].reshape(-1, most, self.length)
        there = ((x >= 0) & (x <= 255) & (x == np.floor(x))).all(axis=2)  # False for NaN
        (record, word), values = np.nonzero(there), np.ascontiguousarray(x[there], np.uint8)
        if self.level == CANDIDATES:
            texts, kept = _texts(values), _texts(self._kept)
            row = np.minimum(np.searchsorted(kept, texts), KEPT - 1)
            listed = (kept[row] == texts) & (texts != b"")
            present = there.any(axis=1)
            if self.words is None:
                present[record[listed]] = False
            found = np.bincount(row[listed][_once(record[listed], row[listed])], minlength=KEPT)
            missing = np.count_nonzero(~there.any(axis=1))
            return np.append(found, [np.count_nonzero(present), missing]).astype(np.int64)
        hashes = _hashes(values, self.column)
        at = _prefixes(hashes, _BITS[0])
        if self.level != HASHED:
            prefix = _prefixes(hashes, self._known)
            row = np.minimum(np.searchsorted(self._kept, prefix), KEPT - 1)
            # Others go to rows that are dropped, so that the time tells nothing of the broadcast.
            at = np.where(self._kept[row] == prefix, row, KEPT + word)
        if self.level == PREFIXES:
            finer = _BITS[1] - _BITS[0]
            at = (at << finer) + _prefixes(hashes, _BITS[1]) % (1 << finer)
        once = _once(record, at)
        if self.level != CODED:
            at = np.minimum(at[once], self.cells)
            return np.bincount(at, minlength=self.cells)[: self.cells].astype(np.int64)
        sums = np.zeros((KEPT + 1, self.length, _SIGNS), np.int64)
        np.add.at(sums, np.minimum(at[once], KEPT), _code()[values[once]])
        return sums[:KEPT].reshape(-1)

    def next_kept(self, sums: Float64) -> dict[str, Array]:
        """Return the broadcast of the next level from the noised sums (cells,), in records."""
        if self.level == CANDIDATES:
            return {}
        return {self.tensor(self.level + 1): self._next(sums)}

    def _next(self, sums: Float64) -> Array:
        if self.level == CODED:
            return self._candidates(sums.reshape(KEPT, self.length, _SIGNS))
        fullest = np.argsort(-sums, kind="stable")[:KEPT]
        if self.level == PREFIXES:
            finer = _BITS[1] - _BITS[0]
            fullest = (self._kept[fullest >> finer] << finer) + fullest % (1 << finer)
        return np.sort(fullest.astype(np.int64))

    def _candidates(self, sums: Float64) -> Bytes:
        """Return for each prefix the likeliest value that has it, if one is likely."""
        found = np.zeros((KEPT, self.length), np.uint8)
        for row, (prefix, likelihoods) in enumerate(zip(self._kept, sums @ _code().T, strict=True)):
            values = likeliest(likelihoods)
            fits = np.flatnonzero(_prefixes(_hashes(values, self.column), self._known) == prefix)
            found[row] = values[fits[0]] if len(fits) else 0
        return found[np.argsort(_texts(found), kind="stable")]

    def counted(self, sums: Float64) -> Float64:
        """Return those of the last level's sums in which each record counts once."""
        return sums if self.words is None else sums[KEPT:]

    def answer(self, sums: Float64, deviation: float) -> dict[str, Any]:
        """Return the answer from the last level's sums, with noise of `deviation` in each.

        Names are printable whatever the bytes (see `plain_name`); `exact` are those that are whole
        texts as they are written, so that a list of categories can name them."""
        least, candidates = threshold(deviation), _texts(self._kept)
        listed = np.flatnonzero((sums[:KEPT] > least) & (candidates != b""))
        listed = listed[np.argsort(-sums[listed], kind="stable")]
        rest = np.setdiff1d(np.flatnonzero(candidates != b""), listed)
        other = float(sums[KEPT] + sums[rest].sum())
        names = [plain_name(candidates[row]) for row in listed]
        of_texts = {
            "exact": [
                name
                for name, row in zip(names, listed, strict=True)
                if len(candidates[row]) < self.length and name.encode() == candidates[row]
            ],
            "other": to_digits(max(0.0, other)),
            "other_plus_minus": to_digits(NORMAL_95 * deviation * math.sqrt(1 + len(rest))),
        }
        return {
            "statistic": "values",
            "column": self.column,
            "names": names,
            "value": [to_digits(float(sums[row])) for row in listed],
            "plus_minus": to_digits(NORMAL_95 * deviation),
            "threshold": to_digits(least),
            "false_positives_at_most": FALSE_POSITIVES,
            **(of_texts if self.words is None else {}),
            "too_noisy": bool(least > self.counted(sums)[:-1].sum() / 2),
        }


def _once(records: Int64, cells: Int64) -> Int64:
    """Return the index of one of all equal pairs of a record and a cell."""
    return np.asarray(np.unique(records << 32 | cells, return_index=True)[1])


def threshold(deviation: float) -> float:
    """Return the count that no value of no record exceeds, at FALSE_POSITIVES for all KEPT.

    The union bound over one more is room for the discreteness of the noise."""
    return -NormalDist().inv_cdf(FALSE_POSITIVES / (KEPT + 1)) * deviation


def likeliest(likelihoods: Float64) -> Bytes:
    """Return the _LIST likeliest values (n, length), the first the likeliest of all.

    `likelihoods` (length, 256): logarithms, up to one factor, for each byte of each place. A value
    has no zero byte before its last other one; only the _LIKELY bytes of a place are tried."""
    length = len(likelihoods)
    ends = np.append(np.cumsum(likelihoods[::-1, 0])[::-1], 0.0)
    begun, scores = np.zeros((1, length), np.uint8), np.zeros(1)
    values, totals = list[Bytes](), list[Float64]()
    for place, of_bytes in enumerate(likelihoods[:, 1:]):
        likely = np.argpartition(-of_bytes, _LIKELY)[:_LIKELY]
        each = (scores[:, None] + of_bytes[likely]).reshape(-1)
        best = _best(each)
        begun, scores = begun[best // _LIKELY], each[best]
        begun[:, place] = likely[best % _LIKELY] + 1
        values.append(begun)
        totals.append(scores + ends[place + 1])
    every = np.concatenate(totals)
    best = _best(every)
    return np.concatenate(values)[best[np.argsort(-every[best], kind="stable")]]


def _best(scores: Float64) -> Int64:
    most = min(_LIST, len(scores))
    return np.argpartition(-scores, most - 1)[:most]


def plain_name(value: bytes) -> str:
    r"""Return a value as printable text, each as another: a\b as a\\b, other bytes as \x1b, \xff.

    It still has to be escaped where it is written into HTML or YAML."""
    return printable(value.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace"))


def _texts(values: Array) -> NDArray[np.bytes_]:
    """Return values (n, length) as (n,) strings, which compare by their bytes, unsigned."""
    return np.ascontiguousarray(values).view(f"S{values.shape[1]}").reshape(-1)


def _hashes(values: Bytes, column: str) -> NDArray[np.uint64]:
    """Return the tabulation hashes (n,) of values (n, length): 3-independent, by a public table."""
    table = _table(column, values.shape[1])
    found = np.zeros(len(values), np.uint64)
    for place in range(values.shape[1]):
        found ^= table[place, values[:, place]]
    return found


@lru_cache(maxsize=64)
def _table(column: str, length: int) -> NDArray[np.uint64]:
    stream = hashlib.shake_256(_HASH + column.encode()).digest(8 * 256 * length)
    return np.frombuffer(stream, "<u8").reshape(length, 256)


def _prefixes(hashes: NDArray[np.uint64], bits: int) -> Int64:
    return (hashes >> np.uint64(64 - bits)).astype(np.int64)


@lru_cache(maxsize=1)
def _code() -> Int64:
    """Return the signs (256, 16) of each byte: 256 words, any two of which differ in 6 or more.

    The Gray image of the octacode, which is the Nordstrom-Robinson code (Forney, Sloane, Trott
    1993)."""
    generators = np.array(
        [
            [1, 0, 0, 0, 3, 1, 2, 1],
            [0, 1, 0, 0, 1, 2, 3, 1],
            [0, 0, 1, 0, 3, 3, 3, 2],
            [0, 0, 0, 1, 2, 3, 1, 1],
        ]
    )
    quarters = np.arange(256)[:, None] >> np.arange(0, 8, 2) & 3
    words = quarters @ generators % 4
    of_quarter = np.array([[1, 1], [1, -1], [-1, -1], [-1, 1]], np.int64)
    return np.asarray(of_quarter[words].reshape(256, _SIGNS))
