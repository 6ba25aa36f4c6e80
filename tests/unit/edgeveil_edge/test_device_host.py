"""A device's work: opens, learns, consents, answers once, and says no without reading data."""

import hashlib
import json
from dataclasses import asdict, replace
from datetime import timedelta

import pytest
from edge_kit import (
    CENTRE,
    FIRST,
    JOB_ID,
    PLAN,
    QUADRATIC,
    Device,
    Loader,
    Round,
    announcement,
    final_model,
    job,
    site,
)
from msgspec import structs

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import DataError, ProtocolError
from edgeveil.jobs import compile_job, parse_plan
from edgeveil.privacy.events import ClaimedEvent
from edgeveil.privacy.ledger import read_ledger
from edgeveil.privacy.policy import JobRequest
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import Installation, InstallJob, InstallRelease, JobClosed
from edgeveil.protocol.device_round import (
    ComputeAnswer,
    NoAnswer,
    OpenPackage,
    OutboxPut,
    SealedAnswer,
)
from edgeveil.protocol.messages import RoundId, Signer, Upload
from edgeveil.protocol.sealed import JobPackage, ReleasePackage, RoundPackage
from edgeveil.protocol.transfer import describe
from edgeveil.trust.bundle import StoredTrust
from edgeveil.trust.metadata import now_utc
from edgeveil_edge.compute import Computer, JobTrial
from edgeveil_edge.consent import limits_of
from edgeveil_edge.releases import ReleaseStore
from edgeveil_edge.store import trial_name
from tests.kits.trust_files import trust_file


def refused(device, task):
    with pytest.raises(ProtocolError) as caught:
        device.host.perform(task)
    return caught.value.reason


def test_a_job_must_be_the_one_that_was_signed(tmp_path):
    device = Device(tmp_path)
    signed = announcement(PLAN, device.keys())
    other = compile_job(job(privacy={"epsilon": 5.0, "delta": 1e-5})).job.canonical()
    assert refused(device, InstallJob(signed, JobPackage(other, b"graph"))) == "wrong_job"
    loose = PLAN.job.canonical().replace(b":", b": ", 1)
    signed = structs.replace(signed, job_digest=hashlib.sha256(loose).digest())
    assert refused(device, InstallJob(signed, JobPackage(loose, b"graph"))) == "bad_job"
    assert device.store.load().jobs == {}
    assert device.knows(PLAN).store.load().jobs == {JOB_ID: None}


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_job_whose_final_model_the_box_would_not_take_costs_it_nothing(tmp_path, beyond):
    device = Device(tmp_path)
    said, room = announcement(PLAN, device.keys()), device.site.limits.blob_bytes
    manifest = structs.replace(said, broadcast_bytes=room - said.stanza_bytes + beyond)
    package = JobPackage(PLAN.job.canonical(), PLAN.graph())
    assert isinstance(device.host.perform(InstallJob(manifest, package)), Installation)
    if not beyond:
        device.seals(PLAN, CENTRE)
        return
    for _ in range(2):  # a later round has no other answer
        answer = device.declines(PLAN, CENTRE)
        assert answer.cause == "fit" and "limits.blob_bytes" in answer.why
    assert device.ledger.spent().epsilon == device.load.reads == 0


def test_a_round_of_an_unknown_or_another_job_is_refused(device, tmp_path):
    package = RoundPackage("centre", 0, False, b"", b"")
    manifest = Round(PLAN, CENTRE, device.keys()).manifest
    fresh = Device(tmp_path / "fresh", Loader(AssertionError("read")))
    assert refused(fresh, ComputeAnswer(manifest, package)) == "unknown_job"
    forked = structs.replace(manifest, job_digest=bytes(32))
    assert refused(device, ComputeAnswer(forked, package)) == "wrong_job"
    assert device.load.reads == 0


def test_once_trust_has_expired_nothing_is_done_for_the_cloud(tmp_path):
    clock = [now_utc()]
    given = trust_file(tmp_path / "given.json", days=90)
    trust = StoredTrust(tmp_path, given, lambda: clock[0])
    device = Device(tmp_path, Loader(AssertionError("read")), trust=trust).knows(PLAN)
    before = read_ledger(tmp_path / "ledger.sqlite").links
    clock[0] += timedelta(days=91)
    assert device.declines(PLAN, CENTRE).why in device.said[-1]
    assert released(device, final_model()) == fx.WorkFailed("trust_expired")
    assert not in_use(device)
    assert read_ledger(tmp_path / "ledger.sqlite").links == before
    trust_file(given, days=90, version=2, now=clock[0])
    assert trust.look()
    device.load.error = None
    device.seals(PLAN, CENTRE)
    assert read_ledger(tmp_path / "ledger.sqlite").links > before


