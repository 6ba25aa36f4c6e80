"""What a device declines: before it reads a record, with the reason for its owner."""

from dataclasses import replace

import pytest
from edge_kit import CENTRE, FIRST, JOB_ID, PLAN, QUADRATIC, Device, Loader, Round, job

from edgeveil.errors import ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.policy import JobRequest
from edgeveil.protocol.device import JobClosed
from edgeveil.protocol.device_round import ComputeAnswer, NoAnswer, SealedAnswer
from edgeveil.protocol.sealed import RoundPackage
from edgeveil_edge.consent import limits_of


def why(device, sealed):
    answer = device.answer(sealed)
    assert isinstance(answer, NoAnswer), answer
    return answer.why


def test_records_split_once_are_not_split_elsewhere(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    sealed.tensors(device.answer(sealed))
    data = {**PLAN.job.data.model_dump(), "evaluation_share": 0.3}
    other, second = compile_job(job(job="other", data=data)), b"K" * 16
    for box in (device, device.restarted()):
        reads = box.load.reads
        sealed = Round(other, CENTRE, box.knows(other, second).keys(), job_id=second)
        assert why(box, sealed).startswith("data.evaluation_share: ")
        assert box.load.reads == reads
    assert device.ledger.spent(JOB_ID.hex()) == PLAN.spent(1).training


def split_at(share, source, name):
    data = {**PLAN.job.data.model_dump(), "source": source, "evaluation_share": share}
    return compile_job(job(job=name, data=data))


def answers(device, plan, job_id):
    sealed = Round(plan, CENTRE, device.knows(plan, job_id).keys(), job_id=job_id)
    return device.answer(sealed)


def test_a_box_that_is_pointed_to_another_data_set_splits_that_anew(tmp_path):
    """And the one before stays as it was split, whatever came between."""
    assert isinstance(answers(Device(tmp_path), PLAN, JOB_ID), SealedAnswer)
    other = Device(tmp_path, data={"name": "other", "source": "digits"})
    assert isinstance(answers(other, split_at(0.3, "other", "b"), b"B" * 16), SealedAnswer)
    back = Device(tmp_path)
    moved = answers(back, split_at(0.3, "bench", "c"), b"C" * 16)
    assert isinstance(moved, NoAnswer)
    assert moved.why.startswith("data.evaluation_share: the records were split at 0.1")
    assert isinstance(answers(back, split_at(0.1, "bench", "d"), b"D" * 16), SealedAnswer)


def test_a_paused_device_and_a_small_outbox_sit_the_round_out(tmp_path):
    unread = Loader(AssertionError("read"))
    paused = Device(tmp_path / "a", unread).knows(PLAN)
    paused.host.pause(True)
    assert "paused" in why(paused, Round(PLAN, CENTRE, paused.keys()))
    wide = compile_job(job(data={**PLAN.job.data.model_dump(), "input_shape": (200,)}))
    small = Device(tmp_path / "b", unread, limits={"outbox_bytes": 65536}).knows(wide)
    # Told with the first round, whose upload is small: nothing is paid for an end out of reach.
    assert "limits.outbox_bytes 65536" in why(small, Round(wide, CENTRE, small.keys()))
    assert small.ledger.spent().epsilon == paused.ledger.spent().epsilon == 0


def test_participations_that_are_used_up_are_refused_before_a_record_is_read(tmp_path):
    once = {"epsilon": 4.0, "delta": 1e-5, "max_participations": 1}
    plan = compile_job(job(privacy=once, selection={"devices": 9}))
    device = Device(tmp_path).knows(plan)
    first = Round(plan, FIRST, device.keys())
    first.tensors(device.answer(first))
    again = device.restarted(load=Loader(AssertionError("the data were read")))
    assert "max_participations" in why(again, Round(plan, FIRST + 1, again.keys()))


def test_a_closed_job_answers_no_more(device):
    sealed = Round(PLAN, CENTRE, device.keys())
    sealed.tensors(device.answer(sealed))
    spent = device.ledger.spent()
    device.host.store(JobClosed(JOB_ID, "cancelled"))
    [line] = device.said
    assert f"training: {spent} (limit ε = 50)" in line
    assert "inference: ε = 0, δ = 0 per record" in line
    assert device.restarted().store.load().closed == {JOB_ID: None}
    with pytest.raises(ProtocolError, match="unknown_job"):
        device.host.perform(
            ComputeAnswer(sealed.manifest, RoundPackage("centre", 0, False, b"", b""))
        )
    device.knows(PLAN)  # a cloud that announces it again
    assert "closed" in why(device, Round(PLAN, QUADRATIC, device.keys()))
    assert device.ledger.spent() == spent


def test_the_end_of_a_claimed_job_prints_no_number_as_a_guarantee(device):
    claim = ClaimedEvent(what="polynomial", unit="record", claimed_epsilon=1.25)
    limits = replace(limits_of(device.site.policy), accept_unproven=True)
    device.ledger.open_job(JobRequest(JOB_ID.hex(), 1e-5, (claim,)), limits)
    device.ledger.commit(JOB_ID.hex(), 1, [claim], b"noised")
    device.host.store(JobClosed(JOB_ID, "completed"))
    line, ahead = device.said
    assert "training: no proven guarantee" in line
    assert "1.25" not in line
    assert "policy.accept_unproven" in ahead  # this owner would not allow another


def test_a_graph_that_may_not_run_is_declined_before_a_record_is_read(device):
    canonical, graph = device.store.job(JOB_ID)
    device.store.put_job(JOB_ID, canonical, graph.replace(b"Softmax", b"Hardmax"))
    device = device.restarted()
    sealed = Round(PLAN, FIRST, device.keys())
    assert sealed.round.infer
    assert "Hardmax" in why(device, sealed)
    assert device.load.reads == 0
