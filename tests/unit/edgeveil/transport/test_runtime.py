"""The runtime: effects in order, work that fails, refusals, timers and the end."""

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from unittest.mock import Mock, call

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgeveil.errors import ProtocolError
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import BlobPart, Need, decode, encode
from edgeveil.transport import runtime as runtime_module
from edgeveil.transport.link import LinkDown
from edgeveil.transport.metrics import REASONS, Linked, Metrics, bounded
from edgeveil.transport.runtime import INBOX_EVENTS, Refusals, Runtime

LOG = logging.getLogger("edgeveil.test")
LIMIT = 256
NEED = Need(b"b" * 32, (1, 2))
SEND = fx.Send(fx.ProxyAddress(), NEED)


class Script:
    """A machine that answers each event by `answer` and records it."""

    at = None

    def __init__(self, answer=lambda event: []):
        self.seen, self._answer = [], answer

    def handle(self, event, now_s):
        self.seen.append(event)
        return self._answer(event)


class Diary:
    """A host and a link that write down what happened, in order."""

    down = None

    def __init__(self, work=lambda task: task):
        self.lines, self.perform = [], work

    def store(self, item):
        self.lines.append(("store", item))

    @contextmanager
    def together(self):
        yield
        self.lines.append("durable")

    def report(self, report):
        self.lines.append(("report", report.kind))

    async def publish(self, to, frame):
        await asyncio.sleep(0)  # as a real link, which lets others run
        if self.down is not None:
            raise self.down
        self.lines.append(("sent", to, decode(frame, LIMIT)))


@asynccontextmanager
async def fed(script, diary, executor=None, **more):
    """A runtime that is fed, and ends as in a process."""
    with ThreadPoolExecutor(1) as one:
        runtime = Runtime(script, diary, diary.publish, executor or one, LOG, LIMIT, **more)
        assert not runtime.turns  # nobody feeds it yet
        feeding = asyncio.create_task(runtime.run())
        try:
            async with asyncio.timeout(20):
                yield runtime
        finally:
            feeding.cancel()
            await asyncio.wait([feeding])
            assert not runtime.turns


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def started(effects):
    return lambda event: effects if event == fx.Command("start") else []


@pytest.mark.parametrize("full", [False, True])
async def test_what_is_stored_is_stored_before_anything_is_sent(full):
    effects = [fx.Persist("a"), SEND, fx.Report("r"), fx.Persist("b"), SEND]
    script, diary = Script(started(effects)), Diary()
    sent = ("sent", fx.ProxyAddress(), NEED)
    if full:
        diary.store = Mock(side_effect=OSError("disk full"))
        runtime = Runtime(script, diary, diary.publish, None, LOG, LIMIT)
        runtime.post(fx.Command("start"))
        with pytest.raises(OSError, match="disk full"):
            await asyncio.wait_for(runtime.run(), 20)
        assert diary.lines == []
        return
    async with fed(script, diary) as runtime:
        runtime.post(fx.Command("start"))
        await until(lambda: diary.lines[-2:] == [("report", "r"), sent])
    stored = [("store", "a"), ("store", "b"), "durable"]
    assert diary.lines == [*stored, sent, ("report", "r"), sent]


async def test_an_unexpected_error_tells_type_and_place_but_no_data(caplog):
    def broken(task):
        raise ValueError("record 17 is [0.25, 0.75]")

    script = Script(started([fx.Work("task")]))
    async with fed(script, Diary(broken)) as runtime:
        runtime.post(fx.Command("start"))
        await until(lambda: len(script.seen) == 2)
    reason = script.seen[1].result.reason
    assert "ValueError" in reason and "broken" in reason  # the function
    (record,) = caplog.records
    assert "record 17" not in reason + str(record.__dict__)
    assert record.exc_info is None
    assert (record.error, record.levelname) == ("ValueError", "ERROR")


FRAMES = {
    "unknown_version": [b"", b"\x02" + encode(NEED)[1:]],
    "malformed": [encode(NEED)[:-1], encode(NEED) + b"\0", b"\x01\xc1"],
    "oversized": [encode(NEED) + bytes(LIMIT)],
    "foreign_topic": [],
}


