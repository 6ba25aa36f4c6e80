"""A file that a model looks at: how much memory it takes."""

import io
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil_edge import predict as predict_module
from tests.unit.edgeveil_edge.edge_kit import final_model

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


def zeros_npz(count_bytes):
    """A packed NPZ whose `x` of 4 float32 a record unpacks to so many zeros, a thousandth of it
    in the file."""
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
    # As it stands it is stored: say what it is, in the local head and in the list at the end.
    raw = bytearray(stream.getvalue())
    for at, sizes in ((0, 14), (raw.index(b"PK\x01\x02"), 16)):
        offset = 8 if at == 0 else 10
        raw[at + offset : at + offset + 2] = (8).to_bytes(2, "little")
        size = len(head.getvalue()) + count_bytes
        fields = (crc, len(content), size)
        raw[at + sizes : at + sizes + 12] = b"".join(one.to_bytes(4, "little") for one in fields)
    return bytes(raw)


def test_predict_refuses_a_small_file_of_gigabytes_before_it_takes_them(tmp_path):
    (tmp_path / "model.onnx").write_bytes(final_model())
    file = tmp_path / "x.npz"
    file.write_bytes(zeros_npz(2 << 30))
    assert file.stat().st_size < 2_200_000
    command = [sys.executable, "-c", PREDICT, str(tmp_path / "model.onnx"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4, done.stderr
    assert int(done.stdout.split()[-1]) << 10 < LEAST_BYTES


def test_what_a_model_tells_of_a_packed_file_counts_too(tmp_path):
    (tmp_path / "model.onnx").write_bytes(final_model())
    file = tmp_path / "x.npz"
    file.write_bytes(zeros_npz(predict_module.ROOM_BYTES))  # its numbers alone would have room
    assert file.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"holds 4194304 records, more than the \d+ allowed"):
        predict_module.predict(tmp_path / "model.onnx", file)
