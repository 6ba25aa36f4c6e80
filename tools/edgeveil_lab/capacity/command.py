"""`edgeveil capacity`: simulate fleets of several sizes and write capacity.json."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgeveil.errors import UsageError
from edgeveil.units import byte_text, seconds_text
from edgeveil_lab.capacity.play import BROKER_BYTES_PER_S, FleetPlay
from edgeveil_lab.load.scenario import LoadOptions

_WORKERS = ("cloud", "proxy")
_LATEST_S = 36000.0


def capacity(
    devices: Sequence[int],
    out: Path,
    *,
    selected: int,
    rounds: int,
    upload_bytes: int,
    package_bytes: int,
    as_json: bool = False,
) -> int:
    """Play a fleet of each size; raises UsageError if a fleet is too small for a round."""
    if min(devices) < selected or min(selected, rounds, upload_bytes // 4, package_bytes // 4) < 1:
        text = "needs as many devices as a round selects, one round, and 4 bytes each way"
        raise UsageError(text, where="edgeveil capacity", fix="use other numbers")
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=as_json)
    shape = LoadOptions(
        devices=max(devices),
        selected=selected,
        rounds=rounds,
        payload_bytes=upload_bytes // 4 * 4,
        package_bytes=package_bytes // 4 * 4,
        deadline_s=_LATEST_S,
        grace_s=0,
    )
    fleets = [_played(shape.model_copy(update={"devices": n}), console) for n in devices]
    text = json.dumps({"fleets": fleets}, indent=1)
    (out / "capacity.json").write_text(text + "\n", encoding="utf-8")
    if as_json:
        sys.stdout.write(text + "\n")
    else:
        for fleet in fleets:
            console.print(fleet_table(fleet))
        console.print(f"written to {out}")
    return 0


def _played(shape: LoadOptions, console: Console) -> dict[str, Any]:
    scratch = tempfile.TemporaryDirectory(prefix="edgeveil-capacity-")
    with scratch as folder, console.status("") as status:
        fleet = f"{shape.devices:,} devices"
        play = FleetPlay(shape, Path(folder), lambda step: status.update(f"{fleet}: {step}"))
        with closing(play):
            phases = play.play()
            rows = {party: dict(found) for party, found in play.rows().items()}
    for phase in phases.values():
        phase["waits_for"] = waits_for(phase)
    keys = {"devices", "selected", "rounds", "payload_bytes", "package_bytes"}
    return {"shape": shape.model_dump(include=keys), "phases": phases, "rows": rows}


def waits_for(phase: Mapping[str, Any]) -> dict[str, Any]:
    """Return the party with the largest load of a phase, and its seconds."""
    parties = phase["parties"]
    seconds = {name: parties[name]["busy_s"] for name in _WORKERS}
    line = parties["edge broker"]["bytes_out"] + parties["edge broker"]["bytes_in"]
    seconds["edge broker's line"] = line / BROKER_BYTES_PER_S
    who = max(seconds, key=lambda name: seconds[name])
    return {"who": who, "seconds": round(seconds[who], 3)}


def fleet_table(fleet: Mapping[str, Any]) -> Table:
    shape = fleet["shape"]
    title = f"{shape['devices']:,} devices, {shape['selected']:,} selected per round"
    heads = ("processor: cloud, proxy", "edge broker out", "each device receives", "most is")
    table = Table("", *heads, title=title)
    for name, phase in fleet["phases"].items():
        parties, wait = phase["parties"], phase["waits_for"]
        table.add_row(
            name,
            ", ".join(seconds_text(parties[worker]["busy_s"]) for worker in _WORKERS),
            byte_text(parties["edge broker"]["bytes_out"]),
            byte_text(parties["each device"]["bytes_in"]),
            f"{wait['who']}'s, {seconds_text(wait['seconds'])}",
        )
    return table
