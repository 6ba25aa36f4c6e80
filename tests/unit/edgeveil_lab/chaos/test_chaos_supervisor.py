"""Real processes: restarted when they end, killed also while they start, stopped cleanly."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgeveil_lab.chaos import supervisor as subject
from edgeveil_lab.chaos.supervisor import Supervisor

# SIGXFSZ is ignored by Python itself: a write past the limit raises, as on a full disk.
SCRIPT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(sys.argv[1] == "starts slowly")
print("running", flush=True)
what, folder = sys.argv[1], pathlib.Path(sys.argv[2])
if what == "ends":
    sys.exit(7)
if what == "fails":
    raise ValueError("a bug")
while True:
    try:
        (folder / "file").write_text("some")
        print("written", flush=True)
    except OSError:
        print("full", flush=True)
    time.sleep(0.02)
"""


def spawn(
    arguments: tuple[str, ...], output: int, _lifeline: object, **_options: object
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    monkeypatch.setattr(subject, "spawn", spawn)
    begun_s = time.monotonic()
    found = Supervisor(tmp_path, lambda: time.monotonic() - begun_s)
    yield found
    found.stop()


def wait_for(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def log(folder: Path) -> str:
    path = folder / "one.log"
    return path.read_text() if path.exists() else ""


def test_a_killed_process_is_started_again(site: Supervisor, tmp_path: Path) -> None:
    site.start("one", ["runs", str(tmp_path)])
    for lives in (1, 2):
        wait_for(lambda lives=lives: log(tmp_path).count("running") == lives)
        site.kill("one")
    wait_for(lambda: log(tmp_path).count("running") == 3)
    assert site.stop() == []
    assert [(end.code, end.how) for end in site.ends] == [
        (-9, "killed"),
        (-9, "killed"),
        (0, "stopped"),
    ]
    assert site.alive() == {"one": False}


def test_a_kill_between_two_lives_hits_the_next_one(site: Supervisor, tmp_path: Path) -> None:
    site.start("one", ["ends", str(tmp_path)])
    wait_for(lambda: site.ends)
    site.kill("one")
    wait_for(lambda: any(end.how == "killed" for end in site.ends))
    assert site.ends[0].code == 7
    assert site.ends[0].how == "by itself"
    assert site.ends[0].said == "running"


def test_an_armed_kill_hits_the_next_life_a_share_of_a_start_after_its_begin(
    site: Supervisor, tmp_path: Path
) -> None:
    site.start("one", ["starts slowly", str(tmp_path)])
    wait_for(lambda: "running" in log(tmp_path))
    site.kill("one")
    for share in (3.0, 0.0):  # one life for each: past a whole start, and at once
        site.kill_starting("one", share)
    assert site.waiting == 2
    wait_for(lambda: log(tmp_path).count("--- start") == 4)
    assert site.waiting == 0
    wait_for(lambda: "running" in log(tmp_path).partition("--- start 4")[2])
    assert [end.how for end in site.ends] == ["killed"] * 3
    lives = log(tmp_path).split("--- start")
    assert "running" in lives[2]
    assert "running" not in lives[3]


def test_an_armed_kill_strikes_this_life_where_no_other_may_come(
    site: Supervisor, tmp_path: Path
) -> None:
    site.start("one", ["runs", str(tmp_path)])
    wait_for(lambda: "running" in log(tmp_path))
    for share in (0.5, 0.5):  # nothing ends this life but these
        site.kill_starting("one", share)
    wait_for(lambda: log(tmp_path).count("--- start") == 3)
    assert site.waiting == 0


def test_two_kills_between_two_lives_hit_the_next_two(site: Supervisor, tmp_path: Path) -> None:
    site.start("one", ["ends", str(tmp_path)])
    wait_for(lambda: site.ends)
    site.kill("one")
    site.kill("one")
    wait_for(lambda: [end.how for end in site.ends].count("killed") == 2)


def test_what_no_process_should_write_is_noted(site: Supervisor, tmp_path: Path) -> None:
    site.start("one", ["fails", str(tmp_path)])
    wait_for(lambda: site.traces)
    assert site.traces[0].line.startswith("Traceback")
    wait_for(lambda: site.ends)
    assert site.ends[0].said == "ValueError: a bug"


def test_a_full_disk_fails_writes_and_leaves_the_log_alone(
    site: Supervisor, tmp_path: Path
) -> None:
    site.start("one", ["runs", str(tmp_path)])
    wait_for(lambda: "written" in log(tmp_path))
    site.fill("one", True)
    wait_for(lambda: "full" in log(tmp_path))
    site.kill("one")  # its successor finds the disk full too
    wait_for(lambda: "full" in log(tmp_path).partition("--- start 2")[2])
    assert site.filled == 2
    site.fill("one", False)
    wait_for(lambda: "written" in log(tmp_path).rpartition("full")[2])


class Noted:
    """What was asked of a disk."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def fill(self) -> None:
        self.asked.append("fill")

    def make_room(self) -> None:
        self.asked.append("make room")


def test_a_disk_of_its_own_is_filled_instead_and_has_room_again_at_the_end(
    site: Supervisor, tmp_path: Path
) -> None:
    disks = [Noted(), Noted()]
    site.start("one", ["runs", str(tmp_path)], disks)  # type: ignore[arg-type]
    wait_for(lambda: "written" in log(tmp_path))
    site.fill("one", True)
    assert [disk.asked for disk in disks] == [["fill"]] * 2
    site.kill("one")
    wait_for(lambda: "written" in log(tmp_path).partition("--- start 2")[2])  # by no limit
    assert site.filled == 2
    site.stop()
    assert [disk.asked for disk in disks] == [["fill", "make room"]] * 2
