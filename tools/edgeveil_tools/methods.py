"""`edgeveil methods`: every name of every table, with its source and privacy status.

Parts describe themselves (`edgeveil/parts/part.py`), presets are described here."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from edgeveil import plugins
from edgeveil.config.base import key_texts
from edgeveil.config.policy import FUNCTION
from edgeveil.errors import UsageError
from edgeveil.parts.aggregation import AGGREGATIONS
from edgeveil.parts.features import FEATURES
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import MODELS
from edgeveil.parts.part import BlockPart, Part, PartTable, PrivacyStatus
from edgeveil.parts.partitions import PARTITIONS
from edgeveil.parts.sources import SOURCES
from edgeveil.parts.stages import STAGES
from edgeveil.registry import nearest
from edgeveil_tools.cli.common import answer

_MIN_WIDTH = 60
_MAX_WIDTH = 110
_OURS = METHODS, STAGES, AGGREGATIONS, MODELS, FEATURES, PARTITIONS, SOURCES
TABLES: tuple[PartTable[Any], ...] = _OURS


@dataclass(frozen=True)
class Entry:
    """One name; `family` is the key of a job file that takes it, or its kind.

    `privacy` is `proven`, `claimed`, `none`, or None if the name itself releases nothing. `plugin`
    is the distribution that provides it, None for EdgeVeil's own."""

    family: str
    name: str
    summary: str
    source: str
    privacy: str | None
    needs: str = ""
    reveals: str = ""
    note: str = ""
    example: str | None = None
    plugin: str | None = None


def entries() -> list[Entry]:
    parts: list[Part] = [table[name] for table in TABLES for name in table]
    texts = [(part, {one.name: getattr(part, one.name) for one in fields(Part)}) for part in parts]
    for part, words in texts:
        if isinstance(part, BlockPart) and not part.summary:
            words["summary"] = key_texts(part.parameters)[part.tag]
    found = [Entry(family=part.key, plugin=_distribution(part), **words) for part, words in texts]
    return found + [
        Entry("preset", name, summary, source, privacy)
        for name, (source, summary, privacy) in PRESET_TEXTS.items()
    ]


def command(args: argparse.Namespace) -> int:
    """Run `edgeveil methods`: all names, `check NAME…` or `digest NAME…`."""
    if args.names[:1] == ["check"]:
        return check(args)
    if args.names[:1] == ["digest"]:
        return digests(args)
    found = entries()
    known = {entry.name for entry in found} | {entry.family for entry in found}
    for name in args.names:
        if name not in known:
            raise UsageError(f"unknown name '{name[:64]}'", fix=nearest(name[:64], sorted(known)))
    if args.names:
        found = [one for one in found if not {one.name, one.family}.isdisjoint(args.names)]
    return answer(args, _listed(found), {"names": [asdict(entry) for entry in found]})


def _listed(found: list[Entry]) -> Iterator[str]:
    width = min(max(shutil.get_terminal_size().columns, _MIN_WIDTH), _MAX_WIDTH)
    family = ""
    for entry in found:
        if entry.family != family:
            yield f"\n{entry.family}" if family else entry.family
            family = entry.family
        yield _shown(entry, width)
    for line in plugins.complaints():
        yield textwrap.fill(f"not joined: {line}", width, subsequent_indent="  ")


def check(args: argparse.Namespace) -> int:
    """Check the laws of its family on each named part; returns 1 if one is broken, else 0."""
    from edgeveil.parts.laws import check as verdicts

    names = args.names[1:]
    if not names:
        raise UsageError("names no part", where="methods check", fix="write methods check krum")
    found, lines = [], []
    for part in (part for name in names for part in _parts(name)):
        plugin, laws = plugins.plugin_of(part.family, part.name), verdicts(part)
        one: dict[str, Any] = {"family": part.key, "name": part.name, "plugin": _distribution(part)}
        one["sha256"] = None
        lines.append(f"{part.key} {part.name}")
        if plugin is not None:
            with suppress(UsageError):
                one["sha256"] = plugins.digest(plugin.distribution)
            lines.append(f"  plug-in {one['plugin']}, sha256 {one['sha256'] or 'not to be had'}")
        lines += [f"  ✗ {law.law}: {law.wrong}" if law.wrong else f"  ✓ {law.law}" for law in laws]
        found.append({**one, "laws": [asdict(law) for law in laws]})
    sound = not any(law["wrong"] for one in found for law in one["laws"])
    return answer(args, lines, {"parts": found}, ok=sound)


def _parts(name: str) -> list[Part]:
    """Return the parts of this name, one per family; raises UsageError without one."""
    found = [table[name] for table in TABLES if name in table]
    if not found:
        if refused := plugins.complaints(name):
            raise UsageError(refused[0])
        known = [one for table in TABLES for one in table]
        raise UsageError(f"unknown part '{name[:64]}'", fix=nearest(name[:64], known))
    return found


