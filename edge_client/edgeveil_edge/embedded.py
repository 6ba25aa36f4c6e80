"""A device inside an application: `edgeveil.Device`.

Runs the same device as `edgeveil edge` in a thread with its own event loop. Its computing process
is spawned, not forked, since an application has threads. Records may come from a callable of the
application: called once at the start, checked like a `python:` source, and sent to the computing
process, where they are treated like records of a file.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from numpy.typing import NDArray

from edgeveil import plugins
from edgeveil.config.edge import EdgeSite
from edgeveil.config.site_files import load_site
from edgeveil.data.records import Records
from edgeveil.errors import OF_OTHERS_CODE, DataError, UsageError, needs_extra
from edgeveil.heap import keep_memory_private
from edgeveil.parts.sources.arrays import given_records
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.transport.process import first_of
from edgeveil_edge.compute_process import ComputeProcess
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.main import DeviceProcess, Lanes
from edgeveil_edge.predict import RELEASES, Predictions, predict
from edgeveil_edge.releases import ReleaseStore
from edgeveil_edge.spending import as_plain

LOG = logging.getLogger("edgeveil.edge")
WHERE = "records"  # name of the callable in errors

RecordsFrom = Callable[[], tuple[NDArray[Any], NDArray[Any]]]
DeviceState = Literal["stopped", "offline", "online", "paused", "failed"]


@dataclass(frozen=True)
class DeviceStatus:
    """State of a device.

    state    `online`: its broker is reached; `paused`: declines rounds; `failed`: ended by itself,
             with the reason in `error`
    release  version of the model in use, "" before the first
    message  the last line for the owner
    stale    warning that the release was not renewed in time (a newer one may be withheld), or ""
    """

    id: str
    name: str
    state: DeviceState
    release: str
    message: str
    error: str
    stale: str = ""


class Device:
    """One device of a site, run inside this program.

    site        the device's site file with the owner's policy, or an EdgeSite
    records     returns this device's records as x (n, …) of numbers and y (n,) of labels from 0;
                called once by each `start`. Default: the site's own data source. If given, only
                the name of the site's `data` block is used, for the ledger
    on_message  takes each line for the owner, from the device's thread; lines may quote private
                counts. Default: `status().message` only

    As a context manager, starts and stops. Methods may be called from several threads. A state
    folder belongs to one program at a time. From its first start on, this program accepts the
    plug-ins that the owner's policy allows, and no others.

        with Device("edge.yaml", records=measured) as device:
            ...

    Raises ConfigError or UsageError for the site file.
    """

    def __init__(
        self,
        site: str | Path | EdgeSite,
        *,
        records: RecordsFrom | None = None,
        on_message: Callable[[str], None] | None = None,
    ) -> None:
        found = site if isinstance(site, EdgeSite) else load_site(Path(site))
        if not isinstance(found, EdgeSite):
            raise UsageError("is no edge site file", where=str(site), fix="name a device's")
        if records is not None:  # arrays have no header line
            data = found.data.model_copy(update={"header": True})
            found = found.model_copy(update={"data": data})
        self.site, self._records, self._notify = found, records, on_message
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()  # held by `start`, whose callable may call methods
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._process: DeviceProcess | None = None
        self._paused, self._message, self._id = False, "", ""
        self._error: BaseException | None = None

    @needs_extra("train-fm")
    def start(self) -> Self:
        """Read the records and start; returns once the device's files are open.

        A missing broker is retried without limit. Raises DataError for the records, UsageError if
        the device already runs or another program has its folder, and StorageError, PrivacyError or
        CryptoError for the folder's content.
        """
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                what, fix = "the device runs already", "stop it first"
                raise UsageError(what, where=self.site.name, fix=fix)
            keep_memory_private()  # the device's keys are in this program from now on
            given = self._given()
            plugins.admit(self.site.policy.allowed_plugins)
            ready = threading.Event()
            self._error = None
            name, args = f"edgeveil-{self.site.name}", (given, ready)
            self._thread = threading.Thread(target=self._run, args=args, name=name, daemon=True)
            self._thread.start()
            ready.wait()
            if self._error is not None:
                self._thread.join()
                raise self._error
            return self

    def stop(self) -> None:
        """Send a good-bye and close the files; may be called twice."""
        with self._starting:
            thread, loop, stop = self._thread, self._loop, self._stop
        if thread is None:
            return
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # closed: it is ending already
                loop.call_soon_threadsafe(stop.set)
        thread.join()

    def pause(self) -> None:
        """Decline rounds from now on; an answer under way is still sent."""
        self._paused = True
        self._apply_pause()

    def resume(self) -> None:
        """Accept rounds again, from the next one on."""
        self._paused = False
        self._apply_pause()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def status(self) -> DeviceStatus:
        process, alive = self._process, self._thread is not None and self._thread.is_alive()
        if not alive:
            state: DeviceState = "stopped" if self._error is None else "failed"
        elif self._paused or (process is not None and process.presence.paused):
            state = "paused"
        else:
            state = "online" if process and process.session.connected else "offline"
        current = ReleaseStore(self.site.state_dir / RELEASES).current()
        release, stale = "", ""
        if current is not None:
            release, stale = current.version, current.stale(time.time())
        lines = self._message, str(self._error or ""), stale
        return DeviceStatus(self._id, self.site.name, state, release, *lines)

    def ledger(self) -> dict[str, Any]:
        """Return spending as `edgeveil ledger --json`. Raises PrivacyError, UsageError."""
        path = self.site.state_dir / LEDGER_FILE
        return as_plain(path, read_ledger(path), {self.site.data.name: self.site.policy})

    def predict(self, records: str | Path | NDArray[Any]) -> Predictions:
        """Run the release in use on records. Raises UsageError without a release, or DataError."""
        return predict(self.site.state_dir, records)

    def enrolment(self) -> str:
        """Return the JSON to admit this device at the proxy; creates missing keys."""
        return DeviceIdentity.load_or_create(self.site.state_dir).enrolment().to_json()

    def _given(self) -> Records | None:
        if self._records is None:
            return None
        try:
            found = self._records()
        except OF_OTHERS_CODE as error:  # the application's code may raise anything
            what = f"raised {type(error).__name__}: {error}"
            raise DataError(what, where=WHERE, fix="correct the function") from error
        return given_records(found, WHERE)

    def _run(self, given: Records | None, ready: threading.Event) -> None:
        computing = ComputeProcess()
        try:
            asyncio.run(self._live(given, computing, ready))
        except BaseException as error:  # raised by `start`, or shown by `status` after it
            self._error = error
            LOG.error("stopped", extra={"reason": type(error).__name__})
        finally:
            computing.end()
            self._process = self._loop = self._stop = None
            ready.set()

    async def _live(
        self, given: Records | None, computing: ComputeProcess, ready: threading.Event
    ) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        with Lanes() as lanes:
            process = DeviceProcess(
                self.site, lanes, computing, records=given, on_message=self._on_line
            )
            self._process, self._id = process, process.device.id
            if self._paused:  # else as the owner set it at the box
                self._apply_pause()
            lanes.warm_up(process.device.host)
            ready.set()
            try:
                await first_of(self._stop, process.run())
            finally:
                computing.close()
                await process.stop()

    def _apply_pause(self) -> None:
        if self._process is not None:
            self._process.pause(self._paused)

    def _on_line(self, line: str) -> None:
        self._message = line
        if self._notify is not None:
            self._notify(line)
