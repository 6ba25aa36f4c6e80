"""Encode a text as numbers by public rules, a function of that text alone.

`hashed_text`: words and runs of characters, counted in buckets by a public hash (Weinberger et al.
2009). Token ids: whole numbers for embeddings, by a hash, or by a vocabulary with greedy longest
match (WordPiece, Wu et al. 2016). A text is cut at `LETTERS` characters, which bounds the cost of a
record."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, model_validator

from edgeveil.config.base import Block, filled_from_file
from edgeveil.errors import DataError

LETTERS = 4096  # of one text; more are not read
WORD_LETTERS = 64  # of one word that a vocabulary is searched for
UNKNOWN_TOKEN, FIRST_TOKEN = 1, 2  # ids of tokens; 0 is padding
Token = Annotated[str, Field(min_length=1, max_length=WORD_LETTERS)]
Run = Annotated[int, Field(ge=1, le=16)]
_FILE_BYTES = 8 << 20
_WORD = re.compile(r"\w+|[^\w\s]")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

Hashes = NDArray[np.uint64]


def plain_text(text: str) -> str:
    """Return the text that is encoded: lower case, single blanks, at most `LETTERS` characters."""
    return " ".join(text[:LETTERS].lower().split())[:LETTERS]


class HashedText(Block):
    """Words and runs of characters of a text, counted in public buckets, without a vocabulary."""

    words: int = Field(default=2, ge=0, le=4)
    """Longest run of words that is counted; 0: none."""
    characters: tuple[Run, Run] | None = (3, 5)
    """Least and greatest length of runs of characters that are counted; null: none."""
    buckets: int = Field(default=1024, ge=2, le=1 << 16)
    """Number of values of a record: each run adds +1 or −1 in a bucket, by a public hash."""
    cap: int = Field(default=4, ge=1, le=127)
    """Counts are clipped to ± this number, and divided by it."""


def hashed_text(text: str, form: HashedText) -> NDArray[np.int8]:
    """Return signed counts (buckets,) within ±cap of a text's runs of words and characters.

    64 bits of a public hash give bucket and sign. For runs of characters a blank stands at both
    ends of the text."""
    plain = plain_text(text)
    words = np.array([_word_hash(word) for word in _WORD.findall(plain)], np.uint64)
    found = [_runs(words, length) for length in range(1, form.words + 1)]
    if form.characters is not None and plain:
        low, high = form.characters
        points = np.frombuffer(f" {plain} ".encode("utf-32-le", "surrogatepass"), "<u4")
        found += [_runs(points.astype(np.uint64), length) for length in range(low, high + 1)]
    hashes = np.concatenate(found) if found else words
    places = (hashes >> np.uint64(1)) % np.uint64(form.buckets)
    signs = (hashes & np.uint64(1)).astype(np.int64) * 2 - 1
    counts = np.zeros(form.buckets, np.int64)
    np.add.at(counts, places.astype(np.int64), signs)
    return np.clip(counts, -form.cap, form.cap).astype(np.int8)


@lru_cache(maxsize=1 << 14)
def _word_hash(word: str) -> int:
    raw = word.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")


def _runs(values: Hashes, length: int) -> Hashes:
    """Return a hash of each run of `length` values: a polynomial, then SplitMix64's finaliser."""
    count = max(0, len(values) - length + 1)
    mixed = np.full(count, length, np.uint64)
    for at in range(length):
        mixed = mixed * _FACTOR + values[at : at + count] + np.uint64(1)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX[1]
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


