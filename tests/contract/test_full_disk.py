"""Durable files on a file system that is really full: the fault is named, and work goes on."""

import errno
import subprocess
import sys
from contextlib import suppress

import pytest

from edgeveil.errors import EdgeVeilError
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.ledger import Ledger
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol.cloud_job import BatchPart
from edgeveil.protocol.messages import RoundId
from edgeveil.protocol.proxy_rounds import HeldUpload, ProxyMemory, UploadKept
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil.protocol.transfer import describe
from edgeveil_cloud.store import Store
from edgeveil_cloud.validate_batch import BatchSpool
from edgeveil_edge.store import DeviceStore
from edgeveil_proxy.spool import Spool

DISK_BYTES = 2 << 20
BIG = 400_000
AT = RoundId(b"J" * 16, 1, 1)
DATA = bytes(BIG)
BLOB = describe(DATA, 4096)


def taken(spool):
    spool.drop()
    for offset in range(0, BIG, 4096):
        spool.put(BatchPart(BLOB.digest, offset, DATA[offset : offset + 4096]))
    return len(spool.whole(BLOB))


def stored(spool):
    with spool.together():
        spool.store(UploadPart(AT, 0, DATA))
        spool.store(UploadKept(AT, "0" * 16, HeldUpload((BIG,), b"d" * 32, 0)))


def released(ledger):
    event = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
    ledger.open_job(JobRequest("job", 1e-5, (event,)), Limits(20, 50, 1e-4, 100))
    ledger.commit("job", 1, [event], DATA)


CASES = {  # how to open it, to write much into it, and to see that this is there
    "cloud store": (
        lambda folder: Store(f"sqlite:///{folder}/cloud.sqlite"),
        lambda s: s.submit_job("one", DATA, bytes(32)),
        lambda s: [job.name for job in s.jobs()] == ["one"],
    ),
    "device store": (
        lambda folder: DeviceStore(folder / "device.sqlite"),
        lambda s: s.put_job(b"job", b"", DATA),
        lambda s: b"job" in s.load().jobs,
    ),
    "ledger": (
        lambda folder: Ledger(folder / "ledger.sqlite", "digits"),
        released,
        lambda ledger: ledger.spent().epsilon > 0,
    ),
    "cloud batch": (BatchSpool, taken, lambda s: taken(s) == BIG),
    "spooled upload": (
        lambda folder: Spool(folder / "spool.sqlite"),
        stored,
        lambda s: s.load() != ProxyMemory(),
    ),
}


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={DISK_BYTES},mode=0700"
    mount = ["mount", "-t", "tmpfs", "-o", options, "edgeveil-test", str(folder)]
    if (
        not sys.platform.startswith("linux")
        or subprocess.run(mount, capture_output=True).returncode
    ):
        pytest.skip("may not mount a file system here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(ballast):
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
        with pytest.raises(OSError) as caught:
            file.write(bytes(4096))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_without_room_it_says_so_and_with_room_it_goes_on(case, disk):
    open_, write, held = case
    opened = open_(disk)
    ballast = disk / "ballast"
    fill(ballast)
    for _ in range(2):
        with pytest.raises((EdgeVeilError, OSError), match=r"full|No space left") as caught:
            write(opened)
        if isinstance(caught.value, EdgeVeilError):
            assert caught.value.fix
        else:  # the job pauses for the disk, whose reason says what to do
            assert caught.value.errno == errno.ENOSPC
    ballast.unlink()
    write(opened)
    assert held(opened)
    if hasattr(opened, "close"):
        opened.close()
        again = open_(disk)
        assert held(again)
        again.close()
