"""One question, one answer: whatever became of the device's files, the same bits are sent again."""

import shutil

import msgspec
import numpy as np
import pytest
from edge_kit import CENTRE, FIRST, JOB_ID, QUADRATIC, Device, Loader, Round, job

from edgeveil.data.records import Records
from edgeveil.jobs import compile_job
from edgeveil.jobs.plan import SOFTMAX
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.protocol.device_round import ComputeAnswer, NoAnswer, OpenPackage

HEX = JOB_ID.hex()
NOISED_STEPS = {"method": "dp_sgd", "rounds": 3, "local_steps": 4, "sampling_rate": 0.3}
PLANS = {
    "fm": compile_job(job()),
    "fm, laplace": compile_job(job(train={"method": "fm", "rounds": 3, "noise": "laplace"})),
    "dp_sgd": compile_job(
        job(features=(), model={"name": "mlp", "hidden": [8]}, train=NOISED_STEPS)
    ),
}
POLICY = {"min_devices": 3, "allowed_methods": ("fm", "dp_sgd")}
FILES = [LEDGER_FILE, "ledger.key", "ledger.head"]


class Changed(Loader):
    def __call__(self, *asked):
        training, evaluation = super().__call__(*asked)
        return Records(training.x[1:], training.y[1:]), evaluation


def started(folder, plan, load=None):
    return Device(folder, load, policy=POLICY).knows(plan)


def stopped(device):
    device.ledger.close()
    device.store.close()


def answers(device, rounds):
    return [one.tensors(device.answer(one)) for one in rounds]


@pytest.mark.parametrize("name", PLANS)
def test_a_restored_backup_and_a_copied_box_answer_as_before(tmp_path, name):
    plan, box, backup = PLANS[name], tmp_path / "box", tmp_path / "backup"
    stopped(started(box, plan))
    shutil.copytree(box, backup)
    device = started(box, plan)
    rounds = [Round(plan, index, device.keys()) for index in (CENTRE, QUADRATIC, FIRST)]
    sent = answers(device, rounds)
    assert any(SOFTMAX in tensors for tensors in sent)
    stopped(device)
    shutil.copytree(backup, tmp_path / "clone")
    clone = started(tmp_path / "clone", plan)
    for file in FILES:
        shutil.copy(backup / file, box / file)
    restored = started(box, plan)
    for other in (clone, restored):
        assert other.load.reads == 0
        assert other.ledger.spent(HEX).epsilon == 0
        assert answers(other, rounds) == sent
        assert other.load.reads == 1  # computed, not recalled
        assert read_ledger(other.folder / LEDGER_FILE).links == 1 + len(rounds)


@pytest.mark.parametrize("name", PLANS)
def test_other_records_another_package_or_device_have_other_noise(tmp_path, name):
    plan, box = PLANS[name], tmp_path / "box"
    stopped(started(box, plan))
    for other in ("changed", "asked"):
        shutil.copytree(box, tmp_path / other)
    device, stranger = started(box, plan), started(tmp_path / "stranger", plan)
    asked = Round(plan, CENTRE, device.keys())
    sent = answers(device, [asked])[0]
    changed = answers(started(tmp_path / "changed", plan, Changed()), [asked])[0]
    once_more = started(tmp_path / "asked", plan)
    opened = once_more.host.perform(OpenPackage(asked.manifest, asked.blob))
    manifest = msgspec.structs.replace(asked.manifest, package_digest=bytes(32))
    padded = asked.tensors(once_more.host.perform(ComputeAnswer(manifest, opened.package)))
    alien = answers(stranger, [Round(plan, CENTRE, stranger.keys())])[0]
    segment = plan.segments(plan.round(CENTRE))[0]
    values = [
        np.frombuffer(one[segment.name][: segment.byte_count], segment.dtype)
        for one in (sent, changed, padded, alien)
    ]
    for other_values in values[1:]:
        assert (values[0] != other_values).all()


def overwrite(backup, box):
    for file in FILES:
        shutil.copyfile(backup / file, box / file)


def replace(backup, box):
    for file in FILES:
        (box / file).rename(box / f"{file}.aside")
        shutil.copy(backup / file, box / file)


@pytest.mark.parametrize("restore", [overwrite, replace])
def test_a_backup_restored_under_a_running_device_is_noticed_before_a_record_is_read(
    tmp_path, restore
):
    plan, box, backup = PLANS["fm"], tmp_path / "box", tmp_path / "backup"
    device = started(box, plan)
    rounds = [Round(plan, index, device.keys()) for index in (CENTRE, QUADRATIC, FIRST, FIRST + 1)]
    early = answers(device, rounds[:1])
    stopped(device)
    shutil.copytree(box, backup)
    device = started(box, plan)
    sent = early + answers(device, rounds[1:3])
    spent, reads = device.ledger.spent(HEX), device.load.reads
    restore(backup, box)
    declined = device.answer(rounds[3])
    assert isinstance(declined, NoAnswer)
    assert "the privacy ledger was altered or lost a part" in declined.why
    assert device.load.reads == reads
    assert isinstance(device.answer(rounds[0]), NoAnswer)  # nor is anything recalled
    stopped(device)
    if restore is replace:  # what was put aside is whole
        assert read_ledger(backup / LEDGER_FILE).links == 2
        for file in FILES:
            (box / f"{file}.aside").replace(box / file)
        assert read_ledger(box / LEDGER_FILE).links == 4
    else:  # begun again from the backup alone: the same answers
        for file in box.glob("ledger.sqlite-*"):
            file.unlink()
        overwrite(backup, box)
    again = started(box, plan)
    assert restore is overwrite or again.ledger.spent(HEX) == spent
    assert answers(again, rounds[:3]) == sent
    assert restore is overwrite or again.load.reads == 0
