"""Events in the terms of the library dp-accounting, as JSON (`docs/privacy.md`, "Other libraries").

A node has the name of one of its classes under `class`, and the arguments of its constructor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from edgeveil.privacy.events import (
    ClaimedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonSampled,
    UnprotectedEvent,
    as_summed,
)

Tree = dict[str, Any]


def dp_event_tree(events: Iterable[Event]) -> Tree:
    """Return the composition of `events` of one unit, for adding or removing one.

    Shared noise counts as that of the sum (`as_single` before: of the device alone). Discrete noise
    is written as continuous: its part of δ is only in EdgeVeil's ε. Selections and two-value noise,
    which the library cannot price with Gaussians, are `UnsupportedDpEvent`, releases without a
    proven guarantee `NonPrivateDpEvent`."""
    counted = Counter(map(as_summed, events))
    each = [_repeated(_node(event), count) for event, count in counted.items()]
    return {"class": "ComposedDpEvent", "events": each}


def _repeated(node: Tree, count: int) -> Tree:
    return {"class": "SelfComposedDpEvent", "event": node, "count": count} if count > 1 else node


def _node(event: Event) -> Tree:
    if event.status != "proven" or isinstance(event, ClaimedEvent | UnprotectedEvent):
        return {"class": "NonPrivateDpEvent"}
    if isinstance(event, GaussianEvent):
        return {"class": "GaussianDpEvent", "noise_multiplier": event.noise_multiplier}
    if isinstance(event, PoissonSampled):
        one = {"sampling_probability": event.sampling_probability, "event": _node(event.event)}
        return _repeated({"class": "PoissonSampledDpEvent", **one}, event.steps)
    if isinstance(event, LaplaceEvent) and event.epsilon:
        return {"class": "LaplaceDpEvent", "noise_multiplier": float(1 / event.epsilon)}
    return {"class": "NoOpDpEvent" if getattr(event, "epsilon", 1) == 0 else "UnsupportedDpEvent"}
