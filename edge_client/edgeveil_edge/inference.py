"""HTTP service of the release in use for programs on the same box.

    POST /v1/predict   {"record": […]} or {"records": [[…], …]} as application/json, or records as
                       little-endian float32 as application/octet-stream; a model with column
                       names also takes {"record": {"age": 39, …}}, one of windows a list of
                       such readings, one of recordings a file as audio/wav or audio/flac
    GET  /v1/model     release in use and its input

Each request checks which release is in use, so an installation or rollback, also by another
process, applies from the next request on. If a release cannot be loaded, the previous one serves.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from edgeveil.config.edge import Inference
from edgeveil.data.anomaly import ALARM_RATE
from edgeveil.data.encoding import Encoded, RowEncoder, cell_text
from edgeveil.data.schema import DataSchema, schema_in
from edgeveil.data.windows import Windows
from edgeveil.errors import DataError, EdgeVeilError
from edgeveil.evaluation.onnx_session import OnnxModel
from edgeveil.parts.sources.audio import encode_recordings, remarks_on
from edgeveil.registry import nearest
from edgeveil.transport.http import Request, Response, Route
from edgeveil.transport.listener import ListenAt
from edgeveil_edge.predict import GivenRecords, Predictions, run_on_records
from edgeveil_edge.release_trial import released_session
from edgeveil_edge.releases import InstalledRelease, ReleaseStore

if TYPE_CHECKING:
    from edgeveil.transport.http_server import HttpServer

LOG = logging.getLogger("edgeveil.edge")
REQUEST_BYTES = 1 << 20  # of the body of a request
RUN_S = 5.0  # of one batch of a request
JSON, NUMBERS = "application/json", "application/octet-stream"
SOUND = ("audio/wav", "audio/flac")
_RECORD = "number of the record in the request"  # a column that no table has


@dataclass(frozen=True)
class ServedModel:
    release: InstalledRelease
    session: OnnxModel
    schema: DataSchema | None = None

    @classmethod
    def load(cls, release: InstalledRelease) -> ServedModel:
        """Load a release. Raises DataError for a graph that may not run here."""
        graph = release.path.read_bytes()
        if sha256(graph).hexdigest() != release.digest:
            raise DataError("was changed after it was installed", where=str(release.path))
        session = released_session(graph, str(release.path))
        return cls(release, session, schema_in(session.metadata, session.input_shape))

    def predict(self, body: Request) -> Predictions:
        """Run the records of a request. Raises DataError for a malformed body."""
        if body.content_type in SOUND and self.schema is not None and self.schema.audio is not None:
            x, (read,) = encode_recordings([io.BytesIO(body.content)], self.schema)
            if read.fault:
                raise DataError(read.fault, where="the recording", fix="send a WAV or FLAC file")
            return self.run(GivenRecords(x, notes=remarks_on([read], self.schema)))
        if body.content_type == NUMBERS:
            return self.run(_numbers(body.content, self.session.input_shape))
        records = _listed(body.content)
        if self.schema is not None and _by_names(records, self.schema):
            return self.run(GivenRecords.of(_named(records, self.schema)))
        try:
            return self.run(np.asarray(records))
        except ValueError:
            fix = "send records alike"
            raise DataError("differ in length", where="records", fix=fix) from None

    def run(self, values: NDArray[Any] | GivenRecords) -> Predictions:
        return run_on_records(self.session, self.release.version, values, RUN_S)

    @property
    def takes(self) -> dict[str, Any]:
        form: dict[str, Any] = {"input_shape": list(self.session.input_shape)}
        schema = self.schema
        if schema is None:
            return form
        columns = [name for column in schema.columns or () for name in column.names]
        named: dict[str, Any] = {"classes": list(schema.label.names), "columns": columns}
        if schema.anomaly:
            named["alarms"] = ALARM_RATE in self.session.metadata
        if schema.target is not None:
            named["range"] = [schema.target.low, schema.target.high]
        kinds = {"pictures": schema.image is not None, "recordings": schema.audio is not None}
        return {**form, **named, **kinds}


class InferenceService:
    def __init__(self, settings: Inference, releases: ReleaseStore) -> None:
        self._settings, self._releases = settings, releases
        self._servers: list[HttpServer] = []
        self._model: ServedModel | None = None
        self._stops_stale = False
        self._seen: tuple[int, ...] = ()  # mark of the file that names the release in use
        # One thread: a session uses one core, and a swap happens between two requests.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeveil-infer")

    async def start(self) -> None:
        """Listen on the site's addresses, if any. Raises UsageError for a taken address."""
        settings, places = self._settings, []
        if settings.socket is not None:
            places.append(ListenAt(socket=settings.socket))
        if settings.http is not None:
            places.append(ListenAt(settings.http.host, settings.http.port))
        if not places:
            return
        from edgeveil.transport.http_server import HttpServer  # most devices serve nothing

        routes = [
            Route("GET", "/v1/model", self._model_page),
            Route("POST", "/v1/predict", self._predict, REQUEST_BYTES),
        ]
        for at in places:
            self._servers.append(await HttpServer(routes, _refuse).start(at))
        await self._in_thread(self._current)  # the first request need not wait for the model

    async def stop(self) -> None:
        for server in self._servers:
            await server.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Any, *given: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *given)

    async def _model_page(self, _request: Request) -> Response:
        model: ServedModel | None = await self._in_thread(self._current)
        if model is None:
            return _error(503, _NO_RELEASE)
        release = model.release
        named = {"release": release.version, "job": release.job, "digest": release.digest}
        return Response.of_json({**named, **model.takes})

    async def _predict(self, body: Request) -> Response:
        found: Response = await self._in_thread(self._answer, body)
        return found

    def _answer(self, body: Request) -> Response:
        if body.content_type not in (JSON, NUMBERS, *SOUND):
            return _error(415, f"send {JSON} or {NUMBERS}, of a model of recordings {SOUND[0]}")
        model = self._ready()
        if isinstance(model, str):
            return _error(503, model)
        try:
            found = model.predict(body)
        except DataError as error:
            return _error(400, str(error))
        counts = {"notes": found.notes, "unread": found.unread}
        if counts := {key: some for key, some in counts.items() if some}:
            LOG.info("records_unread", extra={"records": len(found), **counts})  # counts alone
        return Response.of_json({"release": found.model, "predictions": found.plain(), **counts})

    def _ready(self) -> ServedModel | str:
        model = self._current()
        if model is None:
            return _NO_RELEASE
        stale = model.release.stale(time.time())
        return stale if stale and self._stops_stale else model

    def _current(self) -> ServedModel | None:
        seen = self._releases.mark()
        if seen == self._seen:
            return self._model
        try:
            release = self._releases.current()
            if release is None:  # the only one was withdrawn
                self._model = None
            elif self._model is None or release.version != self._model.release.version:
                self._model = ServedModel.load(release)
            else:  # may have been renewed
                self._model = replace(self._model, release=release)
            self._stops_stale = self._releases.stops_expired
        except (EdgeVeilError, OSError):  # the device reports it when it starts or installs
            return self._model  # retried with the next request
        self._seen = seen
        return self._model


