"""The audit detects broken mechanisms, passes sound ones, and covers every mechanism."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest

from edgeveil.evaluation.cluster_sums import ONE, ClusterSums
from edgeveil.evaluation.record_counts import Confusion
from edgeveil.parts.methods import METHODS, dp_sgd, fm_sums
from edgeveil.parts.methods.fm import FmDevice
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.accountant import gaussian_delta
from edgeveil.privacy.gaussian_mechanism import gaussian
from edgeveil.privacy.laplace_mechanism import laplace, noised_mean, softmax_laplace
from edgeveil.privacy.sampler import discrete_gaussian
from edgeveil.privacy.selection_mechanism import exponential_mechanism
from edgeveil.statistics import blocks
from edgeveil_lab.audit import command as audit
from edgeveil_lab.audit import mechanism_attacks as ma
from edgeveil_lab.audit import statistics as st
from edgeveil_lab.audit import update_attacks
from edgeveil_lab.audit.command import guards
from edgeveil_lab.audit.evaluation_attack import evaluation_attack
from edgeveil_lab.audit.fm_attacks import CONTEXT, PARAMETERS, NeighbouringJob, gaussian_job
from edgeveil_lab.audit.statistics_attack import statistics_attacks
from edgeveil_lab.audit.update_attacks import dp_sgd_attack, many_steps_attack, single_step_attack
from edgeveil_tools.cli import main
from tests.kits.mechanisms import MECHANISMS

pytestmark = pytest.mark.slow

BETA = 1e-6
STOPWATCH = ("inference", "device answer", "device count")


def failing(attack):
    """Return the attack's events that refute a proven claim, played in this process."""
    played = np.stack([audit.count(attack, side, attack.runs) for side in (False, True)])
    found = audit.judge([attack], {attack.name: played})
    return {one.event for one in found if one.verdict == "FAILS"}


# --- the statistics ---------------------------------------------------------------------------


def test_the_lower_bound_is_that_of_clopper_and_pearson_in_any_direction_less_delta():
    def bound(runs, without, present, delta=0.0, beta=BETA):
        return st.lower_bound(st.EventCounts(runs, without, present), delta, beta)

    # One-sided at 0.05: 8 of 10 is at least 0.4931, 1 of 10 at most 0.3942.
    assert bound(10, 1, 8, beta=0.2) == pytest.approx(math.log(0.4931 / 0.3942), abs=1e-3)
    one = bound(1000, 100, 300)
    assert one == bound(1000, 300, 100) > 0
    assert bound(1000, 900, 700) == pytest.approx(one)
    assert bound(1000, 0, 0) == bound(10**6, 0, 1000, 0.01) == 0.0
    assert bound(10**6, 0, 20_000, 0.01) > 5


def test_a_sound_claim_is_hardly_ever_refuted_and_a_false_one_nearly_always():
    rng = np.random.default_rng(5)
    runs, p = 60_000, 0.18

    def refuted(*chances):
        counts = rng.binomial(runs, chances, (2000, 2)).tolist()
        return sum(st.lower_bound(st.EventCounts(runs, a, b), 0.0, BETA) > 1 for a, b in counts)

    assert refuted(math.exp(-1) * 0.5, 0.5) == 0
    edge = st.caught(1.0, 0.0, runs, p, BETA)
    assert refuted(p, math.exp(edge) * p) >= 0.99 * 2000
    assert edge < 1.1


def test_the_gaussian_event_is_where_the_curve_is_tight():
    edge, delta = st.gaussian_threshold(1.5, 100_000)
    epsilon = st.epsilon_at(1.5, delta)
    assert gaussian_delta(epsilon, 1.5) == pytest.approx(delta)
    without, present = (0.5 * math.erfc(x / math.sqrt(2)) for x in (edge, edge - 1.5))
    assert math.log((present - delta) / without) == pytest.approx(epsilon)


# --- sound mechanisms pass --------------------------------------------------------------------


def stage(name):
    return STAGES[name].build(STAGES[name].made(), update_attacks.CONTEXT)


CLAIMING = {name for name in METHODS if METHODS[name].privacy != "none"}


def test_every_registered_mechanism_and_method_is_attacked():
    attacked = {attack.mechanism for attack in audit.attacks(ma.QUICK)}
    noised = {name for name in STAGES if stage(name).protects}
    assert noised and noised | set(MECHANISMS) | CLAIMING <= attacked
    names = [attack.name for attack in audit.attacks(ma.FULL)]
    assert len(names) == len(set(names))


