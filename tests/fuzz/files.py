"""Targets: files of records, and the brokers' list of users."""

import gzip
import io
import struct
import zipfile

import numpy as np

from edgeveil.errors import BrokerError, DataError
from edgeveil.parts.sources.arrays import read_npz
from edgeveil.parts.sources.idx import read_idx
from edgeveil.parts.sources.source import Origin
from edgeveil.parts.sources.tables import csv_faults, read_csv
from edgeveil_tools.site.broker_rules import read_users
from tests.fuzz.target import Tape, Target, as_file, demand

MAX_BYTES = 1 << 16


def sound(records):
    demand(len(records.x) == len(records.y), "one label for each record")
    demand(records.x.nbytes <= MAX_BYTES, "no more memory than allowed")


def _idx(data):
    """Images, then labels; the first byte says where to cut and what to zip."""
    tape = Tape(data)
    zipped, cut = tape.number(4), tape.number(512)
    rest = tape.rest()
    parts = [rest[:cut], rest[cut:]]
    for index in range(2):
        if zipped >> index & 1:
            parts[index] = gzip.compress(parts[index], 1, mtime=0)
    images, labels = (as_file(f"{index}.idx", part) for index, part in enumerate(parts))
    sound(read_idx(Origin(path=images, labels_path=labels, max_bytes=MAX_BYTES)))


def _idx_pair():
    images = b"\0\0\x08\3" + struct.pack(">3I", 2, 2, 2) + bytes(8)
    return images, b"\0\0\x08\1" + struct.pack(">I", 2) + b"\0\1"


def _idx_seeds():
    images, labels = _idx_pair()
    for zipped in range(4):
        yield bytes((zipped,)) + len(images).to_bytes(2, "little") + images + labels
    huge = b"\0\0\x08\3" + struct.pack(">3I", 2**31, 2**31, 2) + bytes(8)
    yield b"\0" + len(huge).to_bytes(2, "little") + huge + labels


def _csv(data):
    column = (None, "label")[data[0] % 2 if data else 0]
    path = as_file("records.csv", data[1:])
    origin = Origin(path=path, header=True, label_column=column, max_bytes=4 * MAX_BYTES)
    sound(read_csv(origin))
    for fault in csv_faults(origin):
        demand(fault.startswith(str(path)), "a fault says where")


def _csv_seeds():
    yield b"\0a,b,label\n1,2,0\n3,4.5,1\n"
    yield b'\1label,"b ""x""",c\r\n1,2,0\r\n\r\n,x,1e999\r\n'
    yield b"\0\xef\xbb\xbf1;2\n3,4\n"


def _npz(data):
    """Any bytes as the whole file, or any bytes as the arrays of a sound archive."""
    tape = Tape(data)
    if not tape.number(3):
        sound(read_npz(Origin(path=as_file("any.npz", tape.rest()), max_bytes=MAX_BYTES)))
        return
    cut, packed = tape.number(512), tape.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    rest = tape.rest()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packed) as archive:
        archive.writestr(zipfile.ZipInfo("x.npy"), rest[:cut])
        archive.writestr(zipfile.ZipInfo("y.npy"), rest[cut:])
    sound(read_npz(Origin(path=as_file("made.npz", made.getvalue()), max_bytes=MAX_BYTES)))


def _npz_seeds():
    x, y = io.BytesIO(), io.BytesIO()
    np.save(x, np.arange(6, dtype=np.float32).reshape(3, 2))
    np.save(y, np.arange(3))
    both = x.getvalue() + y.getvalue()
    for packed in range(2):
        yield b"\1" + len(x.getvalue()).to_bytes(2, "little") + bytes((packed,)) + both
    whole = io.BytesIO()
    np.savez(whole, x=np.ones((2, 2)), y=np.ones(2))
    yield b"\0" + whole.getvalue()
    yield b"\1" + len(x.getvalue()).to_bytes(2, "little") + b"\0" + both.replace(b"<f4", b"|O8")


def _users(data):
    for name, word in read_users(as_file("users", data)).items():
        demand(":" not in name and "$" in word, "a name, and a password that is hashed")


def _users_seeds():
    hashed = b"$7$1000$" + b"c2FsdHNhbHRzYWx0" + b"$" + b"A" * 86 + b"=="
    yield b"proxy:" + hashed + b"\n# nobody\n\n0123456789abcdef:" + hashed + b"\n"


TARGETS = {
    "idx": Target(
        _idx, _idx_seeds, (DataError,), 1024, (b"\0\0\x08\3", b"\0\0\x0e\1", b"\x1f\x8b")
    ),
    "csv": Target(
        _csv, _csv_seeds, (DataError,), 1024, (b'"', b"label", b",", b"nan", b"\xef\xbb\xbf")
    ),
    "npz": Target(
        _npz, _npz_seeds, (DataError,), 2048, (b"'descr': '<f4'", b"'shape': (9999999,)")
    ),
    "users": Target(_users, _users_seeds, (BrokerError,), 1024, (b"$7$", b"$7$1000000$", b":")),
}
