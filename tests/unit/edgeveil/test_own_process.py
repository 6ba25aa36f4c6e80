"""Code of others that ends its process, never ends, or answers with something else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgeveil.errors import DataError
from edgeveil.own_process import is_own, run_apart

LONG_S = 120.0


def echo(request):
    print("what code prints is no reply")
    return request[::-1] + bytes([is_own()])


def abort(_request):
    os.abort()


def leave(_request):
    os._exit(0)


def exits(_request):
    sys.exit(0)


def refuses(_request):
    raise DataError("is odd", where="model.x", fix="even it")


def lacks(_request):
    raise ModuleNotFoundError("No module named 'torch'", name="torch")


def hangs(request):
    child = subprocess.Popen(["sleep", "600"])
    Path(request.decode()).write_text(f"{os.getpid()} {child.pid}")
    signal.pause()
    return b""


def forges(_request):
    descriptor = int(sys.argv[2])
    os.write(descriptor, (9).to_bytes(8, "big") + b"[1, 2]\nab")
    os._exit(0)


def floods(_request):
    os.write(int(sys.argv[2]), b"\xff" * 4096)
    signal.pause()
    return b""


def apart(name, request=b"", limit_s=LONG_S):
    return run_apart(f"{__name__}:{name}", request, limit_s, "the code")


def test_a_request_of_megabytes_is_answered_by_a_process_of_its_own():
    assert apart("echo", b"ab" * (4 << 20)) == b"ba" * (4 << 20) + b"\x01"
    assert not is_own()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("abort", r"ended the process that it ran in \(SIGABRT\)"),
        ("leave", "ended the process that it ran in"),
        ("exits", "ended the process that it ran in"),
        ("forges", "malformed reply"),
        ("floods", "ended the process"),
    ],
)
def test_code_that_ends_its_process_or_forges_a_reply_is_refused(name, what):
    with pytest.raises(DataError, match=what) as caught:
        apart(name)
    assert caught.value.where == "the code"


def test_the_functions_own_error_comes_back():
    with pytest.raises(DataError, match="is odd") as caught:
        apart("refuses")
    assert (caught.value.where, caught.value.fix) == ("model.x", "even it")
    with pytest.raises(ModuleNotFoundError) as missing:
        apart("lacks")
    assert missing.value.name == "torch"


def test_code_that_never_ends_is_ended_with_what_it_started(tmp_path):
    from tests.kits.live_site import wait_for  # slow to import, and each process imports this file

    started = tmp_path / "started"
    with pytest.raises(DataError, match="did not end within 8 s"):
        apart("hangs", str(started).encode(), 8.0)
    for process in started.read_text().split():
        wait_for(lambda process=process: has_ended(process), f"the end of process {process}")


def has_ended(process):
    """Whether it is gone, or a zombie whose parent has yet to ask for it."""
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state.rpartition(")")[2].split()[0] == "Z"
