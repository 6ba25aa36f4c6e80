"""`edgeveil capacity`: plays fleets of growing size and says what each party bears, and who waits.

Leaves capacity.json in a folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgeveil.errors import UsageError
from edgeveil.units import byte_text, seconds_text
from edgeveil_lab.capacity.play import BROKER_BYTES_PER_S, PARTIES, FleetPlay
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
    """Play a fleet of each size; 0. Raises UsageError where a fleet is too small for a round."""
    if min(devices) < selected:
        raise UsageError(
            f"a round cannot ask {selected} of {min(devices)} devices",
            where="--selected",
            fix="ask fewer, or play more devices",
        )
    if min(selected, rounds, upload_bytes // 4, package_bytes // 4) < 1:
        raise UsageError(
            "a fleet needs a device that is asked, a round, and 4 bytes each way",
            where="edgeveil capacity",
            fix="use larger numbers",
        )
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
    for phase in phases.values():
        phase["waits_for"] = waits_for(phase)
    keys = {"devices", "selected", "rounds", "payload_bytes", "package_bytes"}
    return {"shape": shape.model_dump(include=keys), "phases": phases, "rows": rows}


def waits_for(phase: Mapping[str, Any]) -> dict[str, Any]:
    """The party that bears most of a phase, and its seconds."""
    parties = phase["parties"]
    seconds = {name: parties[name]["busy_s"] for name in _WORKERS}
    line = parties["edge broker"]["bytes_out"] + parties["edge broker"]["bytes_in"]
    seconds["edge broker's line"] = line / BROKER_BYTES_PER_S
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
