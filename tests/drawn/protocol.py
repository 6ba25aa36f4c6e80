"""State diagrams and field tables of docs/protocol.md, drawn from the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import msgspec

from edgeveil.config.cloud import CloudLimits
from edgeveil.config.edge import EdgeLimits
from edgeveil.config.proxy import ProxyLimits
from edgeveil.errors import UsageError
from edgeveil.protocol import cloud_job, device_round, proxy_rounds
from edgeveil.protocol import messages as m
from edgeveil.protocol.cloud_job import CloudSettings
from edgeveil.protocol.device_round import DeviceSettings
from edgeveil.protocol.effects import StateTable
from edgeveil.protocol.proxy_rounds import ProxySettings

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
TABLES: dict[str, StateTable[Any]] = {
    "device": device_round.DEVICE_STATES,
    "collection": proxy_rounds.COLLECTION_STATES,
    "cloud": cloud_job.CLOUD_STATES,
}
SHARED = m.Envelope | m.Blob | m.RoundId | m.Group | m.MaskedGroup | m.EncryptedJobState
FAMILIES = {
    "messages": m.Message,
    "shared": SHARED,
    "headers": m.Header,
    "bodies": m.Body,
}
BOUNDS = {
    "device": (DeviceSettings, EdgeLimits),
    "proxy": (ProxySettings, ProxyLimits),
    "cloud": (CloudSettings, CloudLimits),
}


def drawing(name: str) -> str:
    """A state diagram or a family's tables. Raises UsageError for an unknown name."""
    if name in TABLES:
        return _states(TABLES[name])
    if name in FAMILIES:
        return "\n".join(_struct(kind) for kind in get_args(FAMILIES[name]))
    if name == "bounds":
        return _bounds()
    raise UsageError(f"nothing is drawn under the name '{name}'", where=str(PAGE))


def _states(states: StateTable[Any]) -> str:
    """Draw the transitions; an event with one target from four states or more is listed below."""
    pairs = defaultdict[tuple[str, str], list[str]]
    sources, arrows, listed = pairs(list), pairs(list), pairs(list)
    for (before, event), after in states.table.items():
        sources[event, after.value].append(before.value)
    for (event, after), starts in sources.items():
        if len(starts) > 3:
            others = [one.value for one in type(states.start) if one.value not in starts]
            if len(starts) < len(others):
                places = "from " + ", ".join(starts)
            else:
                places = "from every state" + " except " * bool(others) + " and ".join(others)
            listed[places, after].append(f"`{event}`")
            continue
        for before in starts:
            arrows[before, after].append(event)
    lines = ["stateDiagram-v2", f"    [*] --> {states.start.value}"]
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    notes = [f"{', '.join(events)} {a} to {b}" for (a, b), events in listed.items()]
    below = f"Not drawn: {'; '.join(notes)}.\n" if notes else ""
    return "\n".join(["```mermaid", *lines, "```\n", below])


def _bounds() -> str:
    lines = ["| party | defaults |", "| --- | --- |"]
    for party, (settings, limits) in BOUNDS.items():
        rows = {
            name: value
            for name, value in dataclasses.asdict(settings()).items()
            if value and name not in limits.model_fields
        }
        values = ", ".join(f"`{name}` {_number(value)}" for name, value in rows.items())
        lines.append(f"| {party} | {values} |")
    return "\n".join(lines) + "\n"


def _struct(kind: type[msgspec.Struct]) -> str:
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, msgspec.inspect.StructType):
        raise UsageError(f"{kind.__name__} is no message")
    tag = f" (`{info.tag}`)" if info.tag else ""
    lines = [f"**{kind.__name__}**{tag}. {_paragraphs(kind.__doc__ or '')}", "", "```python"]
    meanings = _meanings(inspect.getsource(kind))
    for field in info.fields:
        meaning = meanings.get(field.name)
        lines.append(f"{field.name}: {_type(field.type)}" + (f"  # {meaning}" if meaning else ""))
    return "\n".join([*lines, "```\n"])


def _meanings(source: str) -> dict[str, str]:
    """Return the comments on fields, beside or above them."""
    found, above = dict[str, str](), list[str]()
    for line in source.splitlines():
        if match := re.match(r"    # (.+)", line):
            above.append(match[1])
        elif match := re.match(r"    (\w+): [^#]*(?:# (.+))?", line):
            found[match[1]] = match[2] or " ".join(above)
            above = []
    return found


def _paragraphs(text: str) -> str:
    blocks = (" ".join(block.split()) for block in text.strip().split("\n\n"))
    return "\n\n".join(blocks)


def _type(kind: Any) -> str:
    match kind:
        case msgspec.inspect.BytesType():
            return "bytes" + _length(kind.min_length, kind.max_length)
        case msgspec.inspect.StrType(pattern=str(pattern)):
            return f"str {pattern}"
        case msgspec.inspect.StrType():
            return "str" + _length(kind.min_length, kind.max_length)
        case msgspec.inspect.IntType():
            high = kind.le if kind.le is not None else (kind.lt or 0) - 1
            return f"{kind.ge}..{_number(high)}"
        case msgspec.inspect.FloatType():
            low = kind.ge if kind.ge is not None else f"above {kind.gt}"
            return f"float {low}..{_number(kind.le or 0)}"
        case msgspec.inspect.BoolType():
            return "bool"
        case msgspec.inspect.LiteralType():
            return " | ".join(str(value) for value in kind.values)
        case msgspec.inspect.VarTupleType():
            length = _length(kind.min_length, kind.max_length)
            return f"list{length}<{_type(kind.item_type)}>"
        case msgspec.inspect.UnionType():
            return " | ".join(map(_type, kind.types))
        case msgspec.inspect.NoneType():
            return "none"
        case msgspec.inspect.StructType():
            return str(kind.cls.__name__)
    raise UsageError(f"no notation for {type(kind).__name__}")


def _length(least: int | None, most: int | None) -> str:
    if most is None:
        return ""
    return f"[{most}]" if least == most else f"[{least or 0}..{_number(most)}]"


def _number(value: float) -> str:
    """Powers of two by name; everything else in figures."""
    for exponent in (20, 24, 26, 28, 29, 30, 31, 32, 40, 62):
        if value in (2**exponent, 2**exponent - 1):
            return f"2^{exponent}" + ("−1" if value == 2**exponent - 1 else "")
    return f"{value:g}"
