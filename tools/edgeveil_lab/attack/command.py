"""`edgeveil attack`: what a recorded job gives away to its cloud, with its noise and without.

Gradient inversion and membership inference on what the cloud saw. The attacks without noise are
rehearsed from the demonstration's public records; no cloud ever sees them. DIR gets
`attack.json`, `inversion.png`, `membership.png` and `attack.html`.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from edgeveil_lab.attack.inversion import (
    Inversion,
    InversionResult,
    attacks,
    invert,
    why_no_pictures,
)
from edgeveil_lab.attack.membership import Membership, RocCurve, infer
from edgeveil_lab.attack.membership import steps as membership_steps
from edgeveil_lab.attack.plots import draw_inversion, draw_membership
from edgeveil_lab.attack.recording import Recording
from edgeveil_lab.pages import write_page
from edgeveil_tools.local.data import is_published
from edgeveil_tools.result import UNPROTECTED, write_json, writing


def attack(
    folder: Path, out: Path | None = None, data: Path | None = None, *, as_json: bool = False
) -> int:
    """Attack the recording in `folder`, print a table, write to `out` (default: folder/attack).

    Raises UsageError where there is no recording, or it cannot be attacked or written.
    """
    recording = Recording.load(folder, data)
    target = out or folder / "attack"
    console = Console(stderr=as_json, highlight=False)
    reason = why_no_pictures(recording)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("inverting", total=attacks(recording) + membership_steps(recording))
        inversion = None if reason else invert(recording, lambda: progress.advance(bar))
        progress.update(bar, description="inferring members")
        membership = infer(recording, lambda: progress.advance(bar))
    found = summary(recording, inversion, membership, reason)
    _write(target, recording, inversion, membership, found)
    if as_json:
        print(json.dumps(found, allow_nan=False), flush=True)
        return 0
    if inversion is None:
        console.print(f"No pictures: {reason}")
    else:
        console.print(_pictures_table(inversion))
    console.print(_members_table(membership))
    if found["note"]:
        console.print(f"All figures: {found['note']}")
    console.print(f"Look at {target / 'attack.html'}")
    return 0


def summary(
    recording: Recording, inversion: Inversion | None, membership: Membership, reason: str
) -> dict[str, Any]:
    """The content of `attack.json`."""
    privacy, curves = recording.job.privacy, (*membership.model, *membership.upload)
    pictures: dict[str, Any] = {"none_because": reason}
    if inversion is not None:
        pictures = {
            "noise_of_a_value": inversion.sigma,
            "norm_of_the_exact_sum": inversion.signal,
            "chance_that_the_upload_is_the_devices": inversion.posterior,
            "attacks": [_scores(one) for one in inversion.results],
            "without_looking": _scores(inversion.guess),
        }
    return {
        "job": recording.job.job,
        "note": "" if is_published(recording.job, recording.run) else UNPROTECTED,
        "epsilon": recording.plan.setting.epsilon,
        "delta": privacy.delta,
        "unit": "record",
        "devices": len(recording.devices),
        "inversion": pictures,
        "membership": {
            "mu_of_one_round": membership.mu_round,
            "mu_of_the_job": membership.mu_job,
            "attacks": [_plain(curve, curve in membership.upload) for curve in curves],
            "auc_by_round": [
                {"round": number, "noise": noised, "without": free}
                for number, (noised, free) in enumerate(membership.rounds, start=1)
            ],
        },
    }


def _scores(one: InversionResult) -> dict[str, Any]:
    return {
        "records": one.records,
        "method": one.method,
        "noise": one.noise,
        "mse": one.mse,
        "psnr_db": one.psnr_db,
        "ssim": one.ssim,
    }


def _plain(curve: RocCurve, upload: bool) -> dict[str, Any]:
    return {
        "from": "one device's uploads" if upload else "global model",
        "attack": curve.name,
        "noise": curve.noise,
        "auc": curve.auc,
        "tpr_at_1_percent_fpr": curve.tpr_at_1_percent,
    }


def _write(
    target: Path,
    recording: Recording,
    inversion: Inversion | None,
    membership: Membership,
    found: dict[str, Any],
) -> None:
    drawn = ["membership"] if inversion is None else ["inversion", "membership"]
    with writing(target, "name another folder with --out"):
        target.mkdir(parents=True, exist_ok=True)
        if inversion is not None:
            draw_inversion(inversion, target / "inversion.png")
        epsilon, delta = recording.plan.setting.epsilon, recording.job.privacy.delta
        draw_membership(membership, epsilon, delta, target / "membership.png")
        write_json(target / "attack.json", found)
        pictures = {
            name: base64.b64encode((target / f"{name}.png").read_bytes()).decode() for name in drawn
        }
        content = {"found": found, "pictures": pictures}
        write_page(target / "attack.html", "attack.html", content, {})


def _pictures_table(inversion: Inversion) -> Table:
    table = Table(title="gradient inversion: SSIM, PSNR in dB", title_justify="left")
    for name in ("records", "method", "without noise", "with the noise"):
        table.add_column(name, justify="left" if name == "method" else "right")
    noised = {(one.records, one.method): one for one in inversion.results if one.noise}
    for one in inversion.results:
        if not one.noise:
            other = noised[one.records, one.method]
            table.add_row(str(one.records), one.method, _score(one), _score(other))
    guess = inversion.guess
    table.add_row(str(guess.records), "mean image, a guess", "", _score(guess))
    return table


def _score(one: InversionResult) -> str:
    return f"{one.ssim:.2f}, {one.psnr_db:4.1f}"


def _members_table(membership: Membership) -> Table:
    table = Table(title="membership inference (AUC 0.5: guessing)", title_justify="left")
    for name in ("from", "attack", "noise"):
        table.add_column(name)
    for name in ("AUC", "true positives at 1 % false"):
        table.add_column(name, justify="right")
    for curve in (*membership.model, *membership.upload):
        table.add_row(
            "one device's uploads" if curve in membership.upload else "global model",
            curve.name,
            "yes" if curve.noise else "none",
            f"{curve.auc:.3f}",
            f"{100 * curve.tpr_at_1_percent:.1f} %",
        )
    return table
