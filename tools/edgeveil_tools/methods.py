"""`edgeveil methods`: every name of every table, with what stands behind it.

Parts say of themselves what is shown (`edgeveil/parts/part.py`); what no plug-in can add to,
mechanisms, shuffles, evaluations and presets, is said here.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeveil import plugins
from edgeveil.errors import UsageError
from edgeveil.evaluation.clustering import EVALUATIONS
from edgeveil.jobs.presets import PRESETS
from edgeveil.parts.aggregation import AGGREGATIONS
from edgeveil.parts.features import FEATURES
from edgeveil.parts.methods import METHODS
from edgeveil.parts.models import MODELS
from edgeveil.parts.part import Part, PartTable, PrivacyStatus
from edgeveil.parts.partitions import PARTITIONS
from edgeveil.parts.sources import SOURCES
from edgeveil.parts.stages import STAGES
from edgeveil.privacy.mechanism_table import MECHANISMS
from edgeveil.registry import nearest
from edgeveil.sites.policy import FUNCTION
from edgeveil_tools.cli.common import answer

_MIN_WIDTH = 60
_MAX_WIDTH = 110
_OWN_STATUS = "–"
TABLES: tuple[PartTable[Any], ...] = (
    METHODS,
    STAGES,
    AGGREGATIONS,
    MODELS,
    FEATURES,
    PARTITIONS,
    SOURCES,
)


@dataclass(frozen=True)
class Said:
    """What is said of a name that is no part; as a `Part` says it of itself."""

    source: str
    needs: str = "nothing"
    reveals: str = "nothing of its own"
    privacy: PrivacyStatus | None = None
    note: str = ""
    summary: str = ""


@dataclass(frozen=True)
class Entry:
    """One name; `family` is the key of a job file that takes it, or what kind of thing it is.

    `privacy` is `proven`, `claimed`, `none`, or null where the name makes no release of its own.
    `plugin` is the distribution that brought it, null for EdgeVeil's own.
    """

    family: str
    name: str
    summary: str
    source: str
    needs: str
    reveals: str
    privacy: str | None
    note: str
    example: str | None = None
    plugin: str | None = None


def entries() -> list[Entry]:
    """All names, family by family, as their tables list them."""
    parts = [_of_part(table[name]) for table in TABLES for name in table]
    return parts + [_of_name(*one) for one in _named()]


def command(args: argparse.Namespace) -> int:
    """`edgeveil methods`: all names, `check NAME…` or `digest NAME…`."""
    if args.names[:1] == ["check"]:
        return check(args)
    if args.names[:1] == ["digest"]:
        return digests(args)
    found = _chosen(entries(), args.names)
    return answer(args, _listed(found), {"names": [asdict(entry) for entry in found]})


def _listed(found: list[Entry]) -> Iterator[str]:
    """Entries by family, and the plug-ins that could not join."""
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
    """Play the laws of its family on each named part; 1 where one is broken, else 0.

    UsageError for a name that no part has, or that of a plug-in that cannot join.
    """
    from edgeveil.parts.laws import check as verdicts

    names = args.names[1:]
    if not names:
        raise UsageError("names no part", where="methods check", fix="write methods check krum")
    parts = [part for name in names for part in _parts(name)]
    found = [{**_identity(part), "laws": [asdict(one) for one in verdicts(part)]} for part in parts]
    lines = []
    for one in found:
        lines.append(f"{one['family']} {one['name']}")
        if one["plugin"]:
            lines.append(f"  plug-in {one['plugin']}, sha256 {one['sha256'] or 'not to be had'}")
        for law in one["laws"]:
            text = f"✗ {law['law']}: {law['wrong']}" if law["wrong"] else f"✓ {law['law']}"
            lines.append(f"  {text}")
    sound = not any(law["wrong"] for one in found for law in one["laws"])
    return answer(args, lines, {"parts": found}, ok=sound)


def _parts(name: str) -> list[Part]:
    """The parts of a name, one a family that has it."""
    found = [table[name] for table in TABLES if name in table]
    if not found:
        refused = plugins.complaints(name)
        if refused:
            raise UsageError(refused[0])
        known = [one for table in TABLES for one in table]
        raise UsageError(f"unknown part '{name[:64]}'", fix=nearest(name[:64], known))
    return found


def digests(args: argparse.Namespace) -> int:
    """Print what an owner writes to allow each plug-in that is named, by itself or by a part, and
    each `module:function` that makes a model.

    Imports none of them. UsageError for a name that no installed plug-in has or declares.
    """
    names = args.names[1:]
    if not names:
        fix = "write methods digest, and the name of a part or its distribution"
        raise UsageError("names no plug-in", where="methods digest", fix=fix)
    models = {name: _code_digest(name) for name in names if ":" in name}
    found: dict[str, str] = {}
    for name in names:
        if name in models:
            continue
        mine = [one for one in plugins.installed() if name in (one.name, one.distribution)]
        if not mine:
            known = [part for one in plugins.installed() for part in (one.name, one.distribution)]
            hint = nearest(name[:64], known) if known else "no plug-in is installed"
            raise UsageError(f"no installed plug-in has or declares '{name[:64]}'", fix=hint)
        for one in mine:
            try:
                found[one.distribution] = plugins.digest(one.distribution)
            except UsageError as error:
                raise UsageError(f"{one} {error.what}", fix=error.fix) from error
    lines = []
    for title, kind, named in (
        ("policy.allowed_plugins:", "distribution", found),
        ("policy.allowed_python_models:", "function", models),
    ):
        lines += [title] * bool(named)
        for name, digest in named.items():
            text = f'"{name}"' if ":" in name else name
            lines.append(f"  - {{{kind}: {text}, sha256: {digest}}}")
    allowed = [{"distribution": name, "sha256": digest} for name, digest in found.items()]
    allowed += [{"function": name, "sha256": digest} for name, digest in models.items()]
    return answer(args, lines, {"allowed": allowed})


def _code_digest(function: str) -> str:
    if not re.fullmatch(FUNCTION, function, re.ASCII):
        raise UsageError(f"'{function[:64]}' is no module:function", fix="write mypackage.net:Net")
    return plugins.code_digest(function)


def _identity(part: Part) -> dict[str, Any]:
    """Who brought it, and the digest of what is installed; None for EdgeVeil's own."""
    plugin, digest = plugins.plugin_of(part.family, part.name), None
    if plugin is not None:
        with suppress(UsageError):
            digest = plugins.digest(plugin.distribution)
    return {
        "family": part.key,
        "name": part.name,
        "plugin": None if plugin is None else f"{plugin.distribution} {plugin.version}",
        "sha256": digest,
    }


