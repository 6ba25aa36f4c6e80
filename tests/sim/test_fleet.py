"""One fleet, real hosts, virtual time: what the design promises of a whole job."""

import time
import zlib

import pytest

from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Note, decode
from edgeveil.testing import PlainSealing
from edgeveil_cloud.open_segments import RoundSecret
from edgeveil_proxy.registry import ROSTER_VALID_S
from tests.kits.fleet import PACKET_BYTES, Fleet, committed, small_job


@pytest.mark.slow
def test_encryption_changes_nothing_of_what_is_learned(tmp_path):
    def model(folder, **options):
        fleet = Fleet(folder, 6, **options)
        job = fleet.submit(small_job(selection={"devices": 5}))
        assert fleet.finish(job) == "completed"
        return fleet.store.release(job).safetensors

    plain = model(tmp_path / "plain", sealing=PlainSealing(), packet_bytes=1 << 22)
    assert plain == model(tmp_path / "encrypted")


def ledger_links(fleet):
    return [read_ledger(box.site.state_dir / LEDGER_FILE).links for box in fleet.devices]


def check_wire(fleet, weights):
    secrets, packed = [b"secret-", b'"epsilon"', b"safetensors", weights[-64:]], 0
    for sender, to, frame in fleet.net.wire:
        assert not any(secret in frame for secret in secrets)
        # Whatever is large is ciphertext, hashes or keys: nothing that could be packed.
        data = getattr(decode(frame, PACKET_BYTES), "data", b"")
        if len(data) >= 256:
            packed += 1
            assert len(zlib.compress(data, 9)) > 0.98 * len(data)
        if isinstance(sender, fx.CloudAddress) or isinstance(to, fx.CloudAddress):
            assert not any(box.id.encode() in frame for box in fleet.devices)
        assert len(frame) <= PACKET_BYTES
    assert packed >= 5 * 8  # of each round at least its package on both sides and six uploads


def test_job_completes_every_device_gets_the_model_and_the_ledgers_spent_what_was_printed(tmp_path):
    fleet = Fleet(tmp_path, 6)
    fleet.net.wire = []
    job = fleet.submit(small_job())
    assert fleet.finish(job) == "completed"
    rounds = committed(fleet, job)
    assert [r["uploads"] for r in rounds] == [6] * 5
    assert rounds[-1]["accuracy"] > 0.7
    assert not any(node.refused for node in fleet.net.nodes.values())
    end = fleet.store.events_after(0, job)[-1]
    assert end.type == "job_completed"
    fleet.net.run(lambda: False, fleet.net.now_s + 5)
    release = fleet.store.release(job)
    for box in fleet.devices:
        installed = list((box.site.state_dir / "releases").rglob("model.onnx"))
        assert [path.read_bytes() for path in installed] == [release.onnx]
        for purpose, key in (("train", "training"), ("infer", "inference")):
            spent, printed = box.ledger.spent(purpose=purpose), end.data["privacy"][key]
            assert (spent.epsilon, spent.delta) == (printed["epsilon"], printed["delta"])
            assert spent.proven
            assert printed["status"] == "proven"
    check_wire(fleet, release.safetensors)


def test_below_the_floor_nothing_is_handed_over_and_the_job_says_why(tmp_path):
    fleet = Fleet(tmp_path, 5, floor=4)
    job = fleet.submit(small_job(round={"deadline_s": 5.0, "min_batch": 3, "retries": 1}))
    for box in fleet.devices[:2]:
        box.runner.up = False
    assert fleet.finish(job) == "paused"
    assert "3 uploaded" in fleet.store.job(job).reason
    repeats = [e for e in fleet.store.events_after(0, job) if e.type == "round_repeated"]
    assert len(repeats) == 1
    assert committed(fleet, job) == []


def test_repeated_attempt_sends_the_same_tensors_and_spends_once(tmp_path):
    lost = {"on": True}

    def faults(sender, to, frame):
        # The proxy hears three of the five devices, until the first attempt has failed.
        quiet = lost["on"] and sender in {fx.DeviceAddress(b.id) for b in fleet.devices[:2]}
        hello = quiet and isinstance(decode(frame, PACKET_BYTES), Note)
        return [0.001] if hello or not quiet else []

    fleet = Fleet(tmp_path, 5, floor=4, faults=faults)
    job = fleet.submit(small_job(round={"deadline_s": 5.0, "min_batch": 3, "retries": 2}))
    fleet.net.run(lambda: any(e.type == "round_repeated" for e in fleet.store.events_after(0, job)))
    lost["on"] = False
    assert fleet.finish(job) == "completed"
    rounds = committed(fleet, job)
    assert rounds[0]["attempt"] == 2
    assert {round(box.ledger.spent().epsilon, 6) for box in fleet.devices} == {8.0}


def test_every_attempt_asks_the_same_devices(tmp_path):
    # Tensors that are sent again must not be told apart by who was asked.
    fleet = Fleet(tmp_path, 9, floor=3)
    job = fleet.submit(
        small_job(selection={"devices": 4}, round={"deadline_s": 5.0, "min_batch": 3})
    )
    asked = []
    for attempt in (1, 2, 3):
        fleet.net.run(lambda n=attempt: fleet.store.round_key(job, 1, n) is not None)
        secret = RoundSecret.from_bytes(fleet.store.round_key(job, 1, attempt))
        asked.append(set(secret.recipients))
        for box in fleet.devices:
            box.runner.up = attempt == 2  # nobody answers the first attempt
    assert len(asked[0]) == 4
    assert asked == [asked[0]] * 3


def test_job_pauses_while_the_roster_is_stale_and_asks_nobody(tmp_path, monkeypatch):
    fleet = Fleet(tmp_path, 6)
    job = fleet.submit(small_job())
    fleet.net.run(lambda: len(committed(fleet, job)) == 2)
    with monkeypatch.context() as clock:
        clock.setattr(fleet.store, "_now_s", lambda: time.time() + ROSTER_VALID_S + 60)
        assert fleet.finish(job) == "paused"
        assert "the proxy's roster is stale since" in fleet.store.job(job).reason
        asked = len(committed(fleet, job)) + 1
        assert fleet.store.round_key(job, asked, 1) is None  # its model was sealed to nobody
        links = ledger_links(fleet)
        fleet.net.run(lambda: False, fleet.net.now_s + 100)
        assert ledger_links(fleet) == links
    fleet.resume(job)
    assert fleet.finish(job) == "completed"
    assert [r["uploads"] for r in committed(fleet, job)] == [6] * 5
