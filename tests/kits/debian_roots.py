"""Bare Debian roots with Python and EdgeVeil's wheel, for tests without other packages."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("edgeveil", "edge_client", "cloud_server", "proxy", "tools")
SUITE = "bookworm"
CONSTRAINTS = ROOT / ".ci" / "constraints.txt"


def need(*programs):
    """Skip the test unless it runs as root and these roots are installed (`make rootfs`)."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if os.geteuid() != 0:
        pytest.skip("making a system's root takes root")


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done


def build_wheel(folder, project="."):
    """Build the distribution of this checkout's folder `project` in `folder`."""
    source = folder / "source"
    made = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=made)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
    run(*pip, "-w", folder / "dist", source / project)
    shutil.rmtree(source)
    [found] = (folder / "dist").glob("*.whl")
    return found.rename(folder / found.name)


def debian_root(folder, *packages):
    include = ",".join(("python3", *packages))
    run("debootstrap", "--variant=minbase", f"--include={include}", SUITE, folder)
    return folder


def foreign_files(folder, processor):
    """Unpack such a Debian for another processor architecture, without configuring it."""
    got = folder.with_name(folder.name + "-packages")
    command = ("debootstrap", f"--arch={processor}", "--variant=minbase", "--include=python3")
    run(*command, "--download-only", SUITE, got)
    folder.mkdir()
    for package in sorted((got / "var" / "cache" / "apt" / "archives").glob("*.deb")):
        run("dpkg-deb", "-x", package, folder)
    shutil.rmtree(got)
    return folder


def write_records(path, seed, records=120):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 10, records)
    pictures = draw.uniform(0, 4, (records, 64)) + 12 * (np.arange(64) % 10 == labels[:, None])
    np.savez(path, x=pictures.astype(np.float32), y=labels.astype(np.int64))
