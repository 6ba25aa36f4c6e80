"""Commands and options of earlier versions, each with what replaces it; refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from edgeveil.errors import UsageError

SUCCESSORS = {
    "provision": "edgeveil site init --local DIR, then edgeveil site apply DIR",
    "chaos": "make chaos, in the repository",
    "table": "edgeveil run JOB --simulate --seeds 3 --sweep KEY=A,B",
    "compare": "edgeveil run JOB --simulate --sweep privacy.noise=local,shared",
    "job track": "edgeveil job watch ID --track WHERE",
    "cloud --track": "edgeveil job watch ID --track WHERE, beside the cloud",
    "run --engine": "edgeveil run JOB --simulate, on a Ray cluster with --ray HOST:PORT",
    "run --address": "edgeveil run JOB --simulate --ray HOST:PORT",
}


def refuse_retired(arguments: Sequence[str]) -> None:
    """Raise UsageError where a command line names something of the table."""
    for old, new in SUCCESSORS.items():
        words = [word for word in old.split() if not word.startswith("-")]
        option = next((word for word in old.split() if word.startswith("-")), "")
        given = {word.partition("=")[0] for word in arguments}
        if list(arguments[: len(words)]) == words and (not option or option in given):
            raise UsageError("is no more", where=f"edgeveil {old}", fix=f"Use: {new}")