class Tokens(Block):
    """Words of a text as whole numbers, for embeddings: 0 padding, 1 unknown, from 2 tokens."""

    length: int = Field(default=64, ge=1, le=LETTERS)
    """Tokens of a record; longer texts are cut, shorter ones padded."""
    buckets: int | None = Field(default=None, ge=3, le=1 << 20, examples=[4096])
    """Without a vocabulary: ids are a public hash of each word below this number."""
    file: str | None = Field(default=None, min_length=1, max_length=4096, exclude=True)
    """Path of a vocabulary, from the job file's folder: one token a line, or a tokenizer.json."""
    vocabulary: Annotated[tuple[Token, ...], Field(max_length=1 << 15)] = Field(
        default=(), exclude_if=lambda value: value == ()
    )
    """Tokens by id from 2, in lower case, inner parts of words with `##`; filled in from `file`."""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, given: Any, info: ValidationInfo) -> Any:
        return filled_from_file(given, info, _vocabulary)

    @property
    def size(self) -> int:
        """Number of different ids."""
        return self.buckets or FIRST_TOKEN + len(self.vocabulary)


def _vocabulary(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = (folder / Path(given["file"]).expanduser()).resolve()
    return {"vocabulary": read_vocabulary(path), "file": str(path)}


def first_words(text: str, most: int) -> tuple[str, ...]:
    """Return a text's first `most` words, each once, in lower case and without punctuation."""
    words = (word for word in _WORD.findall(plain_text(text)) if word.replace("_", "a").isalnum())
    return tuple(dict.fromkeys(words))[:most]


def hashed_tokens(text: str, most: int, buckets: int) -> list[int]:
    """Return the ids of a text's first `most` words: 2 to buckets − 1, by a public hash."""
    words = _WORD.findall(plain_text(text))[:most]
    return [FIRST_TOKEN + _word_hash(word) % (buckets - FIRST_TOKEN) for word in words]


def vocabulary_tokens(text: str, most: int, ids: Mapping[str, int]) -> list[int]:
    """Return the first `most` ids of a text's tokens by a vocabulary.

    Each word is divided greedily into the longest tokens, of which all but the first begin with
    `##`; a word that cannot be divided, or has over `WORD_LETTERS` characters, is unknown."""
    found: list[int] = []
    for word in _WORD.findall(plain_text(text)):
        if len(found) >= most:
            break
        found += _pieces(word, ids)
    return found[:most]


def _pieces(word: str, ids: Mapping[str, int]) -> list[int]:
    found, start = [], 0
    if len(word) > WORD_LETTERS:
        return [UNKNOWN_TOKEN]
    while start < len(word):
        lead = "##" if start else ""
        ends = range(len(word), start, -1)
        end = next((end for end in ends if lead + word[start:end] in ids), None)
        if end is None:
            return [UNKNOWN_TOKEN]
        found.append(ids[lead + word[start:end]])
        start = end
    return found


def read_vocabulary(path: Path) -> tuple[str, ...]:
    """Return the tokens of a file in order, without special ones such as `[CLS]`.

    One token a line, or Hugging Face's tokenizer.json with a WordPiece or WordLevel model. Raises
    DataError."""
    fix = "name a file with one token a line, or a tokenizer.json with a WordPiece model"
    try:
        with path.open("rb") as file:
            raw = file.read(_FILE_BYTES + 1)
    except OSError as error:
        what = f"cannot be read ({error.strerror or error})"
        raise DataError(what, where=str(path), fix="check the path") from error
    if len(raw) > _FILE_BYTES:
        raise DataError(f"has more than {_FILE_BYTES} bytes", where=str(path), fix=fix)
    try:
        listed = _of_json(json.loads(raw)) if path.suffix == ".json" else raw.decode().splitlines()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"is no vocabulary ({error})", where=str(path), fix=fix) from None
    tokens = dict.fromkeys(one.strip().lower() for one in listed)
    return tuple(one for one in tokens if one and not (len(one) > 2 and one[0] + one[-1] == "[]"))


def _of_json(tokenizer: Any) -> list[str]:
    model = tokenizer["model"]
    if model["type"] not in ("WordPiece", "WordLevel"):
        raise ValueError(f"its model is {model['type']!r}")
    return sorted(model["vocab"], key=model["vocab"].__getitem__)