def test_no_answer_waits_for_a_reading_and_none_is_paid_that_would(tmp_path):
    """Whether it came in time would follow from the records, and no trial has tried it."""
    compute = Computer(site(tmp_path), bytes(32), Loader())
    compute.read_ahead = lambda share, schema=None: True  # they have to be read
    device = Device(tmp_path, compute=lambda _site, _identity: compute).knows(PLAN)
    assert device.declines(PLAN, CENTRE).cause == "conditions"
    assert device.ledger.spent().epsilon == device.load.reads == 0
    compute.read_ahead = lambda share, schema=None: False
    device.seals(PLAN, CENTRE)


def test_what_a_slow_link_leaves_no_time_for_is_no_fault_of_the_jobs(tmp_path):
    """A box that is too slow for the whole budget has said so; any other may answer yet."""
    device = Device(tmp_path).knows(PLAN)
    device.store.put_fact(trial_name(JOB_ID), json.dumps(asdict(JobTrial(needed_s=0.2))))
    sealed = Round(PLAN, CENTRE, device.keys())
    opened = device.host.perform(OpenPackage(sealed.manifest, sealed.blob))
    declined = device.host.perform(ComputeAnswer(sealed.manifest, opened.package, allowed_s=0.1))
    assert isinstance(declined, NoAnswer) and declined.cause == "conditions"
    assert device.ledger.spent().epsilon == 0
    assert isinstance(device.answer(sealed), SealedAnswer)


NAMED = {
    "origin": "public",
    "label": {"column": "kind", "classes": ("a", "b", "c")},
    "columns": ({"name": ("p", "q", "r", "s"), "number": (0.0, 1.0)},),
}


@pytest.mark.parametrize("first", ["values", "schema"])
def test_records_split_by_their_values_are_not_split_again_by_a_schema(first, tmp_path):
    data = {"source": "bench", "nominal_records": 30}
    plans = [PLAN, compile_job(job(data={**data, "schema": NAMED}))]
    one, other = plans if first == "values" else plans[::-1]
    device = Device(tmp_path).knows(one)
    device.seals(one, CENTRE)
    later = Round(other, CENTRE, device.keys(), job_id=b"K" * 16)
    declined = device.knows(other, b"K" * 16).answer(later)
    assert isinstance(declined, NoAnswer) and declined.why.startswith("data.schema: ")


def test_a_round_is_answered_so_often_and_no_more(tmp_path):
    plan = compile_job(job(round={"min_batch": 3, "retries": 1}))
    device, upload = Device(tmp_path).knows(plan), describe(b"x", 64)
    signer = Signer("device", SigningKey.generate())

    def keep(at, *, dummy=False):
        one = Upload(at, (0,), upload)
        device.store.store(OutboxPut(at, signer.header(one), one, (bytes(32),), b"x", dummy))

    def asked(attempt, index=FIRST):
        sealed = Round(plan, index, device.keys(), attempt=attempt)
        answer = device.answer(sealed)
        if isinstance(answer, SealedAnswer):
            keep(sealed.manifest.at)
        return answer

    keep(RoundId(JOB_ID, FIRST, 1), dummy=True)
    for attempt in (2, 5, 5, 6, 9, 11):  # one of them twice, as after a crash
        assert isinstance(asked(attempt), SealedAnswer)
    device = device.restarted()
    assert isinstance(asked(11), SealedAnswer)
    declined = asked(12)
    assert isinstance(declined, NoAnswer) and "5 times" in declined.why
    assert isinstance(asked(1, FIRST + 1), SealedAnswer)


def released(device, onnx, name="boxed"):
    manifest = announcement(PLAN, device.keys(), "release")
    return device.host.perform(InstallRelease(manifest, ReleasePackage(name, onnx, "bench")))


def in_use(device):
    return ReleaseStore(device.folder / "releases").current() is not None


@pytest.mark.parametrize(
    "policy",
    [{"max_epsilon_per_job": 0.1}, {"accept_releases": "none"}, {"accept_releases": "joined"}],
    ids=str,
)
def test_the_owner_says_which_releases_are_accepted(tmp_path, policy):
    device = Device(tmp_path, policy={"min_devices": 3, **policy}).knows(PLAN)
    assert isinstance(released(device, final_model()), fx.WorkFailed) and not in_use(device)
    device.answer(Round(PLAN, CENTRE, device.keys()))
    accepted = released(device, final_model()) == Installation()
    assert accepted is ("joined" in policy.values())


