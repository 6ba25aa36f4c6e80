"""Every line of a process names the job and round of its machine, from threads too."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from edgeveil import logs
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import ExchangeId
from edgeveil.transport.runtime import Runtime

LOG = logging.getLogger("edgeveil.test")
JOB = bytes(range(16))


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


class Course:
    """Is told by command where it is; reports, works, and ends on None."""

    at: ExchangeId | None = None

    def handle(self, event, now_s):
        match event:
            case fx.Command(what=int(number)):
                self.at = ExchangeId(JOB, number, 1)
                return [fx.Report("begun"), fx.Work("task")]
            case fx.Command():
                self.at = None
                return [fx.Report("ended"), fx.Work("later")]
        return [fx.Report("done")]


class Loud:
    """A host that logs all that it does."""

    def __init__(self):
        self.done = 0  # tasks

    def store(self, item): ...

    def together(self):
        return nullcontext()

    def perform(self, task):
        LOG.info(str(task))
        return

    def report(self, report):
        LOG.info(report.what)
        self.done += report.what == "done"


@dataclass(frozen=True)
class Told:
    """The head of a broadcast, and the task that is about it."""

    at: ExchangeId

    @property
    def manifest(self):
        return self


class Several(Course):
    """Works for more than one job, and is about the one that it heard of last."""

    def handle(self, event, now_s):
        match event:
            case fx.Command(what=int(number)):
                self.at = ExchangeId(bytes((number,)) * 16, number, 1)
                return [fx.Work(Told(self.at))]
        return [fx.Report("done")]


async def unsent(_to, _frame):
    raise AssertionError


def test_lines_name_job_and_round_until_the_jobs_end(capsys):
    logs.setup("info", "json")
    LOG.setLevel("INFO")

    async def body():
        with ThreadPoolExecutor(1) as executor:
            runtime = Runtime(Course(), host := Loud(), unsent, executor, LOG, 256)
            feeding = asyncio.create_task(runtime.run())
            for number, command in enumerate((1, 2, "end"), start=1):
                runtime.post(fx.Command(command))
                while host.done < number:
                    await asyncio.sleep(0)
            feeding.cancel()
            await asyncio.wait([feeding])
            LOG.info("outside")

    asyncio.run(body())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    job = "000102030405"
    assert [(line["event"], line["job"], line["round"]) for line in lines] == [
        ("begun", job, 1),
        ("task", job, 1),
        ("done", job, 1),
        ("begun", job, 2),
        ("task", job, 2),
        ("done", job, 2),
        ("ended", job, 2),
        ("later", None, None),
        ("done", None, None),
        ("outside", None, None),
    ]


def test_work_is_logged_under_its_own_job_whatever_the_machine_heard_since(capsys):
    logs.setup("info", "json")
    LOG.setLevel("INFO")

    async def body():
        with ThreadPoolExecutor(1) as executor:
            runtime = Runtime(Several(), host := Loud(), unsent, executor, LOG, 256)
            for number in (1, 2):
                runtime.post(fx.Command(number))
            feeding = asyncio.create_task(runtime.run())
            while host.done < 2:
                await asyncio.sleep(0)
            feeding.cancel()
            await asyncio.wait([feeding])

    asyncio.run(body())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    worked = [(line["job"], line["round"]) for line in lines if line["event"].startswith("Told")]
    assert worked == [("010101010101", 1), ("020202020202", 2)]
