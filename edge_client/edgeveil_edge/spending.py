"""What a device has spent, for its owner, as plain values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from edgeveil.privacy.events import Event, to_dict
from edgeveil.privacy.guarantee import Guarantee
from edgeveil.privacy.ledger import Account, Book, JobAccount
from edgeveil.privacy.policy import INFER, Quote, countable_quote, price, total
from edgeveil.sites.policy import Policy


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
        **_left_if_colluding(policy, training),
        "lifetime_delta": max(0.0, policy.lifetime_delta - training.delta),
        "max_inference_epsilon": max(0.0, policy.max_inference_epsilon - inference.epsilon),
    }


def _left_if_colluding(policy: Policy, training: Guarantee) -> dict[str, float]:
    if training.if_colluding is None and policy.lifetime_collusion_epsilon is None:
        return {}
    left_over = policy.collusion_epsilon_in_all - training.collusion_epsilon
    return {"lifetime_collusion_epsilon": max(0.0, left_over)}


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


def guarantees(quote: Quote) -> tuple[tuple[str, Guarantee], tuple[str, Guarantee]]:
    """Both, by name."""
    return ("training", quote.training), ("inference", quote.inference)


def _guarantee(found: Guarantee) -> dict[str, Any]:
    claimed = found.status == "claimed" and math.isfinite(found.epsilon)
    return {
        "epsilon": found.epsilon if found.proven else None,
        "delta": found.delta if found.proven else None,
        "unit": found.unit,
        "status": found.status,
        **({**found.of_records, **found.of_collusion} if found.proven else {}),
        **found.notes,
        **({"claimed_epsilon": found.epsilon} if claimed else {}),
    }
