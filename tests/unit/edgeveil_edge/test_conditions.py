"""The owner's conditions: what holds, by what the box says of itself."""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgeveil.config.edge import Conditions
from edgeveil.protocol import effects as fx
from edgeveil_edge import conditions
from edgeveil_edge.conditions import BoxSensors, Presence, unmet
from edgeveil_edge.self_check import LEAST_MEMORY_BYTES, BoxFacts, self_check
from tests.unit.edgeveil_edge.edge_kit import site

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


DEGREES, NIGHT = {"max_temperature_celsius": 70}, ("22:00-06:00",)


@pytest.mark.parametrize(
    ("asked", "bad"),
    [
        ({"charging": True}, {"battery": (80.0, False)}),
        ({"battery_not_low": True}, {"battery": (15.0, False)}),
        ({"idle": True}, {"in_use": True}),
        *(({"unmetered": True}, {"metered": bad}) for bad in (True, None)),
        ({"storage_not_low": True}, {"storage_bytes": (499 << 20, 100 * GIB)}),
        *((DEGREES, {"temperature_celsius": bad}) for bad in (71.0, None)),
        ({"max_load": 0.5}, {"load": 0.51}),
        # A window may pass midnight, and its end is outside.
        *(({"between": NIGHT}, {"minute_of_day": bad}) for bad in (22 * 60 - 1, 6 * 60)),
        ({"command": ("/bin/ask",)}, {"holds": False}),
    ],
)
def test_a_condition_that_does_not_hold_is_named_and_counts_only_where_asked_for(asked, bad):
    (told,) = unmet(Conditions(**asked), DISK, box(**bad))
    assert told.startswith(f"{next(iter(asked))}: ")
    assert unmet(Conditions(), DISK, box(**bad)) == []
    for good in (22 * 60, 0, 6 * 60 - 1):
        assert unmet(Conditions(**asked), DISK, box(minute_of_day=good)) == []


def test_a_command_answers_by_its_exit_code_within_its_time(tmp_path):
    sensors, stuck = BoxSensors(), tmp_path / "fifo"
    os.mkfifo(stuck)
    python = (sys.executable, "-c")
    assert sensors.holds((*python, "raise SystemExit(0)"), 60)
    assert not sensors.holds((*python, "raise SystemExit(3)"), 60)
    assert not sensors.holds((*python, f"open({str(stuck)!r})"), 0.2)  # nobody ever writes there
    assert not sensors.holds((str(tmp_path / "none"),), 60)


def test_network_manager_is_believed_and_else_the_interface_s_name(monkeypatch):
    for word, out, metered in (
        *(("1", "wwan0", True), ("2", "wwan0", False), ("3", "eth0", True), ("4", "wwan0", False)),
        *((word, *found) for word in ("0", "") for found in (("wwan0", True), ("eth0", False))),
        ("", None, None),
    ):
        monkeypatch.setattr(conditions, "_bus", lambda *_property, word=word: word)
        monkeypatch.setattr(conditions, "_interface_out", lambda out=out: out)
        assert BoxSensors().metered(("wwan*",)) is metered


def test_somebody_is_there_by_the_idle_hint_or_by_a_terminal_that_was_touched(
    monkeypatch, tmp_path
):
    fresh, old = tmp_path / "tty1", tmp_path / "tty2"
    fresh.touch()
    old.touch()
    os.utime(old, (1.0, 1.0))
    for hint, terminals, used in (
        *(("false", [None], True), ("true", [None], False), ("false", [], False)),
        *(("", [fresh], True), ("", [old], False)),
    ):
        users = [SimpleNamespace(terminal=one and str(one)) for one in terminals]
        monkeypatch.setattr(conditions, "_bus", lambda *_property, hint=hint: hint)
        monkeypatch.setattr(psutil, "users", lambda users=users: users)
        assert BoxSensors().in_use() is used


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
    assert course.play() == [(900.0 + 225.0, fx.Command("leave")), (3 * 900.0, fx.Command("come"))]
    assert course.looks == [450.0, 1125.0, 2475.0, 2700.0]
    paused = Course([met], [0.5])  # a pause counts as a condition
    paused.presence.paused = True
    assert paused.play() == [(450.0, fx.Command("leave"))]
    assert paused.presence.unmet == ()
    unmet = Course([broken], [])  # and without its conditions a device never comes first
    asyncio.run(unmet.presence.settle())
    assert unmet.changes == [(0.0, fx.Command("leave"))]
    assert unmet.presence.unmet == tuple(broken)


NOW_S = 1_800_000_000.0
SOUND = BoxFacts(
    now_s=lambda: NOW_S,
    installed=lambda _library: True,
    free_bytes=lambda _folder: 1 << 40,
    memory_bytes=lambda: 1 << 36,
)


@pytest.mark.parametrize(
    ("lacks", "named"),
    [
        ({"installed": lambda library: library != "torch"}, "edgeveil[train]"),
        ({"now_s": lambda: 0.0}, "1970-01-01"),
        ({"free_bytes": lambda _folder: 511 << 20}, "511 MiB"),
        ({"memory_bytes": lambda: LEAST_MEMORY_BYTES // 2}, "128 MiB"),
    ],
)
def test_each_want_is_said_alone(tmp_path, lacks, named):
    box = site(tmp_path, policy={"min_devices": 3, "allowed_methods": ("fm", "dp_sgd")})
    assert self_check(box, SOUND) == []
    (only,) = self_check(box, replace(SOUND, **lacks))
    assert named in only


def test_a_clock_behind_the_device_s_own_files_is_not_trusted(tmp_path):
    (tmp_path / "ledger.sqlite").touch()
    for ahead_s, believed in ((86401, False), (86399, True)):
        os.utime(tmp_path / "ledger.sqlite", (NOW_S, NOW_S + ahead_s))
        assert (self_check(site(tmp_path), SOUND) == []) is believed


def test_data_that_are_not_there_or_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "own.npz"
    box = site(tmp_path, data={"name": "own", "source": "npz", "path": path})
    assert "is not there" in self_check(box, SOUND)[0]
    path.write_bytes(b"no archive")
    assert self_check(box, SOUND) == []  # not read at the start
    assert str(path) in self_check(box, SOUND, read_records=True)[0]
    assert self_check(site(tmp_path), SOUND, read_records=True) == []  # the digits
