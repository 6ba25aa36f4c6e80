"""Short messages, made by a rule: 86 % ordinary, 14 % unwanted, as counts of hashed words.

    python -m tests.kits.imbalanced_text FILE.csv [SEED]

Words follow Zipf's law. An unwanted message is longer and takes some of its words from a list that
ordinary messages seldom use. Each word is counted at one of 256 places by its SHA-256, so places
are shared. The rule was fixed before any job was tuned on it."""

import csv
import hashlib
import sys
from pathlib import Path

import numpy as np

MESSAGES, PLACES = 5600, 256
UNWANTED_SHARE = 0.14
_WORDS, _TELLING = 4000, 400
_MEAN_WORDS = (12, 24)  # of an ordinary and of an unwanted message
_TELLING_SHARE = (0.02, 0.40)  # of their words


def messages(seed, count=MESSAGES):
    """Return counts (count, PLACES) int64, and labels (count,): 1 unwanted."""
    random = np.random.default_rng(seed)
    labels = (random.random(count) < UNWANTED_SHARE).astype(np.int64)
    place = np.array([_place(f"word {of}") for of in range(_WORDS + _TELLING)])
    common, telling = _zipf(_WORDS), _zipf(_TELLING)
    found = np.zeros((count, PLACES), np.int64)
    for row, label in zip(found, labels, strict=True):
        words = 1 + random.poisson(_MEAN_WORDS[label] - 1)
        of_list = random.binomial(words, _TELLING_SHARE[label])
        said = random.choice(_WORDS, words - of_list, p=common)
        told = _WORDS + random.choice(_TELLING, of_list, p=telling)
        np.add.at(row, place[np.concatenate([said, told])], 1)
    return found, labels


def _place(word):
    return hashlib.sha256(word.encode()).digest()[0]


def _zipf(words):
    chances = 1.0 / np.arange(1, words + 1)
    return chances / chances.sum()


def main(path, seed=0):
    found, labels = messages(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*(f"place{of}" for of in range(PLACES)), "unwanted"])
        table.writerows(np.column_stack([found, labels]).tolist())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
