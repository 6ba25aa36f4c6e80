"""What a device has spent, for its owner: as plain values and as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgeveil.privacy.events import Event, to_dict
from edgeveil.privacy.guarantee import Guarantee, down
from edgeveil.privacy.ledger import Account, Book, JobAccount
from edgeveil.privacy.policy import INFER, Quote, countable_quote, price, total
from edgeveil.sites.policy import Policy

_COLUMNS = ("exchange", "released", "mechanism", "times", "for", "unit", "status")


def as_plain(path: Path, book: Book, policies: dict[str, Policy]) -> dict[str, Any]:
    """The whole book for `--json`; `left` stands where the data set's policy is known.

    `epsilon` is null where nothing is proven.
    """
    return {
        "ledger": str(path),
        "links": book.links,
        "data_sets": [
            {
                "name": name,
                "training": _guarantee(account.spent()),
                "inference": _guarantee(account.spent(purpose=INFER)),
                "left": left(account, policies[name]) if name in policies else None,
                "jobs": [_job(job, entry) for job, entry in account.jobs.items()],
            }
            for name, account in book.accounts.items()
        ],
    }


def left(account: Account, policy: Policy) -> dict[str, float]:
    """What the policy still allows, by its keys; open jobs count with all they reserved."""
    quotes = [countable_quote(entry.counting) for entry in account.jobs.values()]
    training, inference = total(q.training for q in quotes), total(q.inference for q in quotes)
    return {
        "lifetime_epsilon": max(0.0, policy.lifetime_epsilon - training.epsilon),
        "lifetime_delta": max(0.0, policy.lifetime_delta - training.delta),
        "max_inference_epsilon": max(0.0, policy.max_inference_epsilon - inference.epsilon),
    }


def show(path: Path, book: Book, policies: dict[str, Policy]) -> None:
    """Print the book: per data set what was spent and is left, per job each kind of release."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print(f"{path}: {book.links} links, intact", soft_wrap=True)
    for name, account in book.accounts.items():
        console.print(f"\n{name}", style="bold")
        console.print(f"  spent on training:  {account.spent()}")
        console.print(f"  spent on inference: {account.spent(purpose=INFER)}")
        if name in policies:
            rest = ", ".join(f"{k} {down(v)}" for k, v in left(account, policies[name]).items())
            console.print(f"  left by the policy: {rest}", soft_wrap=True)
        for job, entry in account.jobs.items():
            state = "open" if entry.is_open else "closed"
            prices = ", ".join(f"{k} {v}" for k, v in _pair(entry.spent))
            console.print(f"\n  job {job} ({state}): {prices}", soft_wrap=True)
            console.print(_table(entry))


def _table(entry: JobAccount) -> Any:
    from rich.padding import Padding
    from rich.table import Table

    table = Table(*_COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for row in _rows(entry):
        table.add_row(*row)
    return Padding(table, (0, 0, 0, 4))


def _rows(entry: JobAccount) -> Iterable[tuple[str, ...]]:
    """One row for each kind of event: the exchanges, what it was, and how often."""
    exchanges: dict[Event, list[int]] = {}
    for exchange, release in entry.releases.items():
        for event in release.events:
            exchanges.setdefault(event, []).append(exchange)
    for event, numbers in exchanges.items():
        kind = str(to_dict(event)["kind"])
        yield (
            _spans(numbers),
            event.what,
            kind,
            str(len(numbers)),
            event.purpose,
            event.unit,
            event.status,
        )


def _spans(numbers: list[int]) -> str:
    """`3 to 17` for a run without gaps, else each number."""
    first, last = min(numbers), max(numbers)
    if len(numbers) > 1 and last - first == len(numbers) - 1:
        return f"{first} to {last}"
    return ", ".join(map(str, sorted(numbers)))


def _job(job: str, entry: JobAccount) -> dict[str, Any]:
    reserved = price(entry.request.events, entry.request.delta)
    return {
        "job": job,
        "open": entry.is_open,
        "delta": entry.request.delta,
        **{name: _guarantee(value) for name, value in _pair(entry.spent)},
        "reserved": {name: _guarantee(value) for name, value in _pair(reserved)},
        "releases": [
            {"exchange": exchange, "link": release.number, "events": _events(release.events)}
            for exchange, release in entry.releases.items()
        ],
    }


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


def _pair(quote: Quote) -> tuple[tuple[str, Guarantee], tuple[str, Guarantee]]:
    return ("training", quote.training), ("inference", quote.inference)


def _guarantee(found: Guarantee) -> dict[str, Any]:
    claimed = found.status == "claimed" and math.isfinite(found.epsilon)
    return {
        "epsilon": found.epsilon if found.proven else None,
        "delta": found.delta if found.proven else None,
        "unit": found.unit,
        "status": found.status,
        **(found.of_records if found.proven else {}),
        **found.notes,
        **({"claimed_epsilon": found.epsilon} if claimed else {}),
    }
