"""The printed guarantee (ε, δ), with its unit and rounding: prices up, remaining budget down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from edgeveil.privacy.events import Status, Unit

DIGITS = 4
# Relative error of converting exact sums and decimals to float64: a few last bits.
_SLACK = Decimal(2) ** -50

PEOPLE_ALIVE = 8.2e9  # United Nations, World Population Prospects 2024
# ε multiplies an observer's odds by e^ε at most. From here on, the odds that one person, drawn at
# random among all alive, is the right one may become more than even: the bound excludes nothing.
# Below, the reader has to judge.
PROTECTS_NOTHING_FROM = math.log(PEOPLE_ALIVE)  # 22.8
PROTECTS_NOTHING = "so large that it protects nothing"


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ) for one unit; not a guarantee unless `status` is `proven`.

    `among_others`: ε of one record of a device that keeps its others; `of_device`: ε per device of
    the releases that have one, `of_person` per person. With shared noise ε holds while cloud and
    proxy do not collude and each sum has `honest` parts; `colluding` is the guarantee by the
    device's own noise alone. `mu`: Gaussian-DP parameter of one job with Gaussian releases only;
    their discreteness is in δ."""

    epsilon: float
    delta: float
    unit: Unit
    status: Status
    among_others: float | None = None
    of_device: float | None = None
    of_person: float | None = None
    colluding: Guarantee | None = None
    honest: int = 0
    mu: float | None = field(default=None, compare=False)

    @property
    def rho(self) -> float | None:
        """The parameter of zCDP, μ²/2 rounded up; None where there is no `mu`."""
        return None if self.mu is None else math.nextafter(self.mu**2 / 2, math.inf)

    @property
    def if_colluding(self) -> float | None:
        return None if self.colluding is None else self.colluding.epsilon

    @property
    def limited(self) -> float:
        """The larger ε of a record and a person, which the owner's limits on a life bound."""
        return max(self.epsilon, self.of_person or 0.0)

    @property
    def limited_if_colluding(self) -> float | None:
        return None if self.colluding is None else self.colluding.limited

    @property
    def collusion_epsilon(self) -> float:
        return self.epsilon if self.colluding is None else self.colluding.epsilon

    @property
    def plain(self) -> dict[str, Any]:
        """The form in results, events and pages: infinity is null; only ε that differ."""
        found: dict[str, Any] = {"epsilon": self.epsilon, "delta": self.delta}
        found |= {"unit": self.unit, "status": self.status, "mu": self.mu, "rho": self.rho}
        more = {"record_epsilon": self.among_others, "device_epsilon": self.of_device}
        more["person_epsilon"] = self.of_person
        if self.colluding is not None:
            more["collusion_epsilon"] = self.colluding.epsilon
            more["collusion_record_epsilon"] = self.colluding.among_others
            more["honest_devices"] = self.honest
        found |= {key: value for key, value in more.items() if value is not None}
        found = {k: None if value == math.inf else value for k, value in found.items()}
        return {**found, **self.notes}

    @property
    def notes(self) -> dict[str, str]:
        useless = self.proven and protects_nothing(min(self.epsilon, self.record_epsilon))
        return {"note": f"ε is {PROTECTS_NOTHING}"} if useless else {}

    @property
    def record_epsilon(self) -> float:
        return self.epsilon if self.among_others is None else self.among_others

    @property
    def device_epsilon(self) -> float:
        return self.epsilon if self.unit == "device" else self.of_device or 0.0

    @property
    def proven(self) -> bool:
        return self.status == "proven"

    def __str__(self) -> str:
        if not self.proven:
            return "no proven guarantee"
        whole = f"ε = {up(self.epsilon)}, δ = {up(self.delta)} per {unit_text(self.unit)}"
        part = self.plain
        return f"{whole}{record_text(part)}{worth_of(part)}{shared_text(part)}"


def guarantee_text(privacy: Mapping[str, Any], which: str) -> str:
    """Return a guarantee as text: `(ε = 8, δ = 1e-05) per record, whole job, proven`."""
    part = privacy[which]
    if part["status"] != "proven" or part["epsilon"] is None:
        return "no proven guarantee"
    if not part["epsilon"]:
        return "nothing was released" + (" of any record, ε = 0" if which == "training" else "")
    unit, delta = unit_text(part["unit"]), part["delta"]
    total = f"ε = {up(part['epsilon'])}" + (f", δ = {up(delta)}" if delta else "")
    per_round = part.get("epsilon_per_round") if "device_epsilon" not in part else None  # of one
    if which == "inference" and per_round:
        each = f"ε = {up(per_round)} per round"
        text = f"{each}, {total} in total, per {unit}, proven"
    else:
        text = f"({total}) per {unit}, whole job, proven"
    return f"{text}{record_text(part)}{worth_of(part)}{shared_text(part)}"


