"""`edgeveil capacity`: plays fleets of growing size and says what each party bears, and who waits.

Leaves capacity.json and capacity.png in a folder: the curves over the size of the fleet.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgeveil.errors import UsageError
from edgeveil.units import byte_text, seconds_text
from edgeveil_lab.capacity.play import FleetPlay, FleetShape
from edgeveil_lab.pages import BLUE, GREEN, ORANGE, PURPLE, file_figure

PARTIES = ("cloud", "proxy", "edge broker", "devices asked", "each device")
_WORKERS = ("cloud", "proxy")
MIB = 1 << 20


@dataclass(frozen=True)
class CapacityOptions:
    """What is asked for: one play for each number of devices."""

    devices: tuple[int, ...]
    selected: int
    rounds: int
    upload_bytes: int
    package_bytes: int
    out: Path
    as_json: bool


def capacity(options: CapacityOptions) -> int:
    """Play them all; 0. Raises UsageError where a fleet is smaller than what a round asks."""
    if min(options.devices) < options.selected:
        raise UsageError(
            f"a round cannot ask {options.selected} of {min(options.devices)} devices",
            where="--selected",
            fix="ask fewer, or play more devices",
        )
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=options.as_json)
    shape = FleetShape(
        options.devices[0],
        options.selected,
        options.rounds,
        options.upload_bytes // 4,
        options.package_bytes // 4,
    )
    fleets = [_played(replace(shape, devices=n), console) for n in options.devices]
    result = {"fleets": fleets}
    text = json.dumps(result, indent=1)
    (options.out / "capacity.json").write_text(text + "\n", encoding="utf-8")
    if len(fleets) > 1:
        (options.out / "capacity.png").write_bytes(capacity_plot(fleets))
    if options.as_json:
        sys.stdout.write(text + "\n")
    else:
        for fleet in fleets:
            console.print(fleet_table(fleet))
        console.print(f"written to {options.out}")
    return 0


def _played(shape: FleetShape, console: Console) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="edgeveil-capacity-") as folder,
        console.status("") as status,
    ):
        play = FleetPlay(
            shape, Path(folder), lambda line: status.update(f"{shape.devices:,} devices: {line}")
        )
        try:
            phases = play.play()
            rows = {party: dict(found) for party, found in play.rows().items()}
        finally:
            play.close()
    told = {name: {**one, "waits_for": waits_for(one, shape)} for name, one in phases.items()}
    return {"shape": asdict(shape), "phases": told, "rows": rows}


def waits_for(phase: Mapping[str, Any], shape: FleetShape) -> dict[str, Any]:
    """Who bears most of a phase, and for how long."""
    parties = phase["parties"]
    seconds = {name: parties[name]["busy_s"] for name in _WORKERS}
    line = parties["edge broker"]["bytes_out"] + parties["edge broker"]["bytes_in"]
    seconds["edge broker's line"] = line / shape.broker_bytes_per_s
    who = max(seconds, key=lambda name: seconds[name])
    return {"who": who, "seconds": round(seconds[who], 3)}


def fleet_table(fleet: Mapping[str, Any]) -> Table:
    """One fleet for a terminal: a line for each party of each phase that has anything to tell."""
    shape = fleet["shape"]
    table = Table(
        title=f"{shape['devices']:,} devices, {shape['selected']:,} of them asked a round"
    )
    for name in ("", "party", "messages out", "bytes out", "bytes in", "rows", "processor"):
        words = name in ("", "party")
        table.add_column(name, justify="left" if words else "right")
    for name, phase in fleet["phases"].items():
        first = name
        for party in PARTIES:
            found = phase["parties"][party]
            if found["messages_out"] or found["messages_in"]:
                table.add_row(first, party, *_cells(found))
                first = ""
        table.add_section()
    table.caption = "; ".join(
        f"{name}: most is {wait['who']}'s, {seconds_text(wait['seconds'])}"
        for name, phase in fleet["phases"].items()
        for wait in (phase["waits_for"],)
    )
    return table


def _cells(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{found['messages_out']:,}" if found["messages_out"] else ""
    yield byte_text(found["bytes_out"]) if found["bytes_out"] else ""
    yield byte_text(found["bytes_in"])
    rows = sum(found["rows"].values())
    yield f"{rows:,}" if rows else ""
    yield seconds_text(found["busy_s"]) if found["busy_s"] else ""


def last_round(fleet: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last round of a fleet: what the first one costs once is not in it."""
    rounds = [phase for name, phase in fleet["phases"].items() if name.startswith("round ")]
    last: Mapping[str, Any] = rounds[-1]
    return last


def capacity_plot(fleets: Sequence[Mapping[str, Any]]) -> bytes:
    """Of a round over the size of the fleet: seconds of cloud and proxy; bytes to one device."""
    sizes = [fleet["shape"]["devices"] for fleet in fleets]
    rounds = [last_round(fleet)["parties"] for fleet in fleets]
    with file_figure(7.4, 5.0, "png") as (figure, done):
        upper, lower = figure.subplots(2, 1, sharex=True)
        for name, colour in (("cloud", BLUE), ("proxy", ORANGE)):
            upper.plot(
                sizes, [one[name]["busy_s"] for one in rounds], "o-", color=colour, label=name
            )
        upper.set_ylabel("processor, s a round")
        upper.set_ylim(bottom=0)
        upper.legend()
        heard = [one["each device"]["bytes_in"] / 1024 for one in rounds]
        lower.plot(sizes, heard, "o-", color=GREEN, label="what each device is sent")
        lower.axhline(8, color=PURPLE, linestyle=":", label="8 KiB")
        lower.set_ylabel("KiB a round")
        lower.set_ylim(bottom=0)
        lower.set_xscale("log")
        lower.set_xlabel("devices of the fleet")
        lower.legend()
    return done[0]
