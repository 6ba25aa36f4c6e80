"""Events as plain values, for the wire and the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from edgeveil.errors import PrivacyError
from edgeveil.privacy.events import (
    ClaimedEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    SampledGaussianEvent,
    SelectionEvent,
    TwoValueEvent,
    UnprotectedEvent,
)

KINDS: dict[str, type[Event]] = {
    "gaussian": GaussianEvent,
    "sampled_gaussian": SampledGaussianEvent,
    "laplace": LaplaceEvent,
    "selection": SelectionEvent,
    "two_value": TwoValueEvent,
    "claimed": ClaimedEvent,
    "unprotected": UnprotectedEvent,
}
# Steps may exceed 64 bits, which JSON and MessagePack readers need not carry: sent as text.
_WIDE = {
    "sigma_squared",
    "finest_sigma_squared",
    "scale_numerator",
    "scale_denominator",
    "epsilon_numerator",
    "epsilon_denominator",
}


def to_dict(event: Event) -> dict[str, Any]:
    """Plain values of an event, with its `kind`; the inverse of `event_from_dict`."""
    kind = next(name for name, known in KINDS.items() if type(event) is known)
    plain = {k: str(v) if k in _WIDE else v for k, v in asdict(event).items()}
    return {"kind": kind, **plain}


def event_from_dict(plain: Mapping[str, Any]) -> Event:
    """The event of `to_dict`. Unknown kinds, unknown fields and wrong values raise."""
    values = dict(plain)
    kind = values.pop("kind", None)
    if kind not in KINDS:
        raise PrivacyError(f"unknown privacy event '{kind}'", fix="update this device")
    cls = KINDS[kind]
    known = {f.name: f.type for f in fields(cls)}
    if set(values) - set(known):
        raise PrivacyError(f"{kind} event: unknown fields {sorted(set(values) - set(known))}")
    try:
        typed = {k: _typed(known[k], k, v) for k, v in values.items()}
        return cls(**typed)
    except (TypeError, ValueError) as error:
        raise PrivacyError(f"{kind} event: {error}") from None


def _typed(kind: object, name: str, value: Any) -> Any:
    if name in _WIDE and isinstance(value, str):
        return int(value)
    want: tuple[type, ...] = {"int": (int,), "float": (int, float), "bool": (bool,)}.get(
        str(kind), (str,)
    )
    if isinstance(value, bool) != (kind == "bool") or not isinstance(value, want):
        raise TypeError(f"{name} has a wrong type")
    return value
