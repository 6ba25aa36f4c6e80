"""Every line of a process names the job and round of its machine, from threads too."""

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from edgeveil import logs
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import RoundId
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

    at = None

    def handle(self, event, now_s):
        match event:
            case fx.Command(what=int(number)):
                self.at = RoundId(JOB, number, 1)
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


async def unsent(_to, _frame):
    raise AssertionError


async def test_lines_name_job_and_round_until_the_jobs_end(capsys):
    logs.setup("info", "json")
    LOG.setLevel("INFO")
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
