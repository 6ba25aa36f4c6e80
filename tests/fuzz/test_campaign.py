"""The fuzzer's driver: what it reads from libFuzzer, and a short run where atheris is installed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from edgeveil.errors import UsageError
from tests.fuzz import campaign
from tests.fuzz.__main__ import main
from tests.fuzz.campaign import Bounds, fuzz, outcome
from tests.fuzz.table import target

pytestmark = pytest.mark.slow

NEEDS_ATHERIS = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs the extra fuzz"
)
CLEAN = """\
#2\tINITED cov: 12 ft: 12 corp: 3/30b exec/s: 0 rss: 60Mb
#4096\tpulse  cov: 40 ft: 61 corp: 9/200b lim: 64 exec/s: 2048 rss: 66Mb
#5000\tDONE   cov: 41 ft: 63 corp: 10/220b lim: 64 exec/s: 2500 rss: 66Mb
Done 5000 runs in 2 second(s)
stat::number_of_executed_units: 5000
stat::new_units_added:          7
stat::peak_rss_mb:              66
""".splitlines()
CRASH = """\
#1024\tpulse  cov: 40 ft: 61 corp: 9/200b lim: 64 exec/s: 512 rss: 66Mb
 === Uncaught Python exception: ===
IndexError: index out of range
artifact_prefix='out/x-'; Test unit written to out/x-crash-0123
stat::number_of_executed_units: 1100
stat::peak_rss_mb:              67
""".splitlines()
SLOW = ["ALARM: working on the last Unit for 11 seconds", "Test unit written to out/x-timeout-7"]


def test_a_run_without_findings_is_clean():
    one = outcome("x", CLEAN, 2.0, 0)
    assert one.clean
    assert (one.runs, one.runs_per_s, one.coverage, one.new_paths) == (5000, 2500.0, 41, 7)
    assert (one.peak_rss_mb, one.crashes, one.ended) == (66, (), "done")


@pytest.mark.parametrize(
    ("lines", "status", "found", "why"),
    [
        (CRASH, 77, ("out/x-crash-0123",), "IndexError: index out of range"),
        (SLOW, 70, ("out/x-timeout-7",), "ended with 70"),
        ([], -9, (), "ended with -9"),
        (CLEAN[:2], 1, (), "ended with 1"),
    ],
)
def test_a_finding_or_an_early_end_is_not_clean(lines, status, found, why):
    one = outcome("x", lines, 2.0, status)
    assert not one.clean
    assert (one.crashes, one.ended) == (found, why)


def test_without_atheris_the_fix_is_named():
    with pytest.raises(UsageError, match="edgeveil\\[fuzz\\]"):
        outcome("x", ["ModuleNotFoundError: No module named 'atheris'"], 1.0, 1)


@NEEDS_ATHERIS
def test_a_short_run_feeds_as_many_inputs_as_asked(tmp_path, capsys):
    one = fuzz("topic", Bounds(runs=300, seed=1), tmp_path)
    assert one.clean and one.runs == 300 and one.coverage > 10
    assert main(["frame", "--runs", "200", "--json", "--out", str(tmp_path)]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["target"], said["runs"], said["crashes"]) == ("frame", 200, [])
    assert not list(tmp_path.iterdir())


def started(*options):
    """A driver in a process of its own, once its targets' processes run, and these."""
    command = [sys.executable, "-m", "tests.fuzz", "topic", "frame", *options]
    driver = psutil.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    end_s = time.monotonic() + 60
    while len(children := driver.children()) < 2:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return driver, children


@NEEDS_ATHERIS
def test_ctrl_c_ends_all_targets(tmp_path):
    driver, children = started("--jobs", "2", "--runs", "1000000000", "--out", str(tmp_path))
    try:
        driver.send_signal(signal.SIGINT)
        assert driver.wait(30) == 130
        assert psutil.wait_procs(children, timeout=10)[1] == []
    finally:  # one that went on would take a core from all tests after it
        for process in (driver, *children):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@NEEDS_ATHERIS
def test_a_killed_drivers_folders_are_swept_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "PREFIX", "edgeveil-fuzz-test-")
    place = campaign.MEMORY if os.access(campaign.MEMORY, os.W_OK) else tmp_path
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, signal, tempfile, sys; from tests.fuzz import campaign;"
        f"campaign.PREFIX = 'edgeveil-fuzz-test-'; tempfile.tempdir = {str(tmp_path)!r}\n"
        "with campaign._memory_folder() as folder: os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
    assert len(list(place.glob("edgeveil-fuzz-test-*"))) == 1
    with campaign._memory_folder() as own, campaign._memory_folder() as beside:
        left = set(place.glob("edgeveil-fuzz-test-*"))
        assert left == {own.parent, beside.parent}  # one that lives is no leftover
    assert not list(place.glob("edgeveil-fuzz-test-*"))


def test_one_input_can_be_fed_again(tmp_path, capsys):
    seed = next(iter(target("frame").seeds()))
    for data, said in ((seed, "taken"), (b"\2\7", "refused")):
        (tmp_path / "input").write_bytes(data)
        assert main(["frame", "--replay", str(tmp_path / "input")]) == 0
        assert capsys.readouterr().out.strip() == said
