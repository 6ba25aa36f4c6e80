"""The owner's conditions: what holds, by what the box says of itself."""

import asyncio
import os
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from pydantic import ValidationError

from edgeveil.config.edge import Conditions
from edgeveil.protocol import effects as fx
from edgeveil_edge import conditions
from edgeveil_edge.conditions import BoxSensors, Presence, unmet, within

GIB = 1 << 30
DISK = Path("/anywhere")


WELL = SimpleNamespace(
    battery=lambda: (80.0, True),
    in_use=lambda: False,
    metered=lambda _patterns: False,
    storage_bytes=lambda _folder: (50 * GIB, 100 * GIB),
    temperature_celsius=lambda: 40.0,
    load=lambda: 0.1,
    minute_of_day=lambda: 12 * 60,
    holds=lambda _command, _timeout_s: True,
)


def box(**found):
    """A box that is well but for what the test wants to be found."""
    said = {name: lambda *_, value=value: value for name, value in found.items()}
    return SimpleNamespace(**{**vars(WELL), **said})


DEGREES = {"max_temperature_celsius": 70}


@pytest.mark.parametrize(
    ("asked", "bad", "said"),
    [
        ({"charging": True}, {"battery": (80.0, False)}, "the box runs on battery"),
        ({"battery_not_low": True}, {"battery": (15.0, False)}, "15 % are left"),
        ({"idle": True}, {"in_use": True}, "somebody uses the box"),
        ({"unmetered": True}, {"metered": True}, "the network is metered"),
        ({"unmetered": True}, {"metered": None}, "no network is found"),
        ({"storage_not_low": True}, {"storage_bytes": (499 << 20, 100 * GIB)}, "499 MiB are free"),
        (DEGREES, {"temperature_celsius": 71.0}, "71 °C are above 70 °C"),
        (DEGREES, {"temperature_celsius": None}, "the box has no temperature sensor"),
        ({"max_load": 0.5}, {"load": 0.51}, "0.51 per core is above 0.5"),
        ({"between": ("22:00-06:00",)}, {"minute_of_day": 1319}, "it is none of 22:00-06:00"),
        ({"command": ("/bin/ask",)}, {"holds": False}, "/bin/ask says no"),
    ],
)
def test_a_condition_that_does_not_hold_is_named_and_counts_only_where_asked_for(asked, bad, said):
    found = box(**{"minute_of_day": 23 * 60, **bad})
    wanted = Conditions(**asked)
    assert unmet(wanted, DISK, found) == [f"{next(iter(asked))}: {said}"]
    assert unmet(Conditions(), DISK, found) == []
    assert unmet(wanted, DISK, box(minute_of_day=23 * 60)) == []


@pytest.mark.parametrize(
    ("minute", "holds"),
    [(22 * 60 - 1, False), (22 * 60, True), (0, True), (6 * 60 - 1, True), (6 * 60, False)],
)
def test_a_window_may_pass_midnight_and_its_end_is_outside(minute, holds):
    assert within(("22:00-06:00",), minute) is holds


@pytest.mark.parametrize("window", ["22-6", "25:00-06:00", "22:00-22:00", "22:60-23:00", ""])
def test_what_is_no_window_is_refused(window):
    with pytest.raises(ValidationError):
        Conditions(between=(window,))


def test_a_command_answers_by_its_exit_code_within_its_time(tmp_path):
    sensors, stuck = BoxSensors(), tmp_path / "fifo"
    os.mkfifo(stuck)
    python = (sys.executable, "-c")
    assert sensors.holds((*python, "raise SystemExit(0)"), 60)
    assert not sensors.holds((*python, "raise SystemExit(3)"), 60)
    assert not sensors.holds((*python, f"open({str(stuck)!r})"), 0.2)  # nobody ever writes there
    assert not sensors.holds((str(tmp_path / "none"),), 60)


@pytest.mark.parametrize(
    ("word", "metered"),
    [("1", True), ("2", False), ("3", True), ("4", False), ("0", True), ("", True)],
)
def test_network_manager_is_believed_and_else_the_interface_s_name(monkeypatch, word, metered):
    monkeypatch.setattr(conditions, "_bus", lambda *_property: word)
    monkeypatch.setattr(conditions, "_interface_out", lambda: "wwan0")
    assert BoxSensors().metered(("wwan*",)) is metered
    if word in ("", "0"):
        assert BoxSensors().metered(("ppp*",)) is False
        monkeypatch.setattr(conditions, "_interface_out", lambda: None)
        assert BoxSensors().metered(("ppp*",)) is None


def test_somebody_is_there_by_the_idle_hint_or_by_a_terminal_that_was_touched(
    monkeypatch, tmp_path
):
    user = namedtuple("user", "terminal")
    told = {"hint": "false", "users": [user(None)]}
    monkeypatch.setattr(conditions, "_bus", lambda *_property: told["hint"])
    monkeypatch.setattr(psutil, "users", lambda: told["users"])
    assert BoxSensors().in_use()
    told["hint"] = "true"
    assert not BoxSensors().in_use()
    told.update(hint="false", users=[])
    assert not BoxSensors().in_use()
    terminal = tmp_path / "tty"
    terminal.touch()
    told.update(hint="", users=[user(str(terminal))])
    assert BoxSensors().in_use()
    os.utime(terminal, (1.0, 1.0))
    assert not BoxSensors().in_use()


def test_a_box_that_cannot_be_asked_does_not_hold_a_condition():
    def load():
        raise FileNotFoundError(2, "No such file or directory", "/proc/loadavg")

    bare = SimpleNamespace(**{**vars(WELL), "load": load})
    assert unmet(Conditions(), DISK, bare) == []
    assert "cannot be measured: /proc/loadavg" in unmet(Conditions(max_load=1), DISK, bare)[0]


class Course:
    """Presence over made-up time: at each look the next of `found`, then it ends."""

    def __init__(self, found, moments):
        self.found, self.moments = iter(found), iter(moments)
        self.now_s, self.changes, self.looks = 0.0, [], []
        self.presence = Presence(self.look, self.post, self.moments.__next__, self.sleep)

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
        (900.0 + 225.0, fx.Command("leave")),
        (3 * 900.0, fx.Command("come")),
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
