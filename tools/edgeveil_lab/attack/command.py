"""`edgeveil attack`: reconstruct records and infer members, with the recorded noise and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgeveil_lab.attack.inversion import Inversion, invert, why_no_pictures
from edgeveil_lab.attack.membership import Membership, infer
from edgeveil_lab.attack.plots import draw_inversion, draw_membership
from edgeveil_lab.attack.recording import Recording
from edgeveil_tools.local.data import is_published
from edgeveil_tools.result import UNPROTECTED, write_json, writing

_SCORES = ("records", "method", "noise", "mse", "psnr_db", "ssim")


def attack(folder: Path, out: Path | None = None, *, as_json: bool = False) -> int:
    """Attack the recording in `folder` and write to `out` (default: folder/attack).

    Raises UsageError if the recording cannot be read or attacked, or `out` not be written."""
    recording = Recording.load(folder)
    target = out or folder / "attack"
    console = Console(stderr=as_json, highlight=False)
    reason = why_no_pictures(recording)
    with console.status("rebuilding records") as status:
        inversion = None if reason else invert(recording)
        status.update("inferring members")
        membership = infer(recording)
    found = summary(recording, inversion, membership, reason)
    with writing(target, "name another folder with --out"):
        target.mkdir(parents=True, exist_ok=True)
        if inversion is not None:
            draw_inversion(inversion, target / "inversion.png")
        draw_membership(membership, found["epsilon"], found["delta"], target / "membership.png")
        write_json(target / "attack.json", found)
    if as_json:
        print(json.dumps(found, allow_nan=False), flush=True)
        return 0
    if inversion is None:
        console.print(f"No pictures: {reason}")
    else:
        rows = [*found["inversion"]["attacks"], found["inversion"]["without_looking"]]
        console.print(_table("gradient inversion", rows))
    rows = found["membership"]["attacks"]
    console.print(_table("membership inference (AUC 0.5: guessing)", rows))
    if found["note"]:
        console.print(f"All figures: {found['note']}")
    console.print(f"Look at {target}/ with attack.json and the pictures")
    return 0


def summary(
    recording: Recording, inversion: Inversion | None, membership: Membership, reason: str
) -> dict[str, Any]:
    pictures: dict[str, Any] = {"none_because": reason}
    if inversion is not None:
        *rows, guess = (
            {name: getattr(one, name) for name in _SCORES}
            for one in (*inversion.results, inversion.guess)
        )
        pictures = {
            "noise_of_a_value": inversion.sigma,
            "norm_of_the_exact_sum": inversion.signal,
            "attacks": rows,
            "without_looking": guess,
        }
    return {
        "job": recording.job.job,
        "note": "" if is_published(recording.job, recording.run) else UNPROTECTED,
        "epsilon": recording.plan.context.epsilon,
        "delta": recording.job.privacy.delta,
        "unit": "record",
        "devices": len(recording.devices),
        "inversion": pictures,
        "membership": {
            "mu_of_one_round": membership.mu_round,
            "mu_of_the_job": membership.mu_job,
            "attacks": [
                {
                    "from": source,
                    "attack": curve.name,
                    "noise": curve.noise,
                    "auc": curve.auc,
                    "tpr_at_1_percent_fpr": curve.tpr_at_1_percent,
                }
                for source, curves in (
                    ("global model", membership.model),
                    ("one device's uploads", membership.upload),
                )
                for curve in curves
            ],
            "auc_by_round": [
                {"round": number, "noise": noised, "without": free}
                for number, (noised, free) in enumerate(membership.rounds, start=1)
            ],
        },
    }


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    return table