def digests(args: argparse.Namespace) -> int:
    """Print policy entries that allow each plug-in or `module:function`; imports none."""
    names = args.names[1:]
    if not names:
        fix = "write methods digest, and the name of a part or its distribution"
        raise UsageError("names no plug-in", where="methods digest", fix=fix)
    models: dict[str, str] = {}
    for name in (name for name in names if ":" in name):
        if not re.fullmatch(FUNCTION, name, re.ASCII):
            raise UsageError(f"'{name[:64]}' is no module:function", fix="write mypackage.net:Net")
        models[name] = plugins.code_digest(name)
    installed, found = plugins.installed(), dict[str, str]()
    for name in (name for name in names if name not in models):
        mine = [one for one in installed if name in (one.name, one.distribution)]
        if not mine:
            known = [part for one in installed for part in (one.name, one.distribution)]
            hint = nearest(name[:64], known) if known else "no plug-in is installed"
            raise UsageError(f"no installed plug-in has or declares '{name[:64]}'", fix=hint)
        for one in mine:
            try:
                found[one.distribution] = plugins.digest(one.distribution)
            except UsageError as error:
                raise UsageError(f"{one} {error.what}", fix=error.fix) from error
    lines, allowed = [], []
    for key, kind, named in (
        ("allowed_plugins", "distribution", found),
        ("allowed_python_models", "function", models),
    ):
        lines += [f"policy.{key}:"] * bool(named)
        for name, digest in named.items():
            text = f'"{name}"' if ":" in name else name
            lines.append(f"  - {{{kind}: {text}, sha256: {digest}}}")
            allowed.append({kind: name, "sha256": digest})
    return answer(args, lines, {"allowed": allowed})


def _distribution(part: Part) -> str | None:
    plugin = plugins.plugin_of(part.family, part.name)
    return None if plugin is None else f"{plugin.distribution} {plugin.version}"


def _shown(entry: Entry, width: int) -> str:
    lines, note = [f"  {entry.name}"], f" ({entry.note})" if entry.note else ""
    for label, text in (
        ("what", entry.summary),
        ("source", entry.source),
        ("needs", entry.needs),
        ("reveals", entry.reveals),
        ("privacy", f"{entry.privacy or '–'}{note}"),
        ("example", entry.example),
        ("plug-in", entry.plugin),
    ):
        first, rest = f"    {label:<8}", " " * 12
        lines += textwrap.wrap(text or "", width, initial_indent=first, subsequent_indent=rest)
    return "\n".join(lines)


_DELM = "Cao et al. 2023 (DELM)"
_INFERENCE = "protected inference results of horizontal federated learning"
_OPEN = "for owners who accept unprotected updates"

PRESET_TEXTS: dict[str, tuple[str, str, PrivacyStatus]] = {
    "delm_basic": (
        f"{_DELM}, basic scheme",
        "Functional mechanism on a federated PCA; ε₁:ε₂ = 1:2, p = 0.5, T = 250; see `fm`.",
        "claimed",
    ),
    "delm_enhanced": (
        f"{_DELM}, enhanced scheme",
        "delm_basic with 50 uploads a layer, drawn by divergence; ε₃ = 2. For 50 devices.",
        "claimed",
    ),
    "delm_top_k": (
        f"{_DELM}, for trusted users",
        "delm_basic with the 50 uploads a layer that diverge least. For 50 devices.",
        "claimed",
    ),
    "anonymous_fl": (
        "Zhao et al. 2021, anonymous federated learning; the clip is ours",
        "Random download share, Gaussian noise on the update, largest values uploaded.",
        "proven",
    ),
    "laplace_inference": (
        f"{_INFERENCE}; with its sensitivity 1 the guarantee printed is 2ε",
        "Silhouette score of noised inferences each round, ε = 230260; trained by fm.",
        "proven",
    ),
    "pso_dp_fl": (
        "Zhang, Wu and Dong (PSO-DP), alg. 2",
        "A local swarm of N = 3 particles, w = 0.1; one clip and noise on the update.",
        "proven",
    ),
    "ldp_fl": (
        "Sun, Qian and Chen 2021 (LDP-FL); proven with `composition: sequential`",
        "FedAvg whose weights travel as two values, ε counted once for all of them.",
        "claimed",
    ),
    "fedavg": ("McMahan et al. 2017", f"FedAvg without noise, {_OPEN}.", "none"),
    "fedprox": ("Li et al. 2020", f"FedProx, μ = 0.01, without noise, {_OPEN}.", "none"),
    "secprobe": (
        f"Zhao et al. 2019 (SecProbe), as {_DELM} has it",
        "FedAvg over 50 updates that do well on the cloud's records, drawn at ε₃ = 1.",
        "none",
    ),
    "stc": (
        "Sattler et al. 2020",
        "FedAvg of sparse ternary updates, 1 % of the values, with error feedback.",
        "none",
    ),
}