def guarantee_lines(privacy: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return all guarantees of `privacy`, in the form of `plain`, as rows (name, short text)."""
    parts = {which: privacy[which] for which in ("training", "inference")}
    proven = [one for one in parts.values() if one["status"] == "proven"]
    rows = [("guarantees", "whole job" + ", proven" * (len(proven) == len(parts)))]
    rows += [(f"  {which}", " ".join(guarantee_bounds(one))) for which, one in parts.items()]
    shared = {which: one for which, one in parts.items() if "collusion_epsilon" in one}
    if shared:
        colluding = "; ".join(f"{which} {colluding_text(one)}" for which, one in shared.items())
        honest = min(one["honest_devices"] for one in shared.values())
        why = f"{honest} honest devices per sum, no collusion of cloud and proxy"
        rows.append(("  assumes", why))
        rows.append(("  if all others collude", colluding))
    return rows


def guarantee_bounds(part: Mapping[str, Any]) -> tuple[str, ...]:
    """Return (`ε = 1.988`, `per record, ε = 15.9 per device`), or one text without a guarantee."""
    if part["status"] != "proven" or part["epsilon"] is None:
        return ("no proven guarantee",)
    if not part["epsilon"]:
        return ("nothing was released",)
    delta = f", δ = {up(part['delta'])}" if part["delta"] else ""
    units = [f"{_bounded(part['epsilon'])} per {unit_text(part['unit'])}"]
    if "record_epsilon" in part:
        record = part["record_epsilon"]
        units.insert(0 if record is not None else 1, f"{_bounded(record)} per record")
    more = ((f"{unit}_epsilon", unit_text(unit)) for unit in ("person", "device"))
    units += [f"{_bounded(part[key])} per {unit}" for key, unit in more if key in part]
    lead, behind = ", ".join(units).split(" per ", 1)
    return lead, f"per {behind}{delta}{worth_of(part)}"


def unit_text(unit: str) -> str:
    return "person on this device" if unit == "person" else unit


def shared_text(part: Mapping[str, Any]) -> str:
    if "collusion_epsilon" not in part:
        return ""
    honest = f"; assumes {part['honest_devices']} honest devices per sum and no collusion of cloud"
    return f"{honest} and proxy; if all others collude {colluding_text(part)}"


def colluding_text(part: Mapping[str, Any]) -> str:
    """Return the guarantee if all others collude: `ε = 30 per device; per record ε = 70`."""
    record = _record_text(part, "collusion_record_epsilon")
    return f"{_bounded(part['collusion_epsilon'])} per {unit_text(part['unit'])}{record}"


def record_text(part: Mapping[str, Any]) -> str:
    """Return `; per record ε = 19.15` and `; per device …` if they differ from the guarantee."""
    more = ((f"{unit}_epsilon", unit_text(unit)) for unit in ("person", "device"))
    further = [f"; per {unit} {_bounded(part[key])}" for key, unit in more if key in part]
    return _record_text(part, "record_epsilon") + "".join(further)


def _record_text(part: Mapping[str, Any], key: str) -> str:
    return f"; per record {_bounded(part[key])}" if key in part else ""


def _bounded(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"ε = {up(epsilon)}"


def protects_nothing(epsilon: float) -> bool:
    return epsilon >= PROTECTS_NOTHING_FROM


def worth(epsilon: float) -> str:
    return f", {PROTECTS_NOTHING}" if protects_nothing(epsilon) else ""


def worth_of(part: Mapping[str, Any]) -> str:
    """Return `worth` of the stronger of the unit's and the record's guarantee."""
    return worth(min(part["epsilon"], part.get("record_epsilon") or math.inf))


def up(value: float, digits: int = DIGITS) -> str:
    """Round up to `digits` significant digits: 7.9994 is `8`."""
    return _rounded(value, digits, ROUND_CEILING, 1 - _SLACK)


def down(value: float, digits: int = DIGITS) -> str:
    """Round down, as `up`, for the remaining budget."""
    return _rounded(value, digits, ROUND_FLOOR, 1 + _SLACK)


def _rounded(value: float, digits: int, rounding: str, slack: Decimal) -> str:
    if not math.isfinite(value):
        return f"{value:g}"
    context = Context(prec=digits, rounding=rounding)
    return f"{float(context.plus(Decimal(value) * slack)):.{digits}g}"
