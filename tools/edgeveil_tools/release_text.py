"""A release in words, as `job list`, `job show` and a report show it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

_WORDS = {
    "in_use": "in use",
    "refused_by_check": "refused by the check",
    "failed_trial": "failed the trial",
    "rolled_back": "rolled back",
    "refused_by_policy": "refused by an owner",
}


def release_lines(release: Mapping[str, Any]) -> list[str]:
    """How far a release is, why, and the counts of the devices' reports."""
    stage = release["stage"]
    lines = [f"{'release':10}{stage}"]
    if release["reason"]:
        lines.append(f"{'why':10}{release['reason']}")
    if release["expires_at"] is not None:
        ends = datetime.fromtimestamp(release["expires_at"]).isoformat(" ", "seconds")
        lines.append(f"{'good until':10} {ends}")
    for reached, counts in sorted(release["reports"].items(), reverse=True):
        asked = f" of {release['canary']}" if reached == "canary" else ""
        lines.append(f"{reached:10}{sum(counts.values())}{asked} reported: {counted(counts)}")
    return lines


def counted(counts: Mapping[str, int]) -> str:
    """Outcomes in words."""
    return ", ".join(f"{counts[name]} {word}" for name, word in _WORDS.items() if counts.get(name))
