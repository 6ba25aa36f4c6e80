"""Processes with their real hosts end between two effects or two writes; all promises hold.

The suite takes boundaries at even distances; EDGEVEIL_CRASH_STEP=1 takes each one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from edgeveil.protocol.messages import Batch, Offer, decode, decode_header
from tests.sim.crash_site import (
    CrashSite,
    Death,
    check_clean,
    check_job,
    check_ledgers,
    check_unmasked_once,
    check_uploads,
    job,
    told_writes,
)
from tests.sim.lossy_hosts import RAM

pytestmark = pytest.mark.slow

STEP = int(os.environ.get("EDGEVEIL_CRASH_STEP", "0"))
RUNS, PAIRS = 6, 4
UNSURE = 12  # boundaries by the end that not every run has: the cloud's store looks at the clock


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder where a durable write is quick."""
    folder = Path(tempfile.mkdtemp(prefix="edgeveil-crashes-", dir=RAM))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(
    params=[
        pytest.param("", marks=pytest.mark.drill, id="plain"),
        "secure",
        pytest.param("streamed", marks=pytest.mark.drill),
    ]
)
def secure(request: pytest.FixtureRequest) -> str:
    """Whether uploads are summed under masks, and go on to the cloud as they come."""
    return str(request.param)


def played(monkeypatch: pytest.MonkeyPatch, disk: Path, secure: str, *deaths: Death) -> CrashSite:
    folder = Path(tempfile.mkdtemp(dir=disk))
    site = CrashSite(folder, *deaths, streams=secure == "streamed")
    with told_writes(monkeypatch, site):
        done = site.play(job(bool(secure)))
    try:
        for check in (check_job, check_uploads, check_ledgers, check_unmasked_once, check_clean):
            check(site, done)
    except Exception as error:
        raise AssertionError(f"with {deaths}: {type(error).__name__}: {error}") from error
    finally:
        site.close()
        shutil.rmtree(folder)
    return site


def boundaries(monkeypatch: pytest.MonkeyPatch, disk: Path, secure: str) -> dict[str, int]:
    """How many a run without any death has, by process."""
    site = played(monkeypatch, disk, secure)
    assert site.died == 0
    wire = [decode(frame, 1 << 20) for _, _, frame in site.net.wire or []]
    headers = [decode_header(message.header) for message in wire if isinstance(message, Offer)]
    batches = [header for header in headers if isinstance(header, Batch)]
    assert batches
    assert all(bool(batch.stream) == (secure == "streamed") for batch in batches)
    return {who: site.net.passed[address] - UNSURE for who, address in site.names.items()}


@pytest.mark.parametrize("who", ["cloud", "proxy", "device"])
def test_one_death(monkeypatch: pytest.MonkeyPatch, disk: Path, who: str, secure: str) -> None:
    last = boundaries(monkeypatch, disk, secure)[who]
    assert last > 50
    broken = []
    for number in range(1, last + 1, STEP or last // RUNS):
        try:
            assert played(monkeypatch, disk, secure, (who, number)).died == 1
        except AssertionError as error:
            broken.append(str(error))
    assert not broken


def test_two_deaths(monkeypatch: pytest.MonkeyPatch, disk: Path, secure: str) -> None:
    chance, last = Random(21), boundaries(monkeypatch, disk, secure)
    for _ in range(100 // STEP if STEP else PAIRS):
        deaths = {(who, chance.randint(1, last[who])) for who in chance.choices(sorted(last), k=2)}
        assert played(monkeypatch, disk, secure, *deaths).died >= 1