def _of_part(part: Part) -> Entry:
    plugin = plugins.plugin_of(part.family, part.name)
    return Entry(
        part.key,
        part.name,
        part.summary,
        part.source,
        part.needs,
        part.reveals,
        part.privacy,
        part.note,
        part.example,
        None if plugin is None else f"{plugin.distribution} {plugin.version}",
    )


def _of_name(family: str, name: str, said: Said, text: str) -> Entry:
    summary = said.summary or text
    return Entry(
        family, name, summary, said.source, said.needs, said.reveals, said.privacy, said.note
    )


def _named() -> Iterator[tuple[str, str, Said, str]]:
    """Family, name, what is said of it, and the text that stands beside the name in the code."""
    tables: tuple[tuple[str, Mapping[str, Said], Any], ...] = (
        ("unsupervised.eval_type", _EVALUATIONS, EVALUATIONS),
        ("mechanism", _MECHANISMS, MECHANISMS),
        ("proxy.shuffle", _SHUFFLES, None),
        ("encrypt.privacy_eval_type", _PROTECTIONS, None),
        ("preset", PRESETS_SAID, PRESETS),
    )
    for family, said, table in tables:
        for name in said if table is None else table:
            function = None if table is None else table[name]
            yield family, name, said[name], _first_line(function) if callable(function) else ""


def _first_line(function: Callable[..., Any]) -> str:
    text = str(function.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split())


def _chosen(found: list[Entry], names: list[str]) -> list[Entry]:
    known = {entry.name for entry in found} | {entry.family for entry in found}
    for name in names:
        if name not in known:
            raise UsageError(f"unknown name '{name[:64]}'", fix=nearest(name[:64], sorted(known)))
    return [e for e in found if not names or e.name in names or e.family in names]


