"""The memory transport: the same frames and rules, in virtual time."""

from __future__ import annotations

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Need, encode
from edgeveil.transport.memory import MemoryNet

A, B, C = fx.DeviceAddress("a" * 16), fx.DeviceAddress("b" * 16), fx.DeviceAddress("c" * 16)


def need(number):
    return Need(b"b" * 32, (number,))


class Box:
    """A machine with its host: answers as told, notes what it saw and when."""

    def __init__(self, answer=lambda event: []):
        self.seen = []
        self.stored = []
        self.reports = []
        self._answer = answer

    def handle(self, event, now_s):
        self.seen.append((now_s, event))
        return self._answer(event)

    def store(self, item):
        self.stored.append(item)

    def perform(self, task):
        if task == "bad":
            raise KeyError("secret text")
        return "done"

    def report(self, report):
        self.reports.append(report.what)

    def numbers(self):
        events = [event for _, event in self.seen if isinstance(event, fx.MessageReceived)]
        return [event.message.indices[0] for event in events if isinstance(event.message, Need)]


def on(command, *effects):
    return lambda event: list(effects) if event == fx.Command(command) else []


def net(boxes, **options):
    result = MemoryNet(**options)
    for address, box in boxes.items():
        result.add(address, box, box)
    return result


def play(world, address, command="go"):
    world.post(world.nodes[address], fx.Command(command))
    assert not world.run(lambda: False)


def test_messages_arrive_in_order_and_all_devices_hear_a_broadcast():
    sends = [fx.Send(fx.AllDevices(), need(1)), fx.Send(A, need(2)), fx.Send(A, need(3))]
    proxy, a, b = Box(on("go", *sends)), Box(), Box()
    world = net({fx.ProxyAddress(): proxy, A: a, B: b})
    play(world, fx.ProxyAddress())
    assert a.numbers() == [1, 2, 3]
    assert b.numbers() == [1]
    assert proxy.numbers() == []
    assert a.seen[0][1] == fx.MessageReceived(fx.ProxyAddress(), need(1))


def test_faults_lose_repeat_and_delay_frames():
    delays = {1: [], 2: [0.001, 0.002], 3: [5.0], 4: [0.001]}

    def faults(_sender, _to, frame):
        return next(d for n, d in delays.items() if frame == encode(need(n)))

    sends = [fx.Send(A, need(n)) for n in delays]
    a = Box()
    world = net({fx.ProxyAddress(): Box(on("go", *sends)), A: a}, faults=faults)
    play(world, fx.ProxyAddress())
    assert a.numbers() == [2, 4, 2, 3]
    assert a.seen[-1][0] == 5.0


def test_timers_are_replaced_cancelled_and_fire_once():
    effects = [
        fx.SetTimer("a", 1.0),
        fx.SetTimer("b", 2.0),
        fx.SetTimer("a", 3.0),
        fx.CancelTimer("b"),
        fx.CancelTimer("none"),
    ]
    a = Box(on("go", *effects))
    play(net({A: a}), A)
    assert a.seen == [(0.0, fx.Command("go")), (3.0, fx.Timer("a"))]


def test_a_node_that_is_down_hears_nothing_and_its_timers_pass():
    a = Box(on("go", fx.SetTimer("a", 1.0)))
    world = net({A: a, fx.ProxyAddress(): Box(on("go", fx.Send(A, need(1))))})
    world.post(world.nodes[A], fx.Command("go"))
    world.run(lambda: bool(a.seen))
    world.nodes[A].up = False
    play(world, fx.ProxyAddress())
    assert [event for _, event in a.seen] == [fx.Command("go")]


def test_work_takes_its_virtual_time_and_a_failure_is_an_outcome():
    effects = [fx.Work("good"), fx.Work("bad"), fx.Persist(1), fx.Refuse("x"), fx.Report("r")]
    a = Box(on("go", *effects))
    world = net({A: a}, work_s=lambda task: 2.0 if task == "good" else 1.0)
    play(world, A)
    (first, bad), (second, good) = a.seen[1:]
    assert (first, second, good) == (1.0, 2.0, fx.WorkDone("good", "done"))
    assert isinstance(bad, fx.WorkDone)
    assert isinstance(bad.result, fx.WorkFailed)
    assert "secret text" not in bad.result.reason
    assert (a.stored, a.reports, world.nodes[A].refused) == ([1], ["r"], {"x": 1})
