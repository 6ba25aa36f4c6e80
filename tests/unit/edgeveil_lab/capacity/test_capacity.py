"""Simulated fleets: each party's load, within the bounds that the protocol promises."""

import json

import pytest

from edgeveil.errors import UsageError
from edgeveil_lab.capacity.command import capacity
from edgeveil_lab.capacity.play import FleetPlay
from edgeveil_lab.load.scenario import LoadOptions

UNSELECTED_BYTES = 8 << 10


def played(folder, devices, selected):
    shape = {"rounds": 2, "payload_bytes": 8000, "package_bytes": 16000, "deadline_s": 36000}
    play = FleetPlay(LoadOptions(devices=devices, selected=selected, **shape), folder)
    try:
        return play.play()
    finally:
        play.close()


@pytest.mark.drill
@pytest.mark.parametrize(("devices", "selected"), [(300, 20), (300, 120), (2000, 500)])
def test_who_is_not_asked_hears_little_however_many_there_are(tmp_path, devices, selected):
    phases = played(tmp_path, devices, selected)
    for name in ("round 1", "round 2"):
        heard = phases[name]["parties"]["each device"]
        assert 0 < heard["bytes_in"] <= UNSELECTED_BYTES
    # The job and the model come with one bucket, not with a stanza for each device.
    assert phases["announce"]["parties"]["each device"]["bytes_in"] < 2 * UNSELECTED_BYTES


def test_every_upload_is_handed_over_once_and_every_round_committed(tmp_path):
    phases = played(tmp_path, 80, 30)
    last = phases["round 2"]["parties"]
    assert last["proxy"]["received"]["offer"] >= 30
    assert last["cloud"]["rows"]["exchanges"] == 1
    assert last["cloud"]["bytes_in"] >= 30 * 4 * 2000
    assert phases["release"]["parties"]["cloud"]["rows"]["releases"] == 1
    assert all(phases[name]["parties"]["proxy"]["busy_s"] > 0 for name in phases)


SMALL = {"selected": 10, "rounds": 1, "upload_bytes": 4096, "package_bytes": 4096}


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    assert capacity((50, 100), tmp_path, **SMALL, as_json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "capacity.json").read_text())
    assert [fleet["shape"]["devices"] for fleet in told["fleets"]] == [50, 100]
    for fleet in told["fleets"]:
        who = {one["waits_for"]["who"] for one in fleet["phases"].values()}
        assert who <= {"cloud", "proxy", "edge broker's line"}
        assert fleet["rows"]["cloud"]["enrolled_keys"] == fleet["shape"]["devices"]


def test_a_round_cannot_ask_more_than_there_are(tmp_path):
    with pytest.raises(UsageError, match="as many devices as a round selects"):
        capacity((5,), tmp_path, **SMALL)
