"""One half of a published data set, read as in a run."""

from pathlib import Path

from edgeveil.data.records import MAX_BYTES, Records
from edgeveil.parts.sources import SOURCES, Origin


def read_published(
    name: str, folder: Path | None, half: str, max_bytes: int = MAX_BYTES
) -> Records:
    """Read it; raises DataError that names the file and the fault."""
    part = SOURCES[name]
    read = part.read if half == "train" else part.test
    assert read is not None
    return read(Origin(path=folder, max_bytes=max_bytes))
