"""Recorded frames keep their meaning: `tests/vectors/wire.json` only ever grows."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from edgeveil.crypto.keys import VerifyKey
from edgeveil.crypto.labels import BODY, HEADER
from edgeveil.errors import ProtocolError
from edgeveil.protocol import messages as m

FILE = json.loads((Path(__file__).parents[3] / "vectors" / "wire.json").read_text())
VECTORS = FILE["vectors"]
PACKET_BYTES = 65536
NEW = {
    "Manifest": (True, [], 1, b"", [], 1, b"", 0, b"", 0),
    "Roster": ("", 0.0, 0),
    "Hello": (0, 0, -1, 0),
    "Upload": (0, b"", b""),
    "Batch": (b"", [], -1),
    "Decline": ("",),
    "Shortfall": ([], -1),
    "Commit": ([],),
    "RoundKey": (b"",),
    "Offer": (False,),
    "Need": (False,),
}  # fields that came later: what a frame without them means
DIGESTS = {  # of the first so many; who appends vectors appends the digest of all
    71: "8f66a19e5067efca1e055255171822ba711806a4ee31ec4ce2ddada511b41cc1",
    78: "9dca94e0b10fcfd5fa5b37906e5956628918f241132a7047cbf8145b67839602",
    80: "954a8e56be1ef8baf9c6246ccf4f6a0563891c3c6b1a640728d949cb273be853",
    81: "cf3818f98c41e5ed0f0d3326c1df0ffebf93daa170d78370a97d501bbc4bfb05",
    84: "0bba34f6c1e0808f27b45e6be19bf484b1df1027b1d834bc9b878f0f401b5f8e",
    89: "6676b9ed9048525e5a5b27ed7fda1cc7dfe54aaa34c7d48380faaae5289a03b9",
    92: "a4fa96931fd4d2b188f748eda569d3802af1dcf077ce54f3c018f2644717291e",
    96: "481f6674e92e392299ae1c2b8e3ce4d6b98c1f5f5a90945c7f50a343a6df667b",
    98: "c84747398e880265050ec88ffcc205b2116bc61ee358f743d767c0d78ed38525",
    103: "d5ca68303debdf68e8c0ebcdf2666b6972504d09a0d12623a00d9b7f71a5fc78",
    104: "647ab3362866d16761c62112219dd83a8b8d78bde24fe9f692dae9749f626b3c",
}


def pick(refused):
    chosen = [v for v in VECTORS if ("refused" in v["expect"]) == refused]
    return pytest.mark.parametrize("vector", chosen, ids=lambda v: v["name"])


def frame_of(vector):
    return bytes.fromhex(vector["frame"])


@pytest.mark.parametrize(("count", "digest"), DIGESTS.items())
def test_old_vectors_are_never_changed(count, digest):
    first = json.dumps(VECTORS[:count], sort_keys=True).encode()
    assert hashlib.sha256(first).hexdigest() == digest


def test_every_vector_is_under_a_digest_and_has_a_name_of_its_own():
    assert len(VECTORS) == max(DIGESTS)
    names = [vector["name"] for vector in VECTORS]
    assert len(names) == len(set(names))


def test_every_kind_of_message_has_a_vector():
    found = {v["expect"].get(key) for v in VECTORS for key in ("message", "inner")}
    kinds = (*m.Message.__args__, *m.Header.__args__, *m.Body.__args__)
    assert {kind.__struct_config__.tag for kind in kinds} <= found


def as_recorded(inner, payload):
    """Written again it is the same, but for last fields that came later and have their defaults."""
    again = msgspec.msgpack.encode(inner)
    if again == payload:
        return True
    written, recorded = map(msgspec.msgpack.decode, (again, payload))
    later = tuple(written[len(recorded) :])
    known = NEW[type(inner).__name__]
    return written[: len(recorded)] == recorded and later == known[-len(later) :]


@pick(refused=True)
def test_a_refused_frame_is_refused_for_the_recorded_reason(vector):
    with pytest.raises(ProtocolError) as caught:
        m.decode(frame_of(vector), vector.get("limit_bytes", PACKET_BYTES))
    assert caught.value.reason == vector["expect"]["refused"]


def test_a_job_s_proof_is_of_the_key_for_releases():
    (vector,) = (one for one in VECTORS if "releases_by" in one["expect"])
    message = m.decode(frame_of(vector), PACKET_BYTES)
    assert isinstance(message, m.Offer)
    job = m.decode_header(message.header)
    assert isinstance(job, m.Manifest) and job.broadcast_bytes == 70_000
    for name, good in (("releases_by", True), ("signed_by", False)):
        key = VerifyKey(bytes.fromhex(FILE["keys"][vector["expect"][name]]))
        assert m.PeerKeys(releases=key).will_take_release(job) is good


@pick(refused=False)
def test_an_accepted_frame_is_read_and_written_as_recorded(vector):
    message = m.decode(frame_of(vector), PACKET_BYTES)
    assert type(message).__struct_config__.tag == vector["expect"]["message"]
    assert as_recorded(message, frame_of(vector)[1:])
    if not isinstance(message, m.Offer | m.Note):
        return
    signed = message.header if isinstance(message, m.Offer) else message.body
    read = m.decode_header if isinstance(message, m.Offer) else m.decode_body
    if "inner_refused" in vector["expect"]:
        with pytest.raises(ProtocolError) as caught:
            read(signed)
        assert caught.value.reason == vector["expect"]["inner_refused"]
        return
    inner = read(signed)
    assert type(inner).__name__.lower() == vector["expect"]["inner"]
    assert as_recorded(inner, signed.payload)
    key = VerifyKey(bytes.fromhex(FILE["keys"][vector["expect"]["signed_by"]]))
    m.check_signature(signed, signed.signer, key, HEADER if isinstance(message, m.Offer) else BODY)
