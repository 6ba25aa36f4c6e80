"""State diagrams and field tables of docs/protocol.md, drawn from the code."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import msgspec

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
SHARED = m.Envelope | m.Blob | m.RoundId | m.Group | m.MaskedGroup
FAMILIES = {
    "messages": m.Message,
    "shared": SHARED,
    "headers": m.Header,
    "bodies": m.Body,
}
BOUNDS = {"device": DeviceSettings, "proxy": ProxySettings, "cloud": CloudSettings}


def drawing(name: str) -> str:
    """A state diagram or a family's tables. Raises UsageError for an unknown name."""
    if name in TABLES:
        start, table = TABLES[name].start, TABLES[name].table
        lines = ["stateDiagram-v2", f"    [*] --> {start.value}"]
        lines += [f"    {a.value} --> {b.value}: {how}" for (a, how), b in table.items()]
        return "\n".join(["```mermaid", *lines, "```\n"])
    if name in FAMILIES:
        return "\n".join(_struct(kind) for kind in get_args(FAMILIES[name]))
    if name == "bounds":
        return _bounds()
    raise UsageError(f"nothing is drawn under the name '{name}'", where=str(PAGE))


def _bounds() -> str:
    lines = ["| party | setting | default |", "| --- | --- | --- |"]
    for party, settings in BOUNDS.items():
        rows = dataclasses.asdict(settings()).items()
        lines += [f"| {party} | `{name}` | {_number(value)} |" for name, value in rows]
    return "\n".join(lines) + "\n"


def _struct(kind: type[msgspec.Struct]) -> str:
    info = msgspec.inspect.type_info(kind)
    if not isinstance(info, msgspec.inspect.StructType):
        raise UsageError(f"{kind.__name__} is no message")
    tag = f" — tag `{info.tag}`" if info.tag else ""
    lines = [f"**{kind.__name__}**{tag}. {_paragraphs(kind.__doc__ or '')}", ""]
    lines += ["| field | type | meaning |", "| --- | --- | --- |"]
    meanings = _meanings(inspect.getsource(kind))
    lines += [
        f"| `{field.name}` | {_type(field.type)} | {meanings.get(field.name, '')} |"
        for field in info.fields
    ]
    return "\n".join(lines) + "\n"


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
            return _sized("bytes", kind.min_length, kind.max_length)
        case msgspec.inspect.StrType(pattern=str(pattern)):
            return f"text matching `{pattern.replace('|', chr(92) + '|')}`"
        case msgspec.inspect.StrType():
            return _sized("text", kind.min_length, kind.max_length)
        case msgspec.inspect.IntType():
            high = kind.le if kind.le is not None else (kind.lt or 0) - 1
            return f"integer {kind.ge}..{_number(high)}"
        case msgspec.inspect.FloatType():
            low = kind.ge if kind.ge is not None else f"above {kind.gt}"
            return f"float {low}..{_number(kind.le or 0)}"
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.LiteralType():
            return ", ".join(f"`{value}`" for value in kind.values)
        case msgspec.inspect.VarTupleType():
            return _sized(f"list of: {_type(kind.item_type)};", kind.min_length, kind.max_length)
        case msgspec.inspect.StructType():
            return str(kind.cls.__name__)
    raise UsageError(f"no words for {type(kind).__name__}")


def _sized(what: str, least: int | None, most: int | None) -> str:
    if most is None:
        return what + ", within the packet"
    return f"{what} {most}" if least == most else f"{what} {least or 0}..{_number(most)} long"


def _number(value: float | tuple[str, ...]) -> str:
    """Powers of two by name; everything else in figures."""
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    for exponent in (20, 24, 26, 28, 29, 30, 31, 32, 40, 62):
        if value in (2**exponent, 2**exponent - 1):
            return f"2^{exponent}" + ("−1" if value == 2**exponent - 1 else "")
    return f"{value:g}"
