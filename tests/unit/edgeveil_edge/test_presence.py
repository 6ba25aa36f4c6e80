"""When a device comes and goes: once in an interval at most, by its conditions and its owner."""

import asyncio

import pytest

from edgeveil.protocol import effects as fx
from edgeveil_edge.presence import Presence

INTERVAL_S = 900.0


class Course:
    """Presence over made-up time: at each look the next of `found`, then it ends."""

    def __init__(self, found, moments):
        self.found, self.moments = iter(found), iter(moments)
        self.now_s, self.changes, self.looks = 0.0, [], []
        self.presence = Presence(
            self.look, self.post, lambda: next(self.moments), INTERVAL_S, self.sleep
        )

    def look(self):
        self.looks.append(self.now_s)
        return next(self.found)

    def post(self, event):
        self.changes.append((self.now_s, event))

    async def sleep(self, seconds):
        self.now_s += seconds

    def play(self):
        with pytest.raises(RuntimeError, match="StopIteration"):
            asyncio.run(self.presence.run())
        return self.changes


def test_a_change_comes_at_the_drawn_moment_of_an_interval_and_only_then():
    met, broken = [], ["charging: no"]
    course = Course([met, broken, broken, met], [0.5, 0.25, 0.75, 0.0])
    assert course.play() == [
        (INTERVAL_S + 225.0, fx.Command("leave")),
        (3 * INTERVAL_S, fx.Command("come")),
    ]
    assert course.looks == [450.0, 1125.0, 2475.0, 2700.0]


def test_the_owner_s_pause_counts_as_a_condition():
    course = Course([[]], [0.5])
    course.presence.paused = True
    assert course.play() == [(450.0, fx.Command("leave"))]
    assert course.presence.unmet == ()


def test_a_device_that_starts_without_its_conditions_never_comes_first():
    course = Course([["idle: no"]], [])
    asyncio.run(course.presence.settle())
    assert course.changes == [(0.0, fx.Command("leave"))]
    assert course.presence.unmet == ("idle: no",)
