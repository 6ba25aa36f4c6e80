"""Targets: what is encrypted, and files that hold keys or vouch for them."""

import hashlib
import shutil
from functools import cache

from msgspec.structs import replace

from edgeveil.crypto.chunked import HEADER_BYTES, TAG_BYTES, open_chunked, seal_chunked
from edgeveil.crypto.keys import (
    ContentKey,
    LedgerKey,
    OpeningKey,
    SealingKey,
    SigningKey,
    VerifyKey,
)
from edgeveil.crypto.sealing import STANZA_BYTES, open_stanzas, seal_stanzas
from edgeveil.enrolment import Enrolment, EnrolmentError
from edgeveil.errors import CryptoError, PrivacyError, ProtocolError, UsageError
from edgeveil.privacy.gaussian_mechanism import gaussian_event
from edgeveil.privacy.ledger import Ledger, read_ledger
from edgeveil.privacy.ledger_chain import ChainHead
from edgeveil.privacy.policy import JobRequest, Limits
from edgeveil.protocol.messages import Group
from edgeveil.protocol.sealed import (
    Terms,
    open_broadcast,
    open_segment,
    seal_broadcast,
    seal_segment,
)
from tests.fuzz.samples import AT, GROUPS, PACKET_BYTES, manifest, opening_key, signing_key
from tests.fuzz.target import Tape, Target, as_file, demand, scratch

_PACKAGE = b"a model package" * 20


@cache
def _content_key():
    return ContentKey(hashlib.sha256(b"fuzzed content").digest())


@cache
def _stream(plain_bytes, chunk_bytes):
    """Header and chunks of a true stream."""
    plain = bytes(index % 251 for index in range(plain_bytes))
    whole = seal_chunked(_content_key(), b"context", plain, chunk_bytes)
    step = chunk_bytes + TAG_BYTES
    starts = range(HEADER_BYTES, len(whole), step)
    return (whole[:HEADER_BYTES], *(whole[start : start + step] for start in starts))


def _open_stream(data):
    """A true stream whose chunks are cut out, repeated, moved or changed; or any bytes."""
    tape = Tape(data)
    if not tape.number(8):
        open_chunked(_content_key(), b"context", tape.rest())
        return
    plain_bytes, chunk_bytes = tape.choice((0, 1, 64, 65, 200)), tape.choice((1, 16, 64))
    true = _stream(plain_bytes, chunk_bytes)
    pieces = list(true)
    for _ in range(tape.number(4)):
        index, what = tape.number(len(pieces) or 1), tape.number(4)
        if what == 0:
            del pieces[index : index + 1]
        elif what == 1:
            pieces[index:index] = pieces[index : index + 1]
        elif what == 2:
            pieces.append(pieces.pop(index) if pieces else b"")
        elif pieces:
            pieces[index] = tape.damaged(pieces[index], 1)
    given = b"".join(pieces)
    found = open_chunked(_content_key(), b"context", given)
    demand(given == b"".join(true), "only the very stream opens")
    demand(len(found) == plain_bytes, "the whole text")


def _stanzas(data):
    tape = Tape(data)
    area = _area()
    given = tape.rest() if not tape.number(4) else tape.damaged(area, 8)
    found = open_stanzas(opening_key("one"), b"info", given)
    demand(found in (None, _content_key()), "no other key comes out")


@cache
def _area():
    recipients = [opening_key(name).public() for name in ("one", "two", "three")]
    return seal_stanzas(_content_key(), recipients, b"info")


def _broadcast(data):
    """A true broadcast, damaged, under a manifest that claims other sizes."""
    tape = Tape(data)
    header, blob = _true_broadcast()
    claimed = tape.choice((header.stanza_bytes, 0, 32, 120, len(blob), 2**40, tape.number(2**16)))
    package_bytes = tape.choice((header.package_bytes, 0, 2**40))
    changed = replace(header, stanza_bytes=claimed, package_bytes=package_bytes)
    key = opening_key(tape.choice(("one", "stranger")))
    opened = open_broadcast(key, changed, tape.damaged(blob, 6))
    demand(opened is None or opened[0] == _PACKAGE, "no other package comes out")


@cache
def _true_broadcast():
    terms = Terms("round", AT, 1, bytes(32), "train", groups=GROUPS)
    recipients = [opening_key(name).public() for name in ("one", "two")]
    header, blob, _ = seal_broadcast(terms, _PACKAGE, recipients, PACKET_BYTES)
    return header, blob


