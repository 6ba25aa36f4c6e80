"""What a runtime and its host show to Prometheus."""

import asyncio
import logging
import time
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Need, encode
from edgeveil.transport import runtime as runtime_module
from edgeveil.transport.metrics import (
    REASONS,
    Linked,
    Metrics,
    bounded,
)
from edgeveil.transport.runtime import Runtime


def samples(metrics):
    """(name, first label) -> value, through Prometheus' own parser."""
    page = metrics.shown()
    assert page.content_type.startswith("text/plain; version=")
    families = text_string_to_metric_families(page.body.decode())
    return {(s.name, "".join(s.labels.values())): s.value for f in families for s in f.samples}


class Quiet:
    """A machine that does nothing."""

    at = None

    def handle(self, event, now_s):
        return []


@dataclass(frozen=True)
class SealThing:
    fails: bool = False


class Host:
    def store(self, item):
        if item == "bad":
            raise OSError

    def together(self):
        return nullcontext()

    def perform(self, task):
        if task == SealThing(True):
            raise ProtocolError("no_good")
        return "result"

    def report(self, report): ...


def test_reasons_from_outside_stay_few_and_of_known_form():
    counts = {"forged": 3, "Über\nlong": 2, "x" * 50: 1, **{f"r{n}": 1 for n in range(1000)}}
    shown = bounded(counts)
    assert shown["forged"] == 3
    assert len(shown) <= REASONS + 1
    assert sum(shown.values()) == sum(counts.values())


def test_the_inbox_and_refusals_are_shown():
    async def body():
        async def unsent(_to, _frame): ...

        runtime = Runtime(Quiet(), Host(), unsent, None, logging.getLogger("edgeveil.test"), 4096)
        metrics = Metrics()
        metrics.registry.register(Linked(runtime, {}))
        frame = encode(Need(b"b" * 32, (1,)))
        await runtime.receive(fx.CloudAddress(), frame)
        await runtime.receive(fx.CloudAddress(), frame)
        await runtime.receive(fx.CloudAddress(), b"nonsense")
        assert not runtime.takes(None, frame)
        assert (runtime.waiting_events, runtime.waiting_bytes) == (2, 2 * len(frame))
        return metrics

    found = samples(asyncio.run(body()))
    assert found["edgeveil_inbox_events", ""] == 2
    assert found["edgeveil_inbox_bytes", ""] > 60
    refused = {k[1]: v for k, v in found.items() if k[0] == "edgeveil_refused_total"}
    assert refused.pop("foreign_topic") == 1
    assert sum(refused.values()) == 1
    assert refused["forged"] == 0  # the first one is an increase


@asynccontextmanager
async def fed(machine, publish):
    runtime = Runtime(machine, Host(), publish, None, logging.getLogger("edgeveil.test"), 4096)
    assert not runtime.turns  # nobody feeds it yet
    feeding = asyncio.create_task(runtime.run())
    yield runtime
    feeding.cancel()
    await asyncio.wait([feeding])
    assert not runtime.turns


class Sends(Quiet):
    def __init__(self, times):
        self._times = times

    def handle(self, event, now_s):
        return [fx.Send(fx.CloudAddress(), Need(b"b" * 32, (1,)))] * self._times


async def test_a_step_that_does_not_end_is_told(monkeypatch):
    monkeypatch.setattr(runtime_module, "STUCK_S", 0.05)
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def stuck(_to, _frame):
        begun.set()
        await goes_on.wait()

    async with fed(Sends(1), stuck) as runtime:
        runtime.post(fx.Command("go"))
        await begun.wait()
        assert runtime.turns
        await asyncio.sleep(0.1)
        assert not runtime.turns
        goes_on.set()
        await asyncio.sleep(0.01)
        assert runtime.turns


async def test_a_loop_that_is_blocked_is_told_and_a_slow_link_is_not(monkeypatch):
    monkeypatch.setattr(runtime_module, "STUCK_S", 0.05)
    done, turned = asyncio.Event(), []

    async def slowly(_to, _frame):
        turned.append(runtime.turns)
        runtime.post(fx.Command("waits"))
        await asyncio.sleep(0.03)
        if len(turned) == 4:
            done.set()

    async with fed(Sends(4), slowly) as runtime:
        runtime.post(fx.Command("go"))
        await done.wait()
        assert turned == [True] * 4
    async with fed(Quiet(), slowly) as runtime:
        await asyncio.sleep(0.01)
        assert runtime.turns
        time.sleep(0.1)  # as another thread sees it
        assert not runtime.turns
        await asyncio.sleep(0.01)
        assert runtime.turns
