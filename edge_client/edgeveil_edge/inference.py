"""The release in use as a service for programs on the same box; nothing leaves it.

    POST /v1/predict   {"record": […]} or {"records": [[…], …]} as application/json, or records as
                       float32 numbers, least byte first, as application/octet-stream
    GET  /v1/model     which release answers

Each request looks at what is in use, so a release that is installed or rolled back, also by another
process, answers from the next one on; requests under way end with the model that they began with.
A release that cannot be loaded leaves the one before it at work. Each was tried on made-up records,
in a process of its own, before it was installed; here a run has its time limit.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.errors import DataError, EdgeVeilError, UsageError
from edgeveil.evaluation.graph_check import check_graph
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.sites.edge import Inference
from edgeveil.storage import file_mark
from edgeveil.transport.http import Page, PageContent, PageRequest, PageServer
from edgeveil.transport.listener import ListenAt
from edgeveil_edge.predict import Predictions, as_records, stale_since
from edgeveil_edge.releases import InstalledRelease, ReleaseStore

RUN_S = 5.0  # of one batch of a request
JSON, NUMBERS = "application/json", "application/octet-stream"


@dataclass(frozen=True)
class ServedModel:
    """A release that is loaded and checked."""

    release: InstalledRelease
    session: OnnxModel

    @classmethod
    def load(cls, release: InstalledRelease) -> ServedModel:
        """Raises DataError for a graph that may not run here."""
        graph = release.path.read_bytes()
        if sha256(graph).hexdigest() != release.digest:
            raise DataError("was changed after it was installed", where=str(release.path))
        check_graph(graph, released=True)
        session = OnnxModel(graph)
        if session.weight_names:
            raise DataError("has no weights of its own", where=str(release.path))
        return cls(release, session)

    def predict(self, body: PageRequest) -> Predictions:
        """Raises DataError for a body that holds no records of the model's shape."""
        return self.run(_records(body, self.session.input_shape))

    def run(self, values: NDArray[Any]) -> Predictions:
        """Raises DataError for values that are no records of the model's shape."""
        x = as_records(values, self.session.input_shape, "records")
        found = self.session.answers(x, {}, limit_s=RUN_S)
        return Predictions.of(self.release.version, self.session, found)


class InferenceService:
    """Serves one device's release in use, on the addresses of its site file."""

    def __init__(self, settings: Inference, releases: ReleaseStore) -> None:
        self._settings, self._releases = settings, releases
        self._servers: list[PageServer] = []
        self._model: ServedModel | None = None
        self._stops_stale = False
        self._seen: tuple[int, ...] = ()  # of the file that says what is in use
        # One thread: a session runs on one core, and a swap stands between two requests.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeveil-infer")

    async def start(self) -> None:
        """Listen where the site says, if anywhere. Raises UsageError for a taken address."""
        settings = self._settings
        pages: dict[str, Page] = {"/v1/model": self.told}
        posts = {"/v1/predict": self._predict_page}
        if settings.socket is not None:
            server = PageServer(pages, posts, settings.request_bytes)
            await server.listen(ListenAt(socket=settings.socket))
            self._servers.append(server)
        if settings.http is not None:
            server = PageServer(pages, posts, settings.request_bytes)
            await server.listen(settings.http.host, settings.http.port)
            self._servers.append(server)
        if self._servers:  # the first request need not wait for the model
            await self._in_thread(self._current)

    @property
    def urls(self) -> list[str]:
        """Addresses over TCP."""
        tcp = self._servers[self._settings.socket is not None :]
        return [server.url for server in tcp]

    async def stop(self) -> None:
        """Stop listening."""
        for server in self._servers:
            await server.stop()
        if self._servers and self._settings.socket is not None:
            self._settings.socket.unlink(missing_ok=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def predict(self, read: Callable[[], NDArray[Any]]) -> Predictions:
        """What the release in use says of the values that `read` gives, for the owner's page.

        Raises DataError or UsageError.
        """
        found: Predictions = await self._in_thread(self._run, read)
        return found

    def _run(self, read: Callable[[], NDArray[Any]]) -> Predictions:
        model = self._ready()
        if isinstance(model, str):
            raise UsageError(model, where="the release in use")
        return model.run(read())

    async def _in_thread(self, work: Any, *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    async def told(self, _request: object = None) -> PageContent:
        """Which release answers, and what it takes."""
        model: ServedModel | None = await self._in_thread(self._current)
        if model is None:
            return _told(503, _NO_RELEASE)
        release, shape = model.release, model.session.input_shape
        told = {"release": release.version, "job": release.job, "digest": release.digest}
        return PageContent.of_json({**told, "input_shape": list(shape)})

    async def _predict_page(self, body: PageRequest) -> PageContent:
        found: PageContent = await self._in_thread(self._answer, body)
        return found

    def _answer(self, body: PageRequest) -> PageContent:
        if body.content_type not in (JSON, NUMBERS):
            return _told(415, f"send {JSON} or {NUMBERS}")
        model = self._ready()
        if isinstance(model, str):
            return _told(503, model)
        try:
            found = model.predict(body)
        except DataError as error:
            return _told(400, str(error))
        return PageContent.of_json({"release": found.model, "predictions": found.plain()})

    def _ready(self) -> ServedModel | str:
        """The model that may answer now, or why there is none."""
        model = self._current()
        if model is None:
            return _NO_RELEASE
        stale = stale_since(model.release, time.time())
        return stale if stale and self._stops_stale else model

    def _current(self) -> ServedModel | None:
        """The release in use, loaded; the one before where it cannot be."""
        seen = file_mark(self._releases.folder / "current.json")
        if seen == self._seen:
            return self._model
        try:
            release = self._releases.current()
            if release is None:  # the only one was withdrawn
                self._model = None
            elif self._model is None or release.version != self._model.release.version:
                self._model = ServedModel.load(release)
            else:  # renewed, perhaps
                self._model = replace(self._model, release=release)
            self._stops_stale = self._releases.stops_expired
        except (EdgeVeilError, OSError):  # said by the device itself, when it starts or installs
            return self._model  # and looked at again with the next request
        self._seen = seen
        return self._model


def _records(body: PageRequest, shape: tuple[int | None, ...]) -> NDArray[Any]:
    if body.content_type == NUMBERS:
        sizes = [axis or 1 for axis in shape]
        whole = body.content and not len(body.content) % (4 * math.prod(sizes))
        if None in shape or not whole:
            raise DataError(
                f"has {len(body.content)} bytes, the model takes float32 numbers of shape {shape}",
                where="the request",
                fix="send whole records, or JSON",
            )
        return np.frombuffer(body.content, "<f4").reshape(-1, *sizes)
    try:
        asked = json.loads(body.content)
    except (ValueError, RecursionError):
        raise DataError("is no JSON", where="the request") from None
    if not isinstance(asked, dict) or len(asked) != 1 or not asked.keys() & {"record", "records"}:
        raise DataError(
            "names no records", where="the request", fix='send {"record": […]} or {"records": […]}'
        )
    try:
        if "record" in asked:
            return np.asarray([asked["record"]])
        return np.asarray(asked["records"])
    except ValueError:
        raise DataError("differ in length", where="records", fix="send records alike") from None


def _told(status: int, text: str) -> PageContent:
    return PageContent.of_json({"error": text}, status)


_NO_RELEASE = "no model is released yet; wait until a job is completed"
