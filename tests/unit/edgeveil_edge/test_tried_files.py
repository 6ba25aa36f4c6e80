"""A file that a box's owner has a model look at: what it takes, and that it ends with its asker."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgeveil.errors import DataError
from edgeveil_edge import inference
from edgeveil_edge import page as page_module
from edgeveil_edge import predict as predict_module
from edgeveil_tools import cli
from tests.kits.live_site import wait_for
from tests.unit.edgeveil_edge.edge_kit import final_model
from tests.unit.edgeveil_edge.test_device_page import Client, opened, own  # noqa: F401

_BLOCK = 1 << 24
# Beside its records a try holds its libraries: some 150 MB.
LEAST_BYTES = 600 << 20
# What a child is said to have taken (`ru_maxrss`) begins with what its parent held.
PREDICT = """
import re, resource, sys
from pathlib import Path
from edgeveil_tools import cli
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
code = cli.main(["predict", *sys.argv[1:]])
print(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
sys.exit(code)
"""


def zeros_npz(count_bytes: int, *, beside: bytes = b"") -> bytes:
    """A packed NPZ whose `x` of 4 float32 a record unpacks to so many zeros, a thousandth of it
    in the file; `beside` is stored as another member."""
    head = io.BytesIO()
    shape = {"descr": "<f4", "fortran_order": False, "shape": (count_bytes // 16, 4)}
    np.lib.format.write_array_header_1_0(head, shape)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    blocks, crc = count_bytes // _BLOCK, zlib.crc32(head.getvalue())
    begins = packer.compress(head.getvalue()) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = packer.compress(bytes(_BLOCK)) + packer.flush(zlib.Z_FULL_FLUSH)
    for _ in range(blocks):
        crc = zlib.crc32(bytes(_BLOCK), crc)
    content = begins + packed * blocks + packer.flush()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x.npy", content)
        archive.writestr("beside.npy", beside)
    # As it stands it is stored: say what it is, in the local head and in the list at the end.
    raw = bytearray(stream.getvalue())
    for at, sizes in ((0, 14), (raw.index(b"PK\x01\x02"), 16)):
        offset = 8 if at == 0 else 10
        raw[at + offset : at + offset + 2] = (8).to_bytes(2, "little")
        size = len(head.getvalue()) + count_bytes
        fields = (crc, len(content), size)
        raw[at + sizes : at + sizes + 12] = b"".join(one.to_bytes(4, "little") for one in fields)
    return bytes(raw)


def test_the_packed_file_of_these_tests_is_a_sound_one() -> None:
    raw = zeros_npz(2 * _BLOCK, beside=b"more")
    with np.load(io.BytesIO(raw)) as found:
        x = found["x"]
    assert x.shape == (2 * _BLOCK // 16, 4) and not x.any()
    assert len(raw) < 2 * _BLOCK / 900


def test_predict_refuses_a_small_file_of_gigabytes_before_it_takes_them(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(final_model())
    file = tmp_path / "x.npz"
    file.write_bytes(zeros_npz(2 << 30))
    assert file.stat().st_size < 2_200_000
    command = [sys.executable, "-c", PREDICT, str(tmp_path / "model.onnx"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    assert int(done.stdout.split()[-1]) << 10 < LEAST_BYTES


def test_what_a_model_tells_of_a_packed_file_counts_too(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(final_model())
    file = tmp_path / "x.npz"
    file.write_bytes(zeros_npz(predict_module.ROOM_BYTES))  # its numbers alone would have room
    assert file.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"holds 4194304 records, of which \d+ are told"):
        predict_module.predict(tmp_path / "model.onnx", file)


def test_rows_are_made_one_by_one_and_no_more_than_are_shown(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "model.onnx").write_bytes(final_model())
    np.save(tmp_path / "x.npy", np.zeros((50, 4), np.float32))
    whole = predict_module.predict(tmp_path / "model.onnx", tmp_path / "x.npy").plain()
    for name in ("plain", "table"):
        monkeypatch.setattr(predict_module.Predictions, name, None)
    files = [str(tmp_path / "model.onnx"), str(tmp_path / "x.npy")]
    assert cli.main(["predict", *files, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["model"], told["predictions"]) == ("model.onnx", whole)
    assert cli.main(["predict", *files]) == 0
    assert capsys.readouterr().out.count("  class ") == 50
    rows, made = predict_module.Predictions.plain_rows, []
    counted = lambda self: (made.append(row) or row for row in rows(self))  # noqa: E731
    monkeypatch.setattr(predict_module.Predictions, "plain_rows", counted)
    monkeypatch.setattr(inference.resource, "setrlimit", lambda *_: None)  # this process goes on
    digest = sha256(Path(files[0]).read_bytes()).hexdigest()
    asked = {"model": files[0], "file": files[1], "digest": digest, "version": "1", "shown": 3}
    told = json.loads(inference.tried(json.dumps(asked).encode()))
    assert told["records"] == 50 and told["predictions"] == made == whole[:3]


@pytest.mark.parametrize(
    ("size_bytes", "beside_bytes"),
    [(2 << 30, 0), (95 * _BLOCK, 16_000_000 - 1_600_000)],  # beyond the file's ratio; within it
)
def test_a_small_file_of_gigabytes_is_refused_where_the_owner_tries_it(
    own,  # noqa: F811
    size_bytes: int,
    beside_bytes: int,
) -> None:
    content = zeros_npz(size_bytes, beside=os.urandom(beside_bytes))
    assert len(content) <= page_module.TRY_BYTES

    def work(client: Client, process) -> None:
        process.device.host.releases.install("boxed", final_model(), {})
        client.log_in()
        with most_taken() as taken:
            status, told = client.post("/try", content, Content_Type="application/x-npz")
        assert status == 400, told
        most = max(LEAST_BYTES, inference.TRY_MEMORY_BYTES) if beside_bytes else LEAST_BYTES
        assert bool(taken) and max(taken) < most
        good = client.post("/try", b"0,9,0,0\n", Content_Type="text/csv")
        assert good[0] == 200, good

    opened(own, work)


def test_what_is_computed_for_a_try_ends_when_its_client_leaves(own, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(inference, "TRY_S", 90.0)  # what ends it is that nobody waits

    def work(client: Client, process) -> None:
        process.device.host.releases.install("boxed", final_model(), {})
        client.log_in()
        head = ["POST /try HTTP/1.1", "Content-Type: text/csv", "X-EdgeVeil: 1"]
        head += [f"Host: 127.0.0.1:{client.port}", f"Cookie: {client.cookie}", "Content-Length: 8"]
        with socket.create_connection(("127.0.0.1", client.port)) as asking:
            asking.sendall("\r\n".join([*head, "", ""]).encode() + b"0,9,0,0\n")
            wait_for(tries, "the start of what computes")
            (child,) = tries()
            child.suspend()  # it answers nobody, however long it has
        wait_for(lambda: not tries(), "the end of what computes", 30)
        assert client.post("/try", b"0,9,0,0\n", Content_Type="text/csv")[0] == 200

    opened(own, work)


@contextmanager
def most_taken() -> Iterator[list[int]]:
    """Bytes that what computes was seen to hold, while it was looked at."""
    taken: list[int] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.005):
            for one in tries():
                with suppress(psutil.NoSuchProcess):
                    taken.append(one.memory_info().rss)

    with ThreadPoolExecutor(1) as executor:
        looking = executor.submit(look)
        try:
            yield taken
        finally:
            ended.set()
            looking.result()


def tries() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        try:
            if "edgeveil.own_process" in child.cmdline() and inference._TRIED in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found
