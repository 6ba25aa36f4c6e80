"""`python -m tests.fuzz` feeds as many inputs as asked, tells findings, and can be stopped."""

import importlib.util
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from tests.fuzz import __main__ as driver
from tests.fuzz.__main__ import main
from tests.fuzz.table import target

NEEDS_ATHERIS = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="needs the extra fuzz"
)


@pytest.mark.slow
@NEEDS_ATHERIS
def test_a_sound_target_is_fed_and_a_finding_is_no_success(tmp_path, capfd, monkeypatch):
    assert main(["topic", "--runs", "300", "--seed", "1", "--out", str(tmp_path)]) == 0
    assert "#300" in capfd.readouterr().out
    monkeypatch.setattr(driver, "RSS_MB", 1)  # which every input is above
    assert main(["topic", "--out", str(tmp_path)]) == 1
    assert "out-of-memory" in capfd.readouterr().err


@pytest.mark.slow
@NEEDS_ATHERIS
def test_a_driver_that_is_interrupted_ends_its_target(tmp_path):
    command = [sys.executable, "-m", "tests.fuzz", "topic", "--out", str(tmp_path)]
    process = psutil.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + 60
        while not (children := process.children()):
            assert time.monotonic() < end_s
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert psutil.wait_procs(children, timeout=10)[1] == []
    finally:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def test_one_input_can_be_fed_again(tmp_path, capsys):
    seed = next(iter(target("frame").seeds()))
    for data, said in ((seed, "taken"), (b"\2\7", "refused")):
        (tmp_path / "input").write_bytes(data)
        assert main(["frame", "--replay", str(tmp_path / "input")]) == 0
        assert capsys.readouterr().out.strip() == said