async def test_bad_frames_are_counted_by_reason_and_never_raise():
    """Prometheus reads these counts, and how much waits in the inbox."""
    script, diary, metrics = Script(), Diary(), Metrics()
    runtime = Runtime(script, diary, diary.publish, None, LOG, LIMIT)
    metrics.registry.register(Linked(runtime, {}))
    for frame in (frame for frames in FRAMES.values() for frame in frames):
        await runtime.receive(fx.CloudAddress(), frame)
    assert not runtime.takes(None, encode(NEED))
    await runtime.receive(fx.CloudAddress(), encode(NEED))
    counted = {reason: len(frames) for reason, frames in FRAMES.items()} | {"foreign_topic": 1}
    assert runtime.refusals.counts == counted
    page = metrics.shown()
    assert page.content_type.startswith("text/plain; version=")
    families = text_string_to_metric_families(page.body.decode())
    found = {(s.name, *s.labels.values()): s.value for f in families for s in f.samples}
    assert found["edgeveil_inbox_events",] == 1
    assert found["edgeveil_inbox_bytes",] == len(encode(NEED))
    shown = {name[1]: n for name, n in found.items() if name[0] == "edgeveil_refused_total"}
    assert {reason: n for reason, n in shown.items() if n} == counted
    assert shown["forged"] == 0  # the first one is an increase
    feeding = asyncio.create_task(runtime.run())
    await until(lambda: script.seen)
    feeding.cancel()
    assert script.seen == [fx.MessageReceived(fx.CloudAddress(), NEED)]


async def test_a_lost_link_and_a_refused_packet_are_counted_and_the_rest_goes_on():
    script, diary = Script(started([SEND, fx.Persist("after")])), Diary()
    async with fed(script, diary) as runtime:
        for down in (LinkDown("gone"), ProtocolError("oversized_packet")):
            diary.down = down
            runtime.post(fx.Command("start"))
            await until(lambda: diary.lines)  # what comes after the failed publication
            diary.lines.clear()
    assert runtime.refusals.counts == {"link_down": 1, "oversized_packet": 1}


async def test_a_timer_of_the_same_name_is_replaced_and_a_cancelled_one_is_silent():
    timers = {
        "start": {"a": 0.4, "b": 0.4, "c": 0.01},
        "again": {"a": 0.8, "between": 0.6, "b": None, "unknown": None},
        "once more": {"a": 0.01},
    }

    def answer(event):
        found = timers.get(getattr(event, "request", None), {}).items()
        return [fx.CancelTimer(k) if s is None else fx.SetTimer(k, s) for k, s in found]

    script = Script(answer)

    def fired():
        return [event.name for event in script.seen if isinstance(event, fx.Timer)]

    async with fed(script, Diary()) as runtime:
        runtime.post(fx.Command("start"))
        runtime.post(fx.Command("again"))
        await until(lambda: fired().count("a") == 1 and "between" in fired())
        runtime.post(fx.Command("once more"))  # one that has run out may be set again
        await until(lambda: fired().count("a") == 2)
    assert fired() == ["c", "between", "a", "a"]


async def test_work_of_one_lane_holds_up_none_of_another():
    script = Script(started([fx.Work("slow"), fx.Work("quick")]))
    ended = threading.Event()

    def perform(task):
        return ended.wait(20) if task == "slow" else task

    with ThreadPoolExecutor(1) as slow, ThreadPoolExecutor(1) as others:
        lane = {"slow": slow, "quick": others}.__getitem__
        async with fed(script, Diary(perform), lane) as runtime:
            runtime.post(fx.Command("start"))
            await until(lambda: len(script.seen) == 2)
            ended.set()
            await until(lambda: len(script.seen) == 3)
    assert script.seen[1:] == [fx.WorkDone("quick", "quick"), fx.WorkDone("slow", True)]


LARGE = BlobPart(b"b" * 32, 0, 0, bytes(63_900))


