"""A run's scratch folder ends with it; one left by a killed run is swept, others are not."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeveil.errors import ConfigError
from edgeveil_tools.lifeline import Lifeline
from edgeveil_tools.local import children as module
from edgeveil_tools.local.children import PREFIX, scratch, spawn, sweep
from edgeveil_tools.site.provision import SiteSpec, provision

LIVING = """
import sys, time, tempfile
tempfile.tempdir = sys.argv[1]
from edgeveil_tools.local.children import scratch
with scratch(keep=False) as folder:
    (folder / "big").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))


def test_a_killed_run_is_swept_and_a_living_kept_or_starting_one_is_not(tmp_path):
    with scratch(keep=True) as kept:
        (kept / "ledger").write_bytes(b"x")
    bare = tmp_path / f"{PREFIX}starting"  # made this moment, its lock not yet
    bare.mkdir()
    command = [sys.executable, "-c", LIVING, str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        left = Path(child.stdout.readline().strip()).parent
        sweep(tmp_path)
        assert (left / "site" / "big").exists()
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    assert left.exists()
    with scratch(keep=False):
        assert not left.exists()
    assert (kept / "ledger").exists() and bare.exists()


def test_a_child_imports_nothing_from_the_folder_that_it_is_started_in(tmp_path, monkeypatch):
    for name in ("argparse", "numpy", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)\n")
    monkeypatch.chdir(tmp_path)
    lifeline = Lifeline()
    try:
        child = spawn(["--version"], subprocess.PIPE, lifeline, threads=None)
        output, _ = child.communicate()
    finally:
        lifeline.close()
    assert child.returncode == 0, output


def test_a_worker_that_fails_ends_the_others_and_its_log_is_shown(tmp_path):
    waiting = provision(SiteSpec(tmp_path / "site", devices=1)).edges[0]  # for a broker, for ever
    lifeline, place = Lifeline(), "edgeveil_tools.local.edge_workers"
    words = [str(tmp_path), "2", "", str(tmp_path / "none.yaml"), str(waiting)]
    try:
        workers = spawn(words, subprocess.PIPE, lifeline, module=place)
        output, _ = workers.communicate(timeout=60)
    finally:
        lifeline.close()
    assert workers.returncode == ConfigError.exit_code
    assert b"worker-1" in output and b"none.yaml" in output


def test_the_folder_is_its_owners_alone_and_goes_with_the_run(tmp_path):
    with pytest.raises(KeyboardInterrupt), scratch(keep=False) as folder:
        assert folder.parent.parent == tmp_path
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
