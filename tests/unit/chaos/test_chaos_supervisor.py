"""Real processes: restarted when they end, killed also while they start, stopped cleanly."""

import subprocess
import sys
import time

import pytest

from tests.chaos import supervisor as subject
from tests.chaos.supervisor import Supervisor

# SIGXFSZ is ignored by Python itself: a write past the limit raises, as on a full disk.
SCRIPT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
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


def spawn(arguments, output, _lifeline, **_options):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr(subject, "spawn", spawn)
    begun_s = time.monotonic()
    found = Supervisor(tmp_path, lambda: time.monotonic() - begun_s)
    yield found
    found.stop()


def wait_for(condition):
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def log(folder):
    path = folder / "one.log"
    return path.read_text() if path.exists() else ""


def test_two_kills_between_two_lives_hit_the_next_two(site, tmp_path):
    site.start("one", ["ends", str(tmp_path)])
    wait_for(lambda: site.ends)
    site.kill("one")
    site.kill("one")
    wait_for(lambda: [end.how for end in site.ends].count("killed") == 2)
    first = site.ends[0]
    assert (first.code, first.how, first.said) == (7, "by itself", "running")


def test_what_no_process_should_write_is_noted(site, tmp_path):
    site.start("one", ["fails", str(tmp_path)])
    wait_for(lambda: site.traces)
    assert "Traceback" in site.traces[0]
    wait_for(lambda: site.ends)
    assert site.ends[0].said == "ValueError: a bug"
