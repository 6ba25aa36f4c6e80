"""`edgeveil audit`: attack every mechanism and compare the proven lower bound on ε with the claim.

A mechanism fails if the ε that the counts prove exceeds the printed ε. A sound mechanism fails
with probability at most 1e-6 over all tests of a call."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from multiprocessing import active_children, get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from edgeveil.errors import PrivacyError, UsageError
from edgeveil.privacy.guarantee import up
from edgeveil.registry import nearest
from edgeveil_lab.audit.correlated_attacks import correlated_attack
from edgeveil_lab.audit.evaluation_attack import evaluation_attacks
from edgeveil_lab.audit.fm_attacks import claimed_attacks, fm_attacks
from edgeveil_lab.audit.guards import Guard, GuardFinding
from edgeveil_lab.audit.mechanism_attacks import FULL, QUICK, Attack, Effort, single_mechanisms
from edgeveil_lab.audit.shared_attacks import shared_attacks
from edgeveil_lab.audit.statistics import BETA, EventCounts, caught, lower_bound
from edgeveil_lab.audit.statistics_attack import statistics_attacks
from edgeveil_lab.audit.update_attacks import update_attacks
from edgeveil_tools.lifeline import end_with_starter
from edgeveil_tools.result import finite

PIECES = 24  # per side of an attack, to keep all cores busy and the progress bar moving


@dataclass(frozen=True)
class Finding:
    """Result of one event; `caught` is the smallest true ε that is detected with power 0.99."""

    mechanism: str
    attack: str
    event: str
    claimed_epsilon: float
    delta: float
    measured_epsilon: float
    caught: float
    runs: int
    without: int
    present: int
    proven: bool

    @property
    def exceeds(self) -> bool:
        return self.measured_epsilon > self.claimed_epsilon

    @property
    def verdict(self) -> str:
        if self.proven:
            return "FAILS" if self.exceeds else "holds"
        return "refuted" if self.exceeds else "not refuted"


@cache
def attacks(effort: Effort) -> tuple[Attack, ...]:
    return (
        *single_mechanisms(effort),
        *fm_attacks(effort.jobs),
        *evaluation_attacks(effort.jobs),
        *statistics_attacks(effort.jobs),
        *update_attacks(effort.values, effort.jobs),
        *shared_attacks(max(1, effort.jobs // 4)),
        correlated_attack(max(1, effort.jobs // 8)),
        *claimed_attacks(effort),
    )


@cache
def guards() -> tuple[Guard, ...]:
    from edgeveil_lab.audit.device_timing import DEVICE_GUARDS
    from edgeveil_lab.audit.noise_guard import DERIVED_GUARDS
    from edgeveil_lab.audit.record_guard import RECORDS_GUARD
    from edgeveil_lab.audit.schema_guard import SCHEMA
    from edgeveil_lab.audit.shared_attacks import SHARED_GUARDS
    from edgeveil_lab.audit.timing import SUBNORMALS

    return (SUBNORMALS, *DEVICE_GUARDS, RECORDS_GUARD, SCHEMA, *DERIVED_GUARDS, *SHARED_GUARDS)


def judged(mechanism: str, promise: str, quick: bool) -> GuardFinding:
    guard = next(g for g in guards() if (g.mechanism, g.promise) == (mechanism, promise))
    stands, flawed = guard.play(False, quick), guard.play(True, quick)
    return GuardFinding(guard.mechanism, guard.promise, guard.flaw, stands, flawed)


def audit(
    *, quick: bool = False, as_json: bool = False, runs: int | None = None, mechanism: str = ""
) -> int:
    """Play the attacks and print the findings; return 1 if a proven claim fails, else 0.

    Raises UsageError for an unknown mechanism or fewer than one run."""
    effort = QUICK if quick else FULL
    if runs is not None and runs < 1:
        raise UsageError("no run to play", where="--runs", fix="use 1 or more")
    if runs is not None:
        effort = Effort(runs, runs, runs)
    names = {one.mechanism for one in attacks(effort)} | {one.mechanism for one in guards()}
    if mechanism and mechanism not in names:
        fix = nearest(mechanism, sorted(names))
        raise UsageError(f"no mechanism '{mechanism}'", where="--mechanism", fix=fix)
    chosen = [one for one in attacks(effort) if mechanism in ("", one.mechanism)]
    guarded = [one for one in guards() if mechanism in ("", one.mechanism)]
    console = Console(stderr=as_json, highlight=False)
    with Progress(console=console, transient=True) as progress:
        total = sum(2 * len(pieces(attack)) for attack in chosen) + len(guarded)
        bar = progress.add_task("attacking", total=total)
        parallel = [guard for guard in guarded if not guard.alone]
        counted, played = spread(chosen, effort, lambda: progress.advance(bar), parallel, quick)
        for guard in guarded:
            if guard.alone:
                played[guard.promise] = judged(guard.mechanism, guard.promise, quick)
                progress.advance(bar)
    findings, kept = judge(chosen, counted), [played[guard.promise] for guard in guarded]
    failed = sum(found.proven and found.exceeds for found in findings)
    failed += sum(found.verdict != "holds" for found in kept)
    if as_json:
        rows = [{**asdict(found), "verdict": found.verdict} for found in findings]
        plain = {"beta": BETA, "tests": len(findings), "failed": failed, "findings": rows}
        plain["guards"] = [{**asdict(found), "verdict": found.verdict} for found in kept]
        print(json.dumps(finite(plain), allow_nan=False), flush=True)
    else:
        show(console, findings, kept, failed)
    return 1 if failed else 0


def judge(chosen: Sequence[Attack], counted: dict[str, NDArray[np.int64]]) -> list[Finding]:
    """Return findings from hits (2, claims): without, present; tests share BETA (Bonferroni)."""
    beta = BETA / max(1, sum(len(attack.claims) for attack in chosen))
    findings = []
    for attack in chosen:
        for k, claim in enumerate(attack.claims):
            without, present = (int(side[k]) for side in counted[attack.name])
            runs, rate = attack.runs, min(without, present) / attack.runs
            counts = EventCounts(runs, without, present)
            bound = lower_bound(counts, claim.delta, beta)
            least = caught(claim.epsilon, claim.delta, runs, rate, beta)
            named = (attack.mechanism, attack.title, claim.event, claim.epsilon, claim.delta)
            findings.append(Finding(*named, bound, least, runs, without, present, claim.proven))
    return findings


def pieces(attack: Attack) -> list[int]:
    edges = [attack.runs * k // PIECES for k in range(PIECES + 1)]
    return [b - a for a, b in pairwise(edges) if b > a]


def count(attack: Attack, present: bool, runs: int) -> NDArray[np.int64]:
    hits = attack.play(present, runs)
    if hits.shape != (len(attack.claims), runs):
        raise PrivacyError(f"{attack.name}: hits of shape {hits.shape}")
    return np.asarray(hits.sum(axis=1), dtype=np.int64)


def spread(
    chosen: Sequence[Attack],
    effort: Effort,
    advance: Callable[[], object],
    parallel_guards: Iterable[Guard],
    quick: bool,
) -> tuple[dict[str, NDArray[np.int64]], dict[str, GuardFinding]]:
    """Play attacks and guards on all cores; return hits (2, claims) and findings, by name."""
    kept: dict[str, GuardFinding] = {}
    total = {one.name: np.zeros((2, len(one.claims)), np.int64) for one in chosen}
    spawn = get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawn, initializer=_begin) as pool:
        try:
            with _interrupts_blocked():  # submitting starts the workers
                waiting: dict[Future[Any], tuple[str, bool]] = {
                    pool.submit(judged, g.mechanism, g.promise, quick): ("", False)
                    for g in parallel_guards
                }
                waiting |= {
                    pool.submit(_count_named, effort, attack.name, side, runs): (attack.name, side)
                    for attack in chosen
                    for side in (False, True)
                    for runs in pieces(attack)
                }
            for done in as_completed(waiting):
                found, (name, present) = done.result(), waiting[done]
                if isinstance(found, GuardFinding):
                    kept[found.promise] = found
                else:
                    total[name][int(present)] += found
                advance()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():  # a piece may take minutes
                worker.terminate()
            raise
    return total, kept


def _begin() -> None:
    import torch

    end_with_starter()
    torch.set_num_threads(1)  # there is one worker per core


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT, also in processes started meanwhile; raise KeyboardInterrupt afterwards."""
    received: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
    if received:
        raise KeyboardInterrupt


