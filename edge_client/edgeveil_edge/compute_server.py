"""The computing process's half: devices, jobs, and one question after the other."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection

from edgeveil import plugins
from edgeveil.errors import EdgeVeilError
from edgeveil.jobs import compile_canonical
from edgeveil.parts.features import match_backbones
from edgeveil.parts.methods import trains_model
from edgeveil.privacy.derived import DerivedRandom
from edgeveil.protocol.sealed import RoundPackage, unpack_tensors
from edgeveil.sites.edge import EdgeSite
from edgeveil_edge import compute_wire as wire
from edgeveil_edge.computation import Computation, TaughtJob
from edgeveil_edge.computer import Computer, failure
from edgeveil_edge.trial import tried


class Server:
    """Each device's records and sessions, and each job's plan.

    `learn` fills it where nothing is computed; `work` serves questions from what a fork inherited.
    """

    def __init__(self) -> None:
        plugins.admit(())  # it computes for owners, and takes in what they allow
        self._connection: Connection | None = None
        self._jobs: dict[bytes, TaughtJob] = {}
        self._devices: dict[str, tuple[EdgeSite, Computer]] = {}

    @property
    def knows_no_job(self) -> bool:
        """Whether every job has been forgotten."""
        return not self._jobs

    def teaches_job(self, raw: bytes) -> bool:
        """Whether this request is about a job, so that libraries may be loaded for it."""
        return isinstance(wire.decode_request(raw), wire.Know)

    def learn(self, raw: bytes) -> bytes:
        """Take in what workers should know; the reply says that it is there, or why not."""
        request = wire.decode_request(raw)
        try:
            match request:
                case wire.Know():
                    self._know(request)
                case wire.Meet() if request.device not in self._devices:
                    site = EdgeSite.model_validate_json(request.site)
                    plugins.admit(site.policy.allowed_plugins)
                    self._devices[request.device] = site, Computer(site, request.split_key)
                case wire.Read():
                    with suppress(Exception):  # it is told with the first question
                        self._devices[request.device][1].records(request.share)
                case wire.Forget():
                    self._jobs.pop(request.digest, None)
                case wire.Load():
                    _load(*request.modules)
        except Exception as error:
            return wire.encode(wire.refused(0, error))
        return wire.encode(wire.Taken())

    def work(self, connection: Connection) -> None:
        """Answer one question after the other, until the other end is closed."""
        self._connection = connection
        with suppress(EOFError, OSError):
            while True:
                request = wire.decode_request(connection.recv_bytes())
                if isinstance(request, wire.Try):
                    self._try(request)
                elif isinstance(request, wire.AskAnswer):
                    self._answer(request)

    def _know(self, request: wire.Know) -> None:
        plugins.admit(plugins.Allowance(*one) for one in request.plugins)
        plan = compile_canonical(request.canonical)
        plan = plan.with_artifacts(match_backbones(plan.job.features, request.backbones))
        self._jobs[request.digest] = TaughtJob(plan, request.canonical, request.graph)
        if request.trains and trains_model(plan.job.train.method):
            _load("torch", "torch.func")
        if any(one.infer for one in plan.exchanges):
            _load("onnxruntime")

    def _try(self, request: wire.Try) -> None:
        site, _ = self._devices[request.device]
        job, before = self._jobs[request.digest], set(sys.modules)
        try:
            needed_s, refused = tried(job, site, trains=request.trains), ""
        except EdgeVeilError as error:
            needed_s, refused = 0.0, str(error)
        except Exception as error:
            needed_s, refused = 0.0, failure(error)
        self._send(wire.Tried(needed_s, refused, tuple(sorted(set(sys.modules) - before))))

    def _answer(self, request: wire.AskAnswer) -> None:
        """The answer of a device without records first: it stands where the other comes too late.

        Then each half by itself, as soon as it is there.
        """
        _, computer = self._devices[request.device]
        number = request.number
        try:
            one = self._computation(request)
            computer.prepare(one)
            order = computer.order(one)
            blank = {half: wire.part_of(computer.blank(one, half)) for half in order}
        except Exception as error:  # no record was read: it fails alike for all
            self._send(wire.refused(number, error))
            return
        self._send(wire.Parts(number, blank))
        try:
            records = computer.halves(one.job.plan)
        except Exception as error:
            self._send(wire.refused(number, error))
            return
        for half in order:
            try:
                found, without = wire.part_of(computer.compute(one, half, *records)), ""
            except Exception as error:  # the records made it: it must not show
                found, without = blank[half], failure(error)
            self._send(wire.Parts(number, {half: found}, without))

    def _computation(self, request: wire.AskAnswer) -> Computation:
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
        if self._connection is None:
            raise OSError("nobody asked")
        self._connection.send_bytes(wire.encode(reply))


def _load(*modules: str) -> None:
    """Import them ahead of the workers; who lacks one is told when it is used."""
    for module in modules:
        with suppress(Exception):
            import_module(module)
