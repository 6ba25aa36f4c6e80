"""What a device is told of its upload, also where it was away when the round's record came."""

import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import proxy_broadcasts, transfer
from tests.kits.fleet import PACKET_BYTES, Fleet, small_job

FOUR_OF_FIVE = {"deadline_s": 20.0, "min_batch": 3, "quorum": 0.8, "grace_s": 1.0}


def told(fleet, device):
    return {one.round: one.state for one in fleet.devices[device].store.receipts()}


def newest_round(fleet):
    kept = [one.header for one in fleet.proxy.machine.memory.kept.values()]
    rounds = [h.at.round for h in kept if isinstance(h, m.Manifest) and h.kind == "round"]
    return max(rounds, default=0)


def test_a_device_that_comes_back_in_the_next_round_hears_what_became_of_its_upload(tmp_path):
    fleet = Fleet(tmp_path, 5)
    fleet.submit(small_job(round=FOUR_OF_FIVE))
    box = fleet.devices[0]
    fleet.net.run(lambda: told(fleet, 0).get(1) == "held")
    box.runner.up = False
    fleet.net.run(lambda: newest_round(fleet) == 2)
    assert told(fleet, 0)[1] == "held"
    box.runner.up = True
    fleet.net.connect(box.runner)
    assert fleet.net.run(lambda: told(fleet, 0)[1] == "counted", fleet.net.now_s + 3)


ONE_SEGMENT = {  # of each device, in each of four rounds
    "train": {"method": "fm", "rounds": 2},
    "unsupervised": {"every_rounds": 0, "eval_type": "NOT_EVAL"},
}


class Wire:
    """What devices ask the proxy for and what it sends them of records, each frame counted."""

    def __init__(self):
        self.records = []
        self.asked = {}
        self.pushed = set()

    def __call__(self, sender, to, frame):
        message = m.decode(frame, PACKET_BYTES)
        if isinstance(message, m.Offer) and isinstance(sender, fx.ProxyAddress):
            header = m.decode_header(message.header)
            if isinstance(header, m.Commit) and header not in self.records:
                self.records.append(header)
        if isinstance(message, m.Need) and isinstance(sender, fx.DeviceAddress):
            self.asked.setdefault(message.blob, set()).add(sender)
        if isinstance(message, m.BlobPart) and isinstance(to, fx.AllDevices):
            self.pushed.add(message.blob)
        return [0.001]

    def of(self, record):
        return [self.asked.get(piece.digest, set()) for piece in record.pieces]


def played(folder, wire, **job):
    fleet = Fleet(folder, 14, faults=wire)
    entry = fleet.submit(small_job(selection={"devices": 12}, **job))
    assert fleet.finish(entry) == "completed"
    fleet.net.run(lambda: False, fleet.net.now_s + 3)
    return fleet


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(transfer, "PIECE_MARKS", 6)
    monkeypatch.setattr(proxy_broadcasts, "RECORD_BYTES", 0)


@pytest.mark.usefixtures("small_pieces")
def test_each_device_of_a_round_is_told_by_the_one_piece_that_it_asks_for(tmp_path):
    wire = Wire()
    fleet = played(tmp_path, wire, **ONE_SEGMENT)
    assert len(wire.records) == 4
    assert max(len(record.pieces) for record in wire.records) == 2
    for record in wire.records:
        askers = wire.of(record)
        assert sum(map(len, askers)) == 12 == len(set().union(*askers))
        assert [len(who) * 32 for who in askers] == [one.size_bytes for one in record.pieces]
        assert min(map(len, askers)) >= 3
        assert record.blob.digest not in wire.pushed
    for number, box in enumerate(fleet.devices):
        assert set(told(fleet, number).values()) <= {"counted"}
        assert box.machine.fetches.under_way == {}


@pytest.mark.usefixtures("small_pieces")
def test_under_cover_nobody_asks_for_a_piece(tmp_path):
    wire = Wire()
    fleet = Fleet(tmp_path, 8, faults=wire, proxy={"cover_traffic": True, "cover_window_s": 4.0})
    entry = fleet.submit(small_job(selection={"devices": 6}, **ONE_SEGMENT))
    assert fleet.finish(entry) == "completed"
    assert len(wire.records) == 4
    assert not any(who for record in wire.records for who in wire.of(record))
