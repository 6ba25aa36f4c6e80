"""A device's privacy spending for its owner, as plain values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgeveil.config.policy import Policy
from edgeveil.privacy.events import Event, to_dict
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.ledger import read_ledger
from edgeveil.privacy.ledger_chain import Account, JobAccount, LedgerChain, next_refusal, spent
from edgeveil.privacy.policy import INFER, JobRequest, Quote, asked_in, countable, price, total
from edgeveil.storage import file_mark
from edgeveil_edge.consent import limits_of


def as_plain(path: Path, book: LedgerChain, policies: dict[str, Policy]) -> dict[str, Any]:
    """Convert the whole ledger for `--json`; `epsilon` is null if nothing is proven."""
    return {
        "ledger": str(path),
        "links": book.links,
        "data_sets": [
            _data_set(name, account, policies.get(name)) for name, account in book.accounts.items()
        ],
    }


def _data_set(name: str, account: Account, policy: Policy | None) -> dict[str, Any]:
    delta = policy.lifetime_delta if policy else None
    return {
        "name": name,
        "training": _guarantee(spent(account, delta=delta)),
        "inference": _guarantee(spent(account, purpose=INFER, delta=delta)),
        "left": left(account, policy) if policy else None,
        "next_refusal": _next_refusal(account, policy),
        "jobs": [_job(job, entry) for job, entry in account.items()],
    }


def _next_refusal(account: Account, policy: Policy | None) -> dict[str, str] | None:
    refusal = next_refusal(account, limits_of(policy)) if policy else None
    if refusal is None:
        return None
    return {"limit": refusal.where.removeprefix("policy."), "why": str(refusal)}


def left(account: Account, policy: Policy) -> dict[str, float]:
    """Return the remaining budget by policy key; open jobs count with all they reserved."""
    jobs = [countable(entry.counting) for entry in account.values()]
    quote = total(jobs, policy.lifetime_delta)
    training, inference = quote.training, quote.inference
    shared = policy.lifetime_collusion_epsilon is not None or any(
        one.if_colluding is not None for one in (training, inference)
    )
    spent_alone = max(training.collusion_epsilon, inference.if_colluding or 0.0)
    alone = max(0.0, policy.collusion_epsilon_in_all - spent_alone)
    of_device, of_record = inference.device_epsilon, inference.record_epsilon
    record_limit = policy.max_inference_record_epsilon
    if record_limit is None:  # one limit for both units
        of_device = max(of_device, of_record)
    of_inference = {"max_inference_epsilon": max(0.0, policy.max_inference_epsilon - of_device)}
    if record_limit is not None:
        of_inference["max_inference_record_epsilon"] = max(0.0, record_limit - of_record)
    return {
        "lifetime_epsilon": max(0.0, policy.lifetime_epsilon - training.limited),
        **({"lifetime_collusion_epsilon": alone} if shared else {}),
        **of_inference,
        **_left_to_ask(jobs, policy),
    }


def _left_to_ask(jobs: list[JobRequest], policy: Policy) -> dict[str, float]:
    if policy.statistics_epsilon is None:
        return {}
    asked = asked_in(jobs, policy.lifetime_delta).limited
    return {"statistics_epsilon": max(0.0, policy.statistics_epsilon - asked)}


def _job(job: str, entry: JobAccount) -> dict[str, Any]:
    reserved = price(entry.request.events, entry.request.delta)
    return {
        "job": job,
        "open": entry.is_open,
        "elsewhere": entry.elsewhere,
        "delta": entry.request.delta,
        **{name: _guarantee(value) for name, value in guarantees(entry.spent)},
        "reserved": {name: _guarantee(value) for name, value in guarantees(reserved)},
        "releases": [
            {"exchange": round, "link": answer.number, "events": _events(answer.events)}
            for round, answer in entry.answers.items()
        ],
    }


def kinds(entry: JobAccount) -> list[dict[str, Any]]:
    rounds: dict[Event, list[int]] = {}
    for round, answer in entry.answers.items():
        for event in answer.events:
            rounds.setdefault(event, []).append(round)
    return [
        {**one, "count": len(rounds[event]), "exchanges": _spans(rounds[event])}
        for event, one in zip(rounds, _events(rounds), strict=True)
    ]


def _spans(numbers: list[int]) -> str:
    first, last = min(numbers), max(numbers)
    if len(numbers) > 1 and last - first == len(numbers) - 1:
        return f"{first} to {last}"
    return ", ".join(map(str, sorted(numbers)))


class OwnSpending:
    """A device's ledger as plain values, read again when its files change."""

    def __init__(self, path: Path, dataset: str, policy: Policy) -> None:
        self._path, self._dataset, self._policy = path, dataset, policy
        self._mark: tuple[tuple[int, ...], ...] = ()
        self._plain: dict[str, Any] = {}

    def own(self) -> dict[str, Any]:
        sets = self.plain()["data_sets"]
        return next((one for one in sets if one["name"] == self._dataset), {})

    def plain(self) -> dict[str, Any]:
        """Return `as_plain` with each job's `kinds` in place of releases. Raises PrivacyError."""
        path = self._path  # not its -wal, which reading may change; each link changes the head
        files = (path, path.with_suffix(".head"), path.with_suffix(".key"))
        mark = tuple(map(file_mark, files))
        if mark != self._mark:
            book = read_ledger(self._path)
            plain = as_plain(self._path, book, {self._dataset: self._policy})
            for one in plain["data_sets"]:
                for job in one["jobs"]:
                    del job["releases"]
                    job["kinds"] = kinds(book.accounts[one["name"]][job["job"]])
            self._plain, self._mark = plain, mark
        return self._plain


def _events(events: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        {
            "what": event.what,
            "mechanism": to_dict(event)["kind"],
            "count": count,
            "purpose": event.purpose,
            "unit": event.unit,
            "status": event.status,
            "source": event.source,
        }
        for event, count in Counter(events).items()
    ]


def guarantees(quote: Quote) -> tuple[tuple[str, Guarantee], tuple[str, Guarantee]]:
    return ("training", quote.training), ("inference", quote.inference)


def _guarantee(found: Guarantee) -> dict[str, Any]:
    text = {"text": str(found) if found.epsilon or not found.proven else "nothing"}
    if found.proven:
        return {**found.plain, **text}
    plain = {"epsilon": None, "delta": None, "unit": found.unit, "status": found.status, **text}
    claimed = found.status == "claimed" and math.isfinite(found.epsilon)
    return {**plain, **({"claimed_epsilon": found.epsilon} if claimed else {})}