def _count_named(effort: Effort, name: str, present: bool, runs: int) -> NDArray[np.int64]:
    """Run a piece in a worker; attacks are not picklable, so it is looked up by name."""
    attack = next(one for one in attacks(effort) if one.name == name)
    return count(attack, present, runs)


def show(
    console: Console, findings: Sequence[Finding], kept: Sequence[GuardFinding], failed: int
) -> None:
    for proven, title in ((True, "proven"), (False, "claimed, not proven")):
        heads = ("attack, event", "claimed ε", "at δ", "measured ε ≥", "finds ε ≥", "verdict")
        table, before = _table(title, *heads), ""
        for found in (found for found in findings if found.proven == proven):
            heading = f"{found.mechanism}: {found.attack}"
            if heading != before:
                table.add_row(f"[bold]{heading}[/bold]\n{found.runs:,} runs a side")
            before = heading
            table.add_row(
                f"  {found.event}",
                up(found.claimed_epsilon),
                up(found.delta),
                f"{found.measured_epsilon:.3f}",
                f"{found.caught:.3f}",
                _coloured(found.verdict),
            )
        if table.rows:
            console.print(table)
    table = _table(
        "guards", "promise", "attacked as it stands", "attacked with a flaw planted", "verdict"
    )
    for guard in kept:
        stands, flawed = guard.stands.figure, f"{guard.flaw}: {guard.flawed.figure}"
        promise = f"[bold]{guard.mechanism}[/bold]: {guard.promise}"
        table.add_row(promise, stands, flawed, _coloured(guard.verdict))
    if kept:
        console.print(table)
    console.print(
        f"{len(findings)} tests, one error in a million allowed over all of them,"
        f" and {len(kept)} guards;",
        f"[red]{failed} failed[/red]" if failed else "[green]no proven claim fails[/green]",
    )


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for head in heads:
        table.add_column(head, justify="right" if "ε" in head or "δ" in head else "left")
    return table


def _coloured(verdict: str) -> str:
    colour = {"FAILS": "red", "BLIND": "red", "holds": "green"}.get(verdict, "yellow")
    return f"[{colour}]{verdict}[/{colour}]"
