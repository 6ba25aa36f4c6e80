"""Whatever admitted devices send, the model is the one that the honest ones make."""

from collections import Counter

import pytest

from edgeveil.protocol import effects as fx
from tests.kits.fleet import Fleet, committed, small_job
from tests.sim import hostile
from tests.sim.hostile import Attacker

pytestmark = pytest.mark.slow

DEVICES, ATTACKERS = 7, 2
JOB = small_job(
    train={"method": "fm", "rounds": 1},
    unsupervised={"every_rounds": 1, "eval_type": "SILHOUETTE_SCORE"},
)


class Outcome:
    """A job among attackers: its model, who was counted, and what was refused at the proxy."""

    def __init__(self, folder, tensor, spam=None):
        self.fleet = fleet = Fleet(folder, DEVICES)
        fleet.net.wire = []
        self.attackers = [Attacker(fleet, box, tensor) for box in fleet.devices[:ATTACKERS]]
        if spam is not None:
            self.attackers[0].spam = spam
        self.job = fleet.submit(JOB)
        self.status = fleet.finish(self.job)
        self.rounds = committed(fleet, self.job)
        release = fleet.store.release(self.job)
        self.model = release.safetensors if release else b""
        self.refused = fleet.proxy.runner.refused
        self.refused_by_cloud = Counter[str]()
        for one in self.rounds:
            self.refused_by_cloud.update(one.get("refused", {}))

    def bytes_to(self, device):
        wire = self.fleet.net.wire or []
        return sum(len(frame) for by, to, frame in wire if to == fx.DeviceAddress(device) != by)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    outcome = Outcome(tmp_path_factory.mktemp("undisturbed"), None)
    assert outcome.status == "completed" and outcome.model
    assert {r["uploads"] for r in outcome.rounds} == {DEVICES - ATTACKERS}
    assert not outcome.refused and not outcome.refused_by_cloud
    return outcome


TENSORS = {
    "NaN": hostile.filled(float("nan")),
    "infinite": hostile.filled(float("inf")),
    "the largest numbers": hostile.filled(1.7e308),
    "a hundred times too large": hostile.filled(1e18),
    "bits in the padding": hostile.every_bit,
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_what_an_insider_uploads_is_refused_and_counted(tmp_path, undisturbed, tensor):
    outcome = Outcome(tmp_path, tensor)
    assert outcome.status == "completed"
    assert outcome.model == undisturbed.model
    assert sum(outcome.refused_by_cloud.values()) >= ATTACKERS * len(outcome.rounds)
    assert set(outcome.refused_by_cloud) <= {"not_finite", "norm", "bad_padding"}


SPAM = {
    "many uploads": (hostile.second_uploads, {"duplicate_upload", "closed_round"}),
    "other names and rounds": (hostile.other_names, {"unknown_signer", "closed_round"}),
    "wrong forms": (hostile.wrong_forms, {"wrong_groups", "wrong_size"}),
    "others' words": (hostile.others_words, {"unexpected_body", "unexpected_header"}),
    "a flood": (hostile.flood, {"unknown_blob", "bad_index", "closed_round", "want_too_often"}),
    "hellos": (hostile.hellos, {"hello_too_often"}),
    "offers that never complete": (hostile.never_complete, set()),
}


@pytest.mark.parametrize(("spam", "reasons"), SPAM.values(), ids=SPAM)
def test_what_a_device_says_beside_its_answer_is_refused_and_counted(
    tmp_path, undisturbed, spam, reasons
):
    outcome = Outcome(tmp_path, None, spam)
    assert outcome.status == "completed"
    assert outcome.model == undisturbed.model
    assert reasons <= set(outcome.refused)
    assert {r["uploads"] for r in outcome.rounds} == {DEVICES - ATTACKERS}
    # However often it asks, it hears little more than an honest one, and the proxy keeps nothing.
    heard = [run.bytes_to(run.fleet.devices[0].id) for run in (undisturbed, outcome)]
    assert heard[1] < 2 * heard[0]
    assert (
        outcome.fleet.proxy.machine.rounds.spooled_bytes
        == outcome.fleet.proxy.machine.uploads.credit.granted_bytes
        == 0
    )