def _numbers(content: bytes, shape: tuple[int | None, ...]) -> NDArray[Any]:
    sizes = [axis or 1 for axis in shape]
    whole = content and not len(content) % (4 * math.prod(sizes))
    if None in shape or not whole:
        what = f"has {len(content)} bytes, the model takes float32 numbers of shape {shape}"
        fix = "send whole records, or JSON"
        raise DataError(what, where="the request", fix=fix)
    return np.frombuffer(content, "<f4").reshape(-1, *sizes)


def _listed(content: bytes) -> list[Any]:
    try:
        asked = json.loads(content)
    except (ValueError, RecursionError):
        raise DataError("is no JSON", where="the request") from None
    if not isinstance(asked, dict) or len(asked) != 1 or not asked.keys() & {"record", "records"}:
        what = "names no records"
        raise DataError(what, where="the request", fix='send {"record": […]} or {"records": […]}')
    if "record" in asked:
        return [asked["record"]]
    records = asked["records"]
    return records if isinstance(records, list) else [records]


def _named(records: list[Any], schema: DataSchema) -> Encoded:
    """Encode records given by column name, windows as lists of readings in order.

    Omitted and null values are missing."""
    names = [name for column in schema.columns or () for name in column.names]
    windows = schema.windows
    if windows is not None:
        by_record = Windows(length=windows.length, group=_RECORD)
        schema = schema.model_copy(update={"windows": by_record})
    encoder = RowEncoder(schema, [*names, _RECORD], "records", labelled=None)
    for number, record in enumerate(records, start=1):
        readings = [record] if windows is None else record
        if not isinstance(readings, list) or not readings:
            fix = "send a list of readings, each by names"
            raise DataError("is no window", where=f"record {number}", fix=fix)
        for reading in readings:
            if not isinstance(reading, dict):
                fix = "name the values of all records or of no record"
                raise DataError("has no names", where=f"record {number}", fix=fix)
            unknown = next((name for name in reading if name not in names), None)
            if unknown is not None:
                what = f"has '{unknown[:64]}', which no column is called"
                raise DataError(what, where=f"record {number}", fix=nearest(unknown, names))
            encoder.add([*(cell_text(reading.get(name)) for name in names), str(number)])
    return encoder.encoded()


def _by_names(records: list[Any], schema: DataSchema) -> bool:
    if schema.windows is not None:
        records = [one for record in records if isinstance(record, list) for one in record]
    return any(isinstance(one, dict) for one in records)


def _refuse(request: Request) -> Response | None:
    """Refuse requests of other sites' pages in a browser on this box."""
    return None if request.is_for_this_machine else _error(403, "use a name of this machine")


def _error(status: int, text: str) -> Response:
    return Response.of_json({"error": text}, status)


_NO_RELEASE = "no model is released yet; wait until a job is completed"
