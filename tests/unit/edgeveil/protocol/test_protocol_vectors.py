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
    "Manifest": (True, [], 1, b"", [], 1, b"", 0, b"", 0, None),
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
    "Unmask": (b"", b""),
}  # fields that came later: what a frame without them means
DIGESTS = {  # of the first vectors, by their number: to append some, add the digest of all
    104: "18345c9e1d3ac94a00927b8c5eca5e0c9e92e92dd9d825aa881e58b3546290fe",
    106: "42fc17005d536ac8c80ae23cebd2e90fa9c5281e320a4053001e7d9a0291b813",
}


def test_old_vectors_are_unchanged_and_every_kind_of_message_has_one():
    for count, digest in DIGESTS.items():
        first = json.dumps(VECTORS[:count], sort_keys=True).encode()
        assert hashlib.sha256(first).hexdigest() == digest
    assert len(VECTORS) == max(DIGESTS)
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


def test_a_job_s_proof_is_of_the_key_for_releases():
    (vector,) = (one for one in VECTORS if "releases_by" in one["expect"])
    job = m.decode_header(m.decode(bytes.fromhex(vector["frame"]), PACKET_BYTES).header)
    assert job.broadcast_bytes == 70_000
    for name, good in (("releases_by", True), ("signed_by", False)):
        key = VerifyKey(bytes.fromhex(FILE["keys"][vector["expect"][name]]))
        assert m.PeerKeys(releases=key).will_take_release(job) is good


def reason(read, *given):
    with pytest.raises(ProtocolError) as caught:
        read(*given)
    return caught.value.reason


@pytest.mark.parametrize("vector", VECTORS, ids=lambda one: one["name"])
def test_a_frame_is_read_and_written_or_refused_as_recorded(vector):
    frame, expect = bytes.fromhex(vector["frame"]), vector["expect"]
    limit_bytes = vector.get("limit_bytes", PACKET_BYTES)
    if "refused" in expect:
        assert reason(m.decode, frame, limit_bytes) == expect["refused"]
        return
    message = m.decode(frame, limit_bytes)
    assert type(message).__struct_config__.tag == expect["message"]
    assert as_recorded(message, frame[1:])
    if not isinstance(message, m.Offer | m.Note):
        return
    offered = isinstance(message, m.Offer)
    signed = message.header if offered else message.body
    read = m.decode_header if offered else m.decode_body
    if "inner_refused" in expect:
        assert reason(read, signed) == expect["inner_refused"]
        return
    inner = read(signed)
    assert type(inner).__name__.lower() == expect["inner"]
    assert as_recorded(inner, signed.payload)
    key = VerifyKey(bytes.fromhex(FILE["keys"][expect["signed_by"]]))
    m.check_signature(signed, signed.signer, key, HEADER if offered else BODY)
