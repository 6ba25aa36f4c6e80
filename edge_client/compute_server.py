"""The computing process's half: devices, jobs, and one question after the other."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing.connection import Connection

from edge_client import compute_wire as wire
from edge_client.computation import Computation, TaughtJob
from edge_client.computer import Computer, failure
from edge_client.trial import tried
from fl_core.config import EdgeSite, Job
from fl_core.errors import EdgeVeilError
from fl_core.features import match_backbones
from fl_core.plan import JobPlan
from fl_core.privacy.derived import DerivedRandom
from fl_core.protocol.package import RoundPackage, unpack_tensors


class Server:
    """Keeps each device's records and sessions, and each job's plan."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._jobs: dict[bytes, TaughtJob] = {}
        self._devices: dict[str, tuple[EdgeSite, Computer]] = {}

    def serve(self) -> None:
        """Until the other end is closed."""
        with suppress(EOFError, OSError):
            while True:
                self._handle(wire.decode_request(self._connection.recv_bytes()))

    def _handle(self, request: wire.Request) -> None:
        match request:
            case wire.Know():
                self._know(request)
            case wire.Meet():
                site = EdgeSite.model_validate_json(request.site)
                self._devices[request.device] = site, Computer(site, request.split_key)
            case wire.Forget():
                self._jobs.pop(request.digest, None)
            case wire.Try():
                self._try(request)
            case wire.Read():
                with suppress(Exception):  # it fails again, and is told, with the first question
                    self._devices[request.device][1].records(request.share)
            case wire.Ask():
                self._answer(request)

    def _know(self, request: wire.Know) -> None:
        job = Job.from_canonical(request.canonical)
        plan = JobPlan(job, match_backbones(job.features, request.backbones))
        self._jobs[request.digest] = TaughtJob(plan, request.canonical, request.graph)

    def _try(self, request: wire.Try) -> None:
        site, _ = self._devices[request.device]
        job = self._jobs[request.digest]
        try:
            needed_s, refused = tried(job, site, trains=request.trains), ""
        except EdgeVeilError as error:
            needed_s, refused = 0.0, str(error)
        except Exception as error:
            needed_s, refused = 0.0, failure(error)
        self._send(wire.Tried(needed_s, refused))

    def _answer(self, request: wire.Ask) -> None:
        """The answer of a device without records first: it stands if the other comes too late."""
        _, computer = self._devices[request.device]
        number = request.number
        try:
            one = self._computation(request)
            computer.prepare(one)
            blank = wire.Parts(number, wire.parts_of(computer.blank(one)))
        except Exception as error:  # no record was read: it fails alike for all
            self._send(wire.refused(number, error))
            return
        self._send(blank)
        try:
            records = computer.records(one.job.plan.job.data.evaluation_share)
        except Exception as error:
            self._send(wire.refused(number, error))
            return
        try:
            parts = wire.parts_of(computer.compute(self._computation(request), *records))
        except Exception as error:  # the records made it: it must not show
            self._send(wire.Parts(number, blank.parts, failure(error)))
            return
        self._send(wire.Parts(number, parts))

    def _computation(self, request: wire.Ask) -> Computation:
        """The question, its noise from the beginning."""
        job = self._jobs[request.digest]
        exchange = job.plan.exchange(request.exchange)
        package = RoundPackage(
            exchange.phase, exchange.number, exchange.infer, request.tensors, request.model
        )
        return Computation(
            job,
            exchange,
            package,
            unpack_tensors(request.own),
            request.trains,
            DerivedRandom(request.noise_key),
            allowed_s=request.allowed_s,
        )

    def _send(self, reply: wire.Reply) -> None:
        self._connection.send_bytes(wire.encode(reply))
