"""What a cloud saw of a job, kept in a folder, to look at one's own demonstration.

Off unless the site file names the folder: a recording holds what devices sent, in the clear. It
holds nothing that the cloud does not see anyway: no name, no order of arrival, no time.

    job.json                          the job, canonical
    03-train-0001.broadcast.safetensors   what the selected devices were sent
    03-train-0001.uploads.safetensors     their segments in the batch's order: `head.weight/0000`
    03-train-0001.model.safetensors       the global model after it (training rounds)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeveil.errors import JobFailed
from edgeveil.jobs import Job
from edgeveil.parts.exchange import Array, Exchange, Tensors
from edgeveil.protocol.sealed import pack_tensors

JOB = "job.json"


class Recorder:
    """Writes into `folder`, one job at a time; a job's first exchange clears what was there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(
        self,
        job: Job,
        exchange: Exchange,
        broadcast: Tensors,
        uploads: Mapping[str, Sequence[Array]],
        model: Tensors,
    ) -> None:
        """Write one committed exchange. Raises JobFailed where the folder cannot be written."""
        rows = {
            f"{name}/{index:04d}": array
            for name, arrays in uploads.items()
            for index, array in enumerate(arrays)
        }
        parts = {"broadcast": broadcast, "uploads": rows}
        if exchange.number:
            parts["model"] = model
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if exchange.index == 1:
                for old in self.folder.glob("*.safetensors"):
                    old.unlink()
            (self.folder / JOB).write_bytes(job.canonical())
            for kind, tensors in parts.items():
                (self.folder / file_name(exchange, kind)).write_bytes(pack_tensors(tensors))
        except OSError as error:
            raise JobFailed(
                f"the recording cannot be written ({error.strerror})",
                where=str(error.filename or self.folder),
                fix="make room, or leave out cloud.record_dir",
            ) from error


def file_name(exchange: Exchange, kind: str) -> str:
    """The file of one exchange: `kind` is `broadcast`, `uploads` or `model`."""
    return f"{exchange.index:02d}-{exchange.phase}-{exchange.number:04d}.{kind}.safetensors"