def test_a_job_of_statistics_leaves_the_model_in_use_as_it_is(tmp_path):
    text = """
        job: ask
        data: {source: bench, nominal_records: 64}
        statistics: {columns: [{name: age, number: [0, 100]}]}
        privacy: {epsilon: 1}
        """
    plan = parse_plan(text)
    device = Device(tmp_path, policy={"allowed_methods": ("statistics",)}).knows(plan)
    manifest = announcement(plan, device.keys(), "release")
    package = ReleasePackage("ask", final_model(), "bench")
    refusal = device.host.perform(InstallRelease(manifest, package))
    assert isinstance(refusal, fx.WorkFailed) and not in_use(device)
    assert PLAN.releases and not plan.releases


def test_a_release_is_no_path_and_a_damaged_one_makes_room_for_the_one_before(device):
    with pytest.raises(DataError):
        released(device, final_model(), name="../../etc")
    assert device.restarted().store.load().release_sequence == -1
    device.said.clear()
    store = ReleaseStore(device.folder / "releases")
    first = store.install("boxed", final_model(), {})
    store.install("boxed", final_model(2), {}).path.write_bytes(b"half")
    device.host.warm_up()
    assert store.current() == first and len(device.said) == 1
    first.path.write_bytes(b"half too")
    device.host.warm_up()  # none is there before it
    assert len(device.said) == 2


def why(device, sealed):
    answer = device.answer(sealed)
    assert isinstance(answer, NoAnswer), answer
    return answer.why


def test_records_split_once_are_not_split_elsewhere(tmp_path):
    """Another data set of the box is split anew, whatever came between."""

    def answered(device, share, source, name):
        data = {**PLAN.job.data.model_dump(), "source": source, "evaluation_share": share}
        plan, job_id = compile_job(job(job=name, data=data)), name.encode() * 16
        device.knows(plan, job_id)
        return device.answer(Round(plan, CENTRE, device.keys(), job_id=job_id))

    assert isinstance(answered(Device(tmp_path), 0.1, "bench", "a"), SealedAnswer)
    other = Device(tmp_path, data={"name": "other", "source": "digits"})
    assert isinstance(answered(other, 0.3, "other", "b"), SealedAnswer)
    back = Device(tmp_path)
    spent = back.ledger.spent()
    declined = answered(back, 0.3, "bench", "c")
    assert isinstance(declined, NoAnswer) and declined.why.startswith("data.evaluation_share: ")
    assert (back.load.reads, back.ledger.spent()) == (0, spent)
    assert isinstance(answered(back, 0.1, "bench", "d"), SealedAnswer)


def test_records_split_by_person_are_split_so_for_good(tmp_path):
    def plan(person):
        schema = {
            "origin": "public",
            "label": {"column": "y", "classes": ("a", "b", "c")},
            "columns": ({"name": tuple("pqrs"), "number": (0.0, 1.0)},),
        }
        data = {"source": "bench", "nominal_records": 20, "schema": schema, "person": person}
        return compile_job(job(data=data))

    device = Device(tmp_path).knows(plan("who"), b"a" * 16)
    by_person = Round(plan("who"), CENTRE, device.keys(), job_id=b"a" * 16)
    assert isinstance(device.answer(by_person), SealedAnswer)
    for other, name in (("whose", b"b"), (None, b"c")):
        device.knows(plan(other), name * 16)
        declined = device.answer(Round(plan(other), CENTRE, device.keys(), job_id=name * 16))
        assert "were split by the column 'who'" in declined.why


def test_a_paused_device_and_a_small_outbox_sit_the_round_out(tmp_path):
    paused = Device(tmp_path / "a").knows(PLAN)
    paused.host.pause(True)
    wide = compile_job(job(data={**PLAN.job.data.model_dump(), "input_shape": (200,)}))
    small = Device(tmp_path / "b", limits={"outbox_bytes": 65536}).knows(wide)
    # Told with the first round, whose upload is small: nothing is paid for an end out of reach.
    for device, plan, told in ((paused, PLAN, "paused"), (small, wide, "limits.outbox_bytes")):
        assert told in why(device, Round(plan, CENTRE, device.keys()))
        assert device.ledger.spent().epsilon == device.load.reads == 0


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
    assert device.restarted().store.load().closed == {JOB_ID: None}
    package = RoundPackage("centre", 0, False, b"", b"")
    with pytest.raises(ProtocolError, match="unknown_job"):
        device.host.perform(ComputeAnswer(sealed.manifest, package))
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
