"""The folders of the data sets that an experiment's trials name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil.parts.sources import published_files
from edgeveil_lab.reproduce.base import Trial
from edgeveil_tools.local.data import PLACES


def folder_of(source: str, data: Path | None) -> Path | None:
    """Where all files of a published data set are: `data`, or the folder of its name in there.

    None where files are missing, and for what reads no folder.
    """
    if source not in published_files():
        return None
    places = [place / source for place in PLACES] if data is None else [data, data / source]
    return next((one for one in places if not published_files()[source].missing(one)), None)


def wanted_files(source: str) -> str:
    """The files of a published data set, in words."""
    names = ", ".join(published_files()[source].names)
    return f"{source} as it is published: {names}"


def without_files(trials: Sequence[Trial], data: Path | None) -> dict[str, str]:
    """For each data set whose files are missing, the files that are wanted."""
    sources = {trial.source for trial in trials} & set(published_files())
    lacking = sorted(source for source in sources if folder_of(source, data) is None)
    return {source: wanted_files(source) for source in lacking}


def refuse(lacking: dict[str, str]) -> None:
    """Raise the UsageError that names all files that are wanted."""
    raise UsageError(
        f"the files of {', '.join(lacking)} are not there",
        where="--data",
        fix="name the folder with " + "; or with ".join(lacking.values()),
    )
