"""`edgeveil serve MODEL`: predictions of a released model over HTTP, without a device around it."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from pathlib import Path

from edgeveil.data.records import require_file
from edgeveil.sites.edge import Inference, LoopbackHttp
from edgeveil.storage import file_mark
from edgeveil.transport.process import first_of, run_until_stopped
from edgeveil_edge.inference import InferenceService, ReleasesInUse, ServedModel
from edgeveil_edge.predict import RELEASES
from edgeveil_edge.releases import InstalledRelease, ReleaseStore


class ModelFile:
    """One ONNX file as the model in use; another in its place is taken as it comes."""

    stops_expired = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def mark(self) -> tuple[int, ...]:
        return file_mark(self._path)

    def current(self) -> InstalledRelease:
        """The file, whatever it holds; its name and digest are its version."""
        digest = sha256(self._path.read_bytes()).hexdigest()
        version = f"{self._path.name} {digest[:12]}"
        return InstalledRelease(version, "", digest, self._path, {})


def serve(model: Path, port: int) -> int:
    """Serve an ONNX file, or the release in use of a device's state folder, on this machine until
    SIGINT or SIGTERM.

    Raises DataError for a model that cannot be used, UsageError for a port that is taken.
    """
    releases: ReleasesInUse
    if model.is_dir():
        releases = ReleaseStore(model / RELEASES)
    else:
        releases = ModelFile(require_file(model, "the model"))
    if (current := releases.current()) is not None:
        ServedModel.load(current)  # said now, and not with the first request
    return run_until_stopped(lambda stop: _serve(releases, port, stop))


async def _serve(releases: ReleasesInUse, port: int, stop: asyncio.Event) -> int:
    service = InferenceService(Inference(http=LoopbackHttp(port=port)), releases)
    await service.start()
    (url,) = service.urls
    print(f"{url}/v1/predict takes records, {url}/v1/model says which; Ctrl-C ends", flush=True)
    try:
        await first_of(stop)
    finally:
        await service.stop()
    return 0