def _shown(entry: Entry, width: int) -> str:
    status = entry.privacy or _OWN_STATUS
    if entry.note:
        status += f" ({entry.note})"
    lines = [f"  {entry.name}"]
    for label, text in (
        ("what", entry.summary),
        ("source", entry.source),
        ("needs", entry.needs),
        ("reveals", entry.reveals),
        ("privacy", status),
        ("example", entry.example),
        ("plug-in", entry.plugin),
    ):
        lines += textwrap.wrap(
            text or "", width, initial_indent=f"    {label:<8}", subsequent_indent=" " * 12
        )
    return "\n".join(lines)


# The README's table of names: `python -m edgeveil_tools.methods --write`.

PAGE = Path(__file__).parents[2] / "README.md"
_SHOWN = (
    "preset",
    "train.method",
    "update",
    "aggregation",
    "model",
    "features",
    "local_run.data.source",
    "local_run.partition",
)
_STATUS = {"proven": "proven", "claimed": "claimed", "none": "without noise", None: ""}


def drawing(_name: str) -> str:
    """The names of EdgeVeil's own parts and presets, by the status of their release."""
    lines = ["| in a job file | names |", "| --- | --- |"]
    for family in _SHOWN:
        mine = [one for one in entries() if one.family == family and one.plugin is None]
        groups = []
        for status, said in _STATUS.items():
            names = ", ".join(f"`{one.name}`" for one in mine if one.privacy == status)
            if names:
                groups.append(f"{names}: {said}" if said else names)
        lines.append(f"| `{family}` | {'; '.join(groups)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when the README is (now) up to date, else 1."""
    from edgeveil_tools.pages import update

    return update(PAGE, drawing, "edgeveil_tools.methods", arguments)


_DELM = "Cao et al. 2023 (DELM)"
_SWARM = "Zhang, Wu and Dong (PSO-DP)"
_INFERENCE = "protected inference results of horizontal federated learning"
_ANONYMOUS = "Zhao et al. 2021, anonymous federated learning"
_UPDATE = "each device's update, layers shuffled among the devices"
_NOISED = "each device's noised update"
_PER_DEVICE = "per device; for one record among others at the price of twice the sensitivity"

_MECHANISMS = {
    "gaussian": Said(
        "Dong, Roth, Su 2022; Canonne et al. 2020",
        "integers of bounded L2 norm",
        "their sum, noised",
        "proven",
    ),
    "laplace": Said(
        "Dwork et al. 2006; Ghosh et al. 2012",
        "integers of bounded L1 norm",
        "their sum, noised",
        "proven",
    ),
    "softmax": Said(
        f"{_INFERENCE}, sensitivity 2 in place of 1",
        "encrypt.laplace_eval",
        "a device's noised softmax",
        "proven",
    ),
    "two_value": Said(
        "Duchi et al. 2018; Sun et al. 2021", "values in [-1, 1]", "two values", "proven"
    ),
    "exponential": Said(
        "McSherry and Talwar 2007", "integer scores of bounded sensitivity", "an index", "proven"
    ),
    "report_noisy_max": Said(
        "McKenna and Sheldon 2020; Ding et al. 2021",
        "integer scores of bounded sensitivity",
        "an index",
        "proven",
    ),
}

_SHUFFLES = {
    "split": Said(
        f"{_DELM}, split and shuffle; clone bound, Feldman, McMillan, Talwar 2021",
        reveals="layers, each in an order of its own",
        summary="Each layer's segments are permuted alone.",
    ),
    "whole": Said(
        "Bittau et al. 2017",
        reveals="whole updates in random order",
        summary="Updates are permuted; a device's update stays one.",
    ),
    "none": Said(
        "no protection of the text's",
        "policy.accept_unshuffled",
        "which layers came together, and the order of arrival",
        summary="Uploads keep the order in which they came.",
    ),
}

_PROTECTIONS = {
    "LAPLACE": Said(
        f"{_INFERENCE}, sensitivity 2 in place of 1",
        "laplace_eval",
        "each device's noised softmax",
        "proven",
        "`laplace_eval_sensitivity: 1` is the text's: the guarantee printed is then 2ε",
        "Inferences are noised on the device.",
    ),
    "NOT_ENCRYPT": Said(
        _INFERENCE,
        "privacy.accept_unproven; owners who accept unprotected inferences",
        "each device's softmax",
        "none",
        summary="Inferences are uploaded as they are.",
    ),
}

_EVALUATIONS = {
    "NOT_EVAL": Said(_INFERENCE, summary="Devices upload no inferences."),
    "MEAN_SOFTMAX": Said(
        "none",
        "upload: mean",
        "with secure sums the mean of all devices' noised softmax; without, each of them",
        summary="No clusters: the mean of the devices' mean softmax.",
    ),
    "SILHOUETTE_SCORE": Said("Rousseeuw 1987"),
    "CALINSKI_HARABASZ_SCORE": Said("Caliński and Harabasz 1974"),
    "DAVIES_BOULDIN_SCORE": Said("Davies and Bouldin 1979"),
}

_POLICY = "privacy.accept_unproven; owners who allow it"
_OPEN = "privacy.accept_unproven; owners who accept unprotected updates"
_DELM_NOTE = "`fm` is the proven relative"
PRESETS_SAID = {
    "delm_basic": Said(
        f"{_DELM}, basic scheme",
        _POLICY,
        "noised covariances; weights after steps on noised polynomials",
        "claimed",
        _DELM_NOTE,
        "Functional mechanism on a federated PCA; ε₁:ε₂ = 1:2, p = 0.5, T = 250.",
    ),
    "delm_enhanced": Said(
        f"{_DELM}, enhanced scheme",
        f"{_POLICY}; 50 devices",
        "noised covariances; weights after steps on noised polynomials",
        "claimed",
        _DELM_NOTE,
        "delm_basic with 50 uploads a layer, drawn by divergence; ε₃ = 2.",
    ),
    "delm_top_k": Said(
        f"{_DELM}, for trusted users",
        f"{_POLICY}; 50 devices",
        "noised covariances; weights after steps on noised polynomials",
        "claimed",
        _DELM_NOTE,
        "delm_basic with the 50 uploads a layer that diverge least.",
    ),
    "anonymous_fl": Said(
        _ANONYMOUS,
        "owners who allow sgd",
        _NOISED,
        "proven",
        f"the clip is ours: the text bounds no update; {_PER_DEVICE}",
        "Random download share, Gaussian noise on the update, largest values uploaded.",
    ),
    "laplace_inference": Said(
        _INFERENCE,
        "owners whose max_inference_epsilon allows it",
        "each device's noised softmax",
        "proven",
        "the text's sensitivity 1 is kept, so the guarantee printed is 2ε",
        "Silhouette score of noised inferences each round, ε = 230260; trained by fm.",
    ),
    "pso_dp_fl": Said(
        f"{_SWARM}, alg. 2",
        "owners who allow pso_dp_fl",
        "each device's clipped and noised update",
        "proven",
        _PER_DEVICE,
        "A local swarm of N = 3 particles, w = 0.1; one clip and noise on the update.",
    ),
    "ldp_fl": Said(
        "Sun, Qian and Chen 2021 (LDP-FL)",
        _POLICY,
        "every weight as one of two values",
        "claimed",
        "`composition: sequential` is proven",
        "FedAvg whose weights travel as two values, ε counted once for all of them.",
    ),
    "fedavg": Said(
        "McMahan et al. 2017", _OPEN, _UPDATE, "none", "", "FedAvg without noise: a yardstick."
    ),
    "fedprox": Said(
        "Li et al. 2020", _OPEN, _UPDATE, "none", "", "FedProx, μ = 0.01, without noise."
    ),
    "secprobe": Said(
        f"Zhao et al. 2019 (SecProbe), as {_DELM} has it",
        f"{_OPEN}; 50 devices",
        "whole updates in random order",
        "none",
        "",
        "FedAvg over 50 updates that do well on the cloud's records, drawn at ε₃ = 1.",
    ),
    "stc": Said(
        "Sattler et al. 2020",
        _OPEN,
        "signs and places of each update's largest values",
        "none",
        "",
        "FedAvg of sparse ternary updates, 1 % of the values, with error feedback.",
    ),
}


if __name__ == "__main__":
    sys.exit(main())