@pytest.mark.timeout(1800)  # it plays every mechanism and method
@pytest.mark.drill
def test_the_quick_audit_of_everything_passes(monkeypatch, capsys):
    # Timing guards are left to the audit itself.
    untimed = tuple(one for one in guards() if one.mechanism not in STOPWATCH)
    monkeypatch.setattr(audit, "guards", lambda: untimed)
    assert main(["audit", "--quick", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert {row["mechanism"] for row in plain["findings"]} >= set(MECHANISMS) | CLAIMING
    refuted = {row["mechanism"] for row in plain["findings"] if row["verdict"] == "refuted"}
    assert refuted >= {"softmax", "wishart", "local_pca", "output_perturbation"}


# --- broken mechanisms fail, unchanged ones pass -----------------------------------------------


def quieter(factor):
    def mechanism(total, event):
        variance = int(event.sigma_squared * factor**2) // 2 * 2
        ratio = event.sigma_squared // event.finest_sigma_squared
        return gaussian(
            total, replace(event, sigma_squared=variance, finest_sigma_squared=variance // ratio)
        )

    return mechanism


def quieter_laplace(total, event):
    return laplace(total, replace(event, scale_numerator=event.scale_numerator * 9 // 10))


def float_laplace(total, event):
    scale = event.scale_numerator / event.scale_denominator
    return total + np.random.default_rng(1).laplace(0.0, scale, total.shape), event


def every_second_step(total, event):
    odd = total // total.max(initial=1)  # a record's sum that ends in an odd step
    return total + odd + 2 * (gaussian(0 * total, event)[0] // 2), event


def same_small_noise(total, event):
    return total + discrete_gaussian(event.finest_sigma_squared, total.shape), event


def off_diagonals_twice_divided(total, event):
    noise = gaussian(0 * total, event)[0] / math.sqrt(2)
    return total + noise.astype(np.int64), event


def half_the_nominal_records(total, nominal, epsilon):
    return noised_mean(total * 2, nominal, epsilon / 2 if nominal > 1 else epsilon * 2)


def at_half_the_scale(scores, event):
    return exponential_mechanism(2 * scores, event)


class UnderstatedCounts(Confusion):
    sensitivity_squared = 1  # a record changes two cells


class UnderstatedSums(ClusterSums):
    sensitivity_squared = ClusterSums.sensitivity_squared // 2


FAR = ((ONE, 0), (ONE, 0))
PAST, OFF, ODD = "past the threshold", "off the grid", "lowest bit"
BOTH, CLASSES = "both evaluations", "both classes past theirs"


def every_record(count, _rate):
    return np.arange(count)


def half_the_softmax_noise(mean, epsilon, **_):
    return softmax_laplace(mean, epsilon, sensitivity=1)


def counts(runs, kind=None):
    return evaluation_attack("counts", kind or Confusion(2), runs)


def sums(runs, kind=None):
    return evaluation_attack("sums", kind or ClusterSums(2, FAR), runs)


# A sound mechanism is accused once in a million runs of these tests. With so many runs, computed
# from the events' exact probabilities, a flaw is missed as rarely.
SYMMETRIC = [partial(ma.symmetric_attack, diagonal=on) for on in (True, False)]
SOFTMAX, SELECTION = (
    partial(ma.softmax_attack, sensitivity=2),
    partial(ma.selection_attack, monotonic=False),
)


@pytest.mark.parametrize(
    ("attack", "runs", "broken", "found"),
    [
        (ma.gaussian_attack, 40_000, quieter(0.9), PAST),
        (ma.gaussian_attack, 1000, every_second_step, ODD),
        (ma.laplace_attack, 70_000, quieter_laplace, "past the value"),
        (ma.laplace_attack, 1000, float_laplace, OFF),
        (SYMMETRIC[0], 4000, same_small_noise, PAST),
        (SYMMETRIC[1], 4000, off_diagonals_twice_divided, PAST),
        (single_step_attack, 3000, every_record, PAST),
        (SOFTMAX, 4000, half_the_softmax_noise, CLASSES),
        (ma.record_attack, 9000, half_the_nominal_records, CLASSES),
        (SELECTION, 10_000, at_half_the_scale, "the favoured one"),
        (counts, 3000, UnderstatedCounts(2), BOTH),
        (sums, 3000, UnderstatedSums(2, FAR), BOTH),
    ],
)
def test_a_broken_mechanism_is_found_and_a_sound_one_is_not(attack, runs, broken, found):
    assert failing(attack(runs)) == set()
    assert found in failing(attack(runs, broken))


def test_a_gradient_that_is_not_clipped_is_found(monkeypatch):
    monkeypatch.setattr(dp_sgd, "AIM", 8.0)
    monkeypatch.setattr(dp_sgd, "LIMIT", 65.0)
    assert failing(dp_sgd_attack(300)) == {PAST}


@pytest.mark.timeout(900)
def test_one_sample_for_all_steps_of_a_round_is_found(monkeypatch):
    attack = many_steps_attack(4500)
    assert failing(attack) == set()
    total = dp_sgd.NoisedSums.total

    def first(self, rows, chosen, clip_norm):
        chosen = self.__dict__.setdefault("first", chosen)
        return total(self, rows, chosen, clip_norm)

    monkeypatch.setattr(dp_sgd.NoisedSums, "total", first)
    assert failing(attack) == {"in most of the steps"}


def test_an_update_priced_as_hidden_from_none_alone_is_found(monkeypatch):
    """A record may reverse a device's update, which is twice the clip and has its own price."""
    assert failing(update_attacks.noised_attack(3000)) == set()
    monkeypatch.setattr(update_attacks, "for_one_record", lambda event: event)
    assert failing(update_attacks.noised_attack(3000)) == {PAST}


def test_a_record_that_is_not_clipped_is_found(monkeypatch):
    scene = NeighbouringJob.of(PARAMETERS, CONTEXT)  # only its added record is used
    without, present = scene.without.at(np.array([1])), scene.present.at(np.array([1, 3]))
    attack = gaussian_job(600, "end to end", replace(scene, without=without, present=present))

    def whole(rows, bound, bits=12):
        return np.trunc(rows * 2.0**bits).astype(np.int64)

    monkeypatch.setattr(fm_sums, "clip_rows", lambda rows, bound: rows)
    monkeypatch.setattr(fm_sums, "quantise", whole)
    assert failing(attack) >= {"quadratic", "the whole job"}


def test_a_method_that_spends_more_than_it_says_is_found():
    generous = FmDevice(PARAMETERS, replace(CONTEXT, epsilon=2.5 * CONTEXT.epsilon))
    attack = gaussian_job(2000, "end to end", NeighbouringJob.of(PARAMETERS, CONTEXT), generous)
    assert failing(attack) >= {"round 1", "round 2"}


def twice(kind):
    once = kind.of
    return kind, "of", lambda self, x: 2 * once(self, x)


def not_clipped(self, x):
    return (x[:, self.place].astype(np.float64) - self.middle) / self.half


COUNTED_TWICE, NOT_CLIPPED = twice(blocks.Counts), (blocks.Scaled, "of", not_clipped)
EACH_RECORD = (blocks, "_mean", lambda sums, of, bits: sums << bits)
WEIGHTS_LEFT_OUT = (
    blocks.BlockVector,
    "sensitivity_squared",
    property(lambda self: len(self.blocks) << 24),
)
STATISTICS = {
    "categories": COUNTED_TWICE,
    "a missing value": COUNTED_TWICE,
    "a histogram": COUNTED_TWICE,
    "quantiles": COUNTED_TWICE,
    "a mean": NOT_CLIPPED,
    "a deviation": NOT_CLIPPED,
    "a table": COUNTED_TWICE,
    "a correlation": NOT_CLIPPED,
    "values that nobody listed": twice(blocks.HeavyHitters),
    "words": (blocks.HeavyHitters, "bound", 1.0),
    "text lengths": NOT_CLIPPED,
    "a part of a date": COUNTED_TWICE,
    "a filter": COUNTED_TWICE,
    "all at once": WEIGHTS_LEFT_OUT,
    "all at once, shared noise": WEIGHTS_LEFT_OUT,
    f"all at once, a person of {ma.MANY} records": EACH_RECORD,
    f"all at once, a device of {ma.MANY} records": WEIGHTS_LEFT_OUT,
}


def test_every_statistic_is_attacked():
    assert {attack.title for attack in statistics_attacks(1)} == set(STATISTICS)


@pytest.mark.parametrize("title", STATISTICS)
def test_a_record_that_moves_a_statistic_by_more_than_its_price_is_found(monkeypatch, title):
    def found():
        return failing(next(one for one in statistics_attacks(1000) if one.title == title))

    assert found() == set()
    monkeypatch.setattr(*STATISTICS[title])
    assert found() >= {"all exchanges"}


# --- the command ------------------------------------------------------------------------------


def test_a_claim_that_fails_gives_exit_code_1(monkeypatch, capsys):
    broken = ma.gaussian_attack(4000, quieter(0.7))
    played = np.stack([audit.count(broken, side, 4000) for side in (False, True)])
    monkeypatch.setattr(audit, "attacks", lambda effort: (broken,))
    monkeypatch.setattr(audit, "guards", lambda: ())
    monkeypatch.setattr(audit, "spread", lambda *_: ({broken.name: played}, {}))
    assert main(["audit", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["failed"] == 1


def test_one_mechanism_can_be_asked_for_and_must_be_there(capsys):
    assert main(["audit", "--mechanism", "laplace", "--runs", "2000", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["findings"]
    assert {(row["mechanism"], row["runs"]) for row in rows} == {("laplace", 2000)}
    assert main(["audit", "--mechanism", "laplase"]) == main(["audit", "--runs", "0"]) == 2


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_an_audit_that_is_stopped(sent):
    words = ["audit", "--mechanism", "fm", "--runs", "500000"]
    with subprocess.Popen(
        [sys.executable, "-m", "edgeveil_tools.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that run in the background inherit an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as started:
        # Ctrl-C comes while the workers start.
        count, workers = os.cpu_count() if sent == signal.SIGKILL else 1, []
        until = time.monotonic() + 60
        while len(workers) < count and time.monotonic() < until:
            children = psutil.Process(started.pid).children()
            workers = [p for p in children if "spawn_main" in str(p.cmdline())]
        (os.killpg if sent == signal.SIGINT else os.kill)(started.pid, sent)
        if sent == signal.SIGINT:
            assert "Traceback" not in started.stderr.read()
            assert started.wait() == 130
    _, left = psutil.wait_procs(workers, timeout=30)
    for one in left:
        one.kill()
    assert workers and not left