@pytest.mark.parametrize(
    ("message", "room"),
    [(NEED, INBOX_EVENTS), (LARGE, 16 * 1024 * 1024 // len(encode(LARGE)))],
    ids=["many", "few large ones"],
)
async def test_a_machine_that_is_far_behind_makes_the_link_wait(message, room):
    script, diary = Script(), Diary()
    runtime = Runtime(script, diary, diary.publish, None, LOG, 65536)
    frame = encode(message)
    for _ in range(room):
        await runtime.receive(fx.CloudAddress(), frame)
    late = asyncio.create_task(runtime.receive(fx.CloudAddress(), frame))
    await asyncio.sleep(0.02)
    assert not late.done()
    assert (runtime.waiting_events, runtime.waiting_bytes) == (room, room * len(frame))
    runtime.post(fx.Command("own"))  # the process itself never waits
    feeding = asyncio.create_task(runtime.run())
    await asyncio.wait_for(late, 20)
    await until(lambda: len(script.seen) == room + 2)
    feeding.cancel()


def test_a_reason_is_logged_once_a_minute_and_always_counted(caplog):
    now = [0.0]
    refusals = Refusals(LOG, lambda: now[0])
    with caplog.at_level(logging.WARNING, LOG.name):
        for now[0] in (0.0, 1.0, 59.9, 60.0, 61.0):
            refusals.add("forged")
        refusals.add("malformed")
    logged = [(r.reason, r.total) for r in caplog.records]
    assert logged == [("forged", 1), ("forged", 4), ("malformed", 1)]
    assert refusals.counts == {"forged": 5, "malformed": 1}


async def test_the_gate_refuses_frames_unread_and_learns_whose_were_refused_later():
    gate, sender, refused = Mock(), fx.DeviceAddress("e"), fx.DeviceAddress("d")
    gate.refusal.side_effect = lambda who, _frame: "rate" if who == refused else None
    script = Script(lambda event: [fx.Refuse("forged")])
    runtime = Runtime(script, Diary(), None, None, LOG, LIMIT, gate=gate)
    for frame in (encode(NEED), b"nonsense", bytes(LIMIT + 1)):
        assert not runtime.takes(refused, frame)
    assert runtime.takes(sender, encode(NEED)) and not gate.refused.called
    await runtime.receive(sender, b"nonsense")
    await runtime.step(fx.MessageReceived(sender, NEED))
    assert runtime.refusals.counts == {"rate": 3, "unknown_version": 1, "forged": 1}
    assert gate.refused.mock_calls == [call(sender, "unknown_version"), call(sender, "forged")]


async def test_the_end_waits_for_a_write_that_has_begun():
    diary, begun, go_on = Diary(), threading.Event(), threading.Event()

    def store(item):
        begun.set()
        assert go_on.wait(20)
        diary.lines.append(("store", item))

    diary.store = store
    script = Script(started([fx.Persist("a"), SEND]))
    runtime = Runtime(script, diary, diary.publish, None, LOG, LIMIT)
    runtime.post(fx.Command("start"))
    running = asyncio.ensure_future(runtime.run())
    await until(begun.is_set)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert diary.lines == [("store", "a"), "durable"], "what rests on it is not logged any more"


async def test_the_machine_goes_on_while_the_disk_is_written_and_its_words_wait():
    diary, second = Diary(), threading.Event()

    def answer(event):
        if event.request == 2:
            second.set()
        return [fx.Persist(event.request), fx.Report(event.request)]

    def store(item):
        assert second.wait(20)
        diary.lines.append(("store", item))

    diary.store, script = store, Script(answer)
    async with fed(script, diary) as runtime:
        runtime.post(fx.Command(1))
        await until(lambda: len(script.seen) == 1)  # so that they are no group
        runtime.post(fx.Command(2))
        await until(lambda: len(diary.lines) == 6)
    assert diary.lines == [
        *(("store", 1), "durable", ("report", 1)),
        *(("store", 2), "durable", ("report", 2)),
    ]


async def test_a_step_that_does_not_end_and_a_blocked_loop_are_reported_and_a_slow_link_is_not(
    monkeypatch,
):
    monkeypatch.setattr(runtime_module, "STUCK_S", 0.05)
    diary, pause, turned = Diary(), [0.03] * 4 + [0.1], []

    async def slowly(_to, _frame):
        turned.append(runtime.turns)
        await asyncio.sleep(pause.pop(0))
        turned.append(runtime.turns)

    diary.publish = slowly
    async with fed(Script(started([SEND] * 5)), diary) as runtime:
        runtime.post(fx.Command("start"))
        await until(lambda: not pause)
        await asyncio.sleep(0.08)
        assert not runtime.turns
        await until(lambda: runtime.turns)
        assert turned == [*[True] * 9, False]
        time.sleep(0.1)  # as another thread sees it
        assert not runtime.turns
        await until(lambda: runtime.turns)


def test_reasons_from_outside_stay_few_and_of_known_form():
    counts = {"forged": 3, "Über\nlong": 2, "x" * 50: 1, **{f"r{n}": 1 for n in range(1000)}}
    shown = bounded(counts)
    assert shown["forged"] == 3
    assert len(shown) <= REASONS + 1
    assert sum(shown.values()) == sum(counts.values())
