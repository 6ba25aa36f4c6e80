"""One half of a published data set, read as in a run."""

from edgeveil.data.records import MAX_BYTES
from edgeveil.parts.sources import SOURCES, Origin


def read_published(name, folder, half, max_bytes=MAX_BYTES):
    part = SOURCES[name]
    read = part.read if half == "train" else part.test
    return read(Origin(path=folder, max_bytes=max_bytes))
