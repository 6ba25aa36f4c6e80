"""Attacks on derived noise: restored ledgers, differences of sums, draws that never end."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from edgeveil.crypto.keys import NoiseKey
from edgeveil.privacy.derived import (
    DerivedRandom,
    NoiseContext,
    noise_by_context,
    noise_context_key,
)
from edgeveil.privacy.events import GaussianEvent, LaplaceEvent
from edgeveil.privacy.gaussian_mechanism import gaussian, gaussian_event
from edgeveil.privacy.laplace_mechanism import laplace, laplace_event
from edgeveil.privacy.ledger import LEDGER_FILE, Ledger
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.privacy.sampler import LazyUniform, os_random
from edgeveil_lab.audit.guards import AttackOutcome, Guard

JOB, DATASET = "4a" * 16, "audit"
BITS = 28
GAP = 1 << BITS  # change made by the record: the whole sensitivity
MU = 1.5
LEAST_ERROR = 0.75  # of a mean over 64 coordinates or more, in σ of one answer; expected: 1
SIZE = 64
LIMITS = Limits(
    max_epsilon_per_job=100, lifetime_epsilon=100, lifetime_delta=1e-2, max_inference_epsilon=1
)
COMPARISONS = 300  # of one draw; the code makes fewer than 200
WORDS = (0, 1, 2, 3, 1 << 20, (1 << 52) - 1, 1 << 63, (1 << 64) - 1)


def restored(flawed: bool, quick: bool) -> AttackOutcome:
    """Restore the ledger's files after each answer, and average the answers."""
    times, trials = (16, 4) if quick else (64, 10)
    event = gaussian_event("audit", GAP, MU, SIZE, grid_bits=BITS)
    different, errors = 0, []
    for trial in range(trials):
        total = np.zeros(SIZE, np.int64)
        total[0] = GAP * (trial % 2)
        with TemporaryDirectory() as folder:
            answers = _answers(Path(folder), total, event, times, fresh=flawed)
        different += len({answer.tobytes() for answer in answers}) - 1
        errors.append(np.mean(answers, axis=0) - total)
    error = float(np.sqrt(np.mean(np.square(errors)) / event.sigma_squared))
    figure = (
        f"{different} of {trials * (times - 1)} answers are new, their mean off by {error:.2f} σ"
    )
    return AttackOutcome(bool(different > 0 or error < LEAST_ERROR), figure)


def _answers(
    folder: Path, total: NDArray[np.int64], event: GaussianEvent, times: int, *, fresh: bool
) -> list[NDArray[np.int64]]:
    box, backup = folder / "box", folder / "backup"
    box.mkdir()
    context = NoiseContext(DATASET, JOB, 1, bytes(32))
    ledger = Ledger(box / LEDGER_FILE, DATASET)
    ledger.open_job(JobRequest(JOB, 1e-5, (event,)), LIMITS)
    ledger.close()
    shutil.copytree(box, backup)
    answers = []
    for _ in range(times):
        shutil.rmtree(box)
        shutil.copytree(backup, box)
        ledger = Ledger(box / LEDGER_FILE, DATASET)
        noise = os_random if fresh else noise_by_context(ledger.noise_key())(context)
        ledger.commit(JOB, 1, [event], gaussian(total, event, noise)[0].tobytes())
        held = ledger.recall(JOB, 1)
        ledger.close()
        if held is not None:
            answers.append(np.frombuffer(held[1], np.int64))
    return answers


def other_sums(flawed: bool, quick: bool) -> AttackOutcome:
    """Subtract two answers to one query, with a record and without it."""
    count = 20_000 if quick else 200_000
    normal = gaussian_event("audit", GAP, MU, count, grid_bits=BITS)
    flat = laplace_event("audit", GAP, GAP, 1.0, count, BITS)
    key, total = NoiseKey.generate(), np.zeros(count, np.int64)
    neighbour = total.copy()
    neighbour[0] = GAP
    worst, exact = 0.0, 0
    for number in range(4):
        context = noise_context_key(key, NoiseContext(DATASET, JOB, number, bytes(32)))
        for law in (normal, flat):
            without = _sent(total, law, context, flawed)
            present = _sent(neighbour, law, context, flawed)
            exact += int((present - without)[0] == GAP)
            worst = max(worst, abs(np.corrcoef(without, present - neighbour)[0, 1]))
    figure = f"{exact} of 8 differences are exact, correlation {worst:.3f}"
    return AttackOutcome(bool(exact > 0 or worst > 6 / np.sqrt(count)), figure)


def _sent(
    total: NDArray[np.int64], law: GaussianEvent | LaplaceEvent, context: bytes, flawed: bool
) -> NDArray[np.int64]:
    stream = DerivedRandom(context)
    source = stream.__call__ if flawed else stream  # a plain function counts as not derived
    if isinstance(law, GaussianEvent):
        return gaussian(total, law, source)[0]
    return laplace(total, law, source)[0]


class _EndlessError(Exception):
    pass


class _CountedUniform(LazyUniform):
    compared = 0

    def less_than_exp(self, gamma: Fraction) -> bool:
        self.compared += 1
        if self.compared > COMPARISONS:
            raise _EndlessError
        return super().less_than_exp(gamma)


class _WalkingUniform(_CountedUniform):
    """A flawed draw: extends zeros for ever, and leaves the initial guess in single steps."""

    def geometric(self, t: Fraction) -> int:
        while self._bits == 0:
            self._extend()
            self.less_than_exp(Fraction(0))
        x = self._near(t)
        while not self.less_than_exp(x / t):
            x -= 1
        while self.less_than_exp((x + 1) / t):
            x += 1
        return x


def endless_words(flawed: bool, quick: bool) -> AttackOutcome:
    """Force the 64-bit words of single draws at the largest supported scale."""
    kind, endless, most = (_WalkingUniform if flawed else _CountedUniform), 0, 0
    tails = [byte * 8 for byte in (b"\0", b"\x01", b"\x55", b"\xff")]
    for word in WORDS:
        for tail in tails:
            draw = kind(word, 64, lambda count, tail=tail: (tail * count)[:count])  # type: ignore[misc]
            try:
                draw.geometric(Fraction(1 << 40))
            except _EndlessError:
                endless += 1
            most = max(most, draw.compared)
    figure = f"{endless} of {len(WORDS) * len(tails)} draws do not end, {most} comparisons at most"
    return AttackOutcome(endless > 0, figure)


DERIVED_GUARDS = (
    Guard(
        "derived_noise",
        "a restored backup gives the same answer to the same question",
        "fresh noise for every answer",
        restored,
    ),
    Guard(
        "derived_noise",
        "another sum has unrelated noise",
        "noise that is bound to the question alone",
        other_sums,
    ),
    Guard(
        "sampler", "a draw ends for every word", "a walk step by step from a guess", endless_words
    ),
)