def _segment(data):
    tape = Tape(data)
    sealed = _true_segment()
    given = tape.rest() if not tape.number(4) else tape.damaged(sealed)
    group = Group(tape.choice(("layer0", "other")), tape.choice((64, 0, 2**40)))
    found = open_segment(opening_key("cloud"), AT, bytes(32), group, b"m" * 32, given)
    demand(found is None or given == sealed, "only the very segment opens")


@cache
def _true_segment():
    return seal_segment(manifest(), GROUPS[0], b"m" * 32, b"tensor")


def _enrolment(data):
    found = Enrolment.from_json(data)
    found.verify()
    again = Enrolment.from_json(found.to_json().encode())
    demand(again == found, "an enrolment survives its file")


def _enrolments():
    yield Enrolment.make(signing_key("device 0"), opening_key("one")).to_json().encode()
    yield Enrolment.make(signing_key("device 1"), opening_key("two")).to_json().encode()


_KEYS = (SigningKey, VerifyKey, SealingKey, OpeningKey, ContentKey, LedgerKey)


def _key_file(data):
    which = data[0] % (len(_KEYS) + 1) if data else 0
    path = as_file("key", data[1:])
    path.chmod(0o600)
    if which == len(_KEYS):
        ChainHead.load(path)
    else:
        key = _KEYS[which].load(path)
        demand(key.to_bytes().hex().encode() in data.lower(), "the key is what the file says")


def _key_files():
    for number, kind in enumerate(_KEYS):
        yield bytes((number,)) + f"{kind.tag} {'5a' * 32}\n".encode()
    yield bytes((len(_KEYS),)) + f"edgeveil-ledger-head-1 {'00' * 40}\n".encode()


def _ledger(data):
    """A true ledger whose three files are damaged by hand."""
    tape, (path, book) = Tape(data), _true_ledger()
    copy = scratch() / "ledger.sqlite"
    for suffix, most in ((".sqlite", 6), (".head", 1), (".key", 1)):
        raw = path.with_suffix(suffix).read_bytes()
        copy.with_suffix(suffix).write_bytes(tape.damaged(raw, most))
        copy.with_suffix(suffix).chmod(0o600)
    for rest in ("-wal", "-shm", "-journal"):
        copy.with_name(copy.name + rest).unlink(missing_ok=True)
    found = read_ledger(copy)
    demand(found.accounts == book.accounts, "a damaged ledger tells nothing else")


@cache
def _true_ledger():
    folder = scratch() / "true-ledger"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = folder / "ledger.sqlite"
    event = gaussian_event("linear", 2**24, 0.5, 30, grid_bits=24)
    ledger = Ledger(path, "digits")
    limits = Limits(
        max_epsilon_per_job=200, lifetime_epsilon=500, lifetime_delta=1e-2, max_inference_epsilon=9
    )
    ledger.open_job(JobRequest("job", 1e-5, (event, event)), limits)
    ledger.commit("job", 1, [event], b"tensors")
    ledger.close()
    return path, read_ledger(path)


def _tapes():
    yield b"\0"
    yield b"\1" + bytes(40)
    yield b"\1\4\2\0"
    yield b"\1\4\2\1\1\3\1\0\2\7"
    yield bytes(range(1, 200, 3))


_HEX = [kind.tag.encode() + b" " for kind in _KEYS] + [b"edgeveil-ledger-head-1 "]

TARGETS = {
    "stream": Target(_open_stream, _tapes, (CryptoError,), max_bytes=512),
    "stanzas": Target(
        _stanzas, lambda: [*_tapes(), b"\0" + _area()], (CryptoError,), 32 + 20 * STANZA_BYTES
    ),
    "broadcast": Target(_broadcast, _tapes, (ProtocolError,), max_bytes=128),
    "segment": Target(_segment, _tapes, (CryptoError,), max_bytes=256),
    "enrolment": Target(
        _enrolment, _enrolments, (EnrolmentError,), 5000, [b'"sealing": "', b'"identity": "']
    ),
    "key_file": Target(_key_file, _key_files, (CryptoError, PrivacyError), 1200, _HEX),
    "ledger": Target(_ledger, _tapes, (PrivacyError, UsageError), max_bytes=128),
}
