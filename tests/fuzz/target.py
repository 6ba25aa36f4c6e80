"""One decoder or parser under fuzzing, and a tape that turns bytes into choices."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgeveil.errors import EdgeVeilError


class Wrong(AssertionError):  # noqa: N818 - what it is, not an error of the program
    """An input was taken, but what came of it breaks a law of the target."""


@dataclass(frozen=True)
class Target:
    """`take` feeds one input. It may raise the errors of `refusals`, and nothing else. `seeds` are
    valid inputs, made by code, from which the fuzzer mutates; `words` are pieces of the format that
    it may put in."""

    take: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    refusals: tuple[type[EdgeVeilError], ...]
    max_bytes: int = 4096
    words: Sequence[bytes] = ()

    def feed(self, data):
        """True if the input was taken, False if it was refused; anything else is a finding."""
        try:
            self.take(data)
        except self.refusals as refusal:
            if not str(refusal):
                raise Wrong("a refusal without a text") from refusal
            return False
        return True


class Tape:
    """Choices from bytes, in order; an ended tape gives zeros, so that every tape ends."""

    def __init__(self, data):
        self._data, self._at = data, 0

    @property
    def over(self):
        return self._at >= len(self._data)

    def take(self, count):
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def number(self, below):
        """0 to `below` - 1; `below` at most 2**64."""
        width = max(1, (below - 1).bit_length() + 7 >> 3)
        return int.from_bytes(self.take(width), "little") % below

    def choice(self, options):
        return options[self.number(len(options))]

    def rest(self):
        return self.take(max(0, len(self._data) - self._at))

    def damaged(self, data, most=4):
        """`data` with up to `most` bytes set, cut out or put in, where the tape says."""
        raw = bytearray(data)
        for _ in range(self.number(most + 1)):
            place, what = self.number(len(raw) + 1), self.number(4)
            if what == 0:
                del raw[place:]
            elif what == 1:
                raw[place:place] = self.take(1 + self.number(8))
            else:
                raw[place : place + 1] = self.take(1)
        return bytes(raw)


@cache
def scratch():
    folder = Path(tempfile.mkdtemp(prefix="edgeveil-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def as_file(name, data):
    path = scratch() / name
    path.write_bytes(data)
    return path


def demand(holds, law):
    if not holds:
        raise Wrong(law)
