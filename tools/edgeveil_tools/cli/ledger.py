"""`edgeveil ledger`: a device's releases, and the integrity of its ledger."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeveil_tools.cli.common import answer, columns, load_edge

if TYPE_CHECKING:
    from edgeveil.config.policy import Policy
    from edgeveil.privacy.ledger_chain import LedgerChain

_COLUMNS = ("round", "released", "mechanism", "times", "for", "unit", "status")
_KEYS = ("exchanges", "what", "mechanism", "count", "purpose", "unit", "status")


def show(args: argparse.Namespace) -> int:
    """Print the spent budget; raises PrivacyError at a broken link."""
    from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
    from edgeveil_edge.spending import as_plain

    folder, policies = args.place, {}
    if not folder.is_dir():
        site = load_edge(args.place)
        folder, policies = site.state_dir, {site.data.name: site.policy}
    path = folder / LEDGER_FILE
    book = read_ledger(path)
    if args.export is not None:
        rows = list(_exported(book))
        return answer(args, [json.dumps(rows, indent=2)], {"ledger": str(path), "events": rows})
    return answer(args, _lines(path, book, policies), as_plain(path, book, policies))


def _exported(book: LedgerChain) -> Iterator[dict[str, Any]]:
    from edgeveil.privacy.accountant import epsilon
    from edgeveil.privacy.dp_event_tree import dp_event_tree
    from edgeveil.privacy.events import as_single, as_summed

    for name, account in book.accounts.items():
        for job, entry in account.items():
            kinds = dict.fromkeys((event.purpose, event.unit) for event in entry.counted.events)
            for purpose, unit in kinds:
                events = [e for e in entry.counted.events if (e.purpose, e.unit) == (purpose, unit)]
                found = epsilon(events, entry.request.delta)
                row = {"data_set": name, "job": job, "purpose": purpose, "unit": unit}
                row |= {key: found.plain.get(key) for key in ("status", "epsilon", "delta")}
                row["event"] = dp_event_tree(map(as_summed, events))
                if found.colluding is not None:
                    row["collusion_epsilon"] = found.plain["collusion_epsilon"]
                    row["collusion_event"] = dp_event_tree(map(as_single, events))
                yield row


def _lines(path: Path, book: LedgerChain, policies: dict[str, Policy]) -> Iterator[str]:
    from edgeveil.privacy.guarantee import down
    from edgeveil.privacy.ledger_chain import spent
    from edgeveil.privacy.policy import INFER
    from edgeveil_edge.spending import guarantees, kinds, left

    yield f"{path}: {book.links} entries, intact"
    for name, account in book.accounts.items():
        yield f"\n{name}"
        delta = policies[name].lifetime_delta if name in policies else None
        yield f"  spent on training:  {spent(account, delta=delta)}"
        yield f"  spent on inference: {spent(account, purpose=INFER, delta=delta)}"
        if len(account) > 1:
            yield "  (of several jobs: the least lifetime limits that admit them)"
        if name in policies:
            rest = ", ".join(f"{k} {down(v)}" for k, v in left(account, policies[name]).items())
            yield f"  remaining by the policy: {rest}"
        for job, entry in account.items():
            state = "open" if entry.is_open else "closed"
            if entry.elsewhere:
                state = "answered by a copy of this device: the whole reservation counts"
            prices = ", ".join(f"{k} {v}" for k, v in guarantees(entry.spent))
            yield f"\n  job {job or 'unknown'} ({state}): {prices}"
            rows = [[str(row[key]) for key in _KEYS] for row in kinds(entry)]
            yield from (f"    {line}" for line in columns([_COLUMNS, *rows]))
