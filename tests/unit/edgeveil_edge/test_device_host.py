"""A device's work: opens, learns, consents, answers once, and says no without reading data."""

import hashlib
import json
from dataclasses import asdict
from datetime import timedelta

import msgspec
import pytest
from edge_kit import (
    CENTRE,
    FIRST,
    JOB_ID,
    PLAN,
    Device,
    Loader,
    Round,
    announcement,
    final_model,
    job,
    site,
)

from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import DataError, ProtocolError
from edgeveil.jobs import compile_job
from edgeveil.privacy.ledger import read_ledger
from edgeveil.protocol import effects as fx
from edgeveil.protocol.device import Installation, InstallJob, InstallRelease
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
from edgeveil.trust.bundle import HeldTrust
from edgeveil.trust.metadata import now_utc
from edgeveil_edge.compute import Computer, JobTrial
from edgeveil_edge.releases import ReleaseStore
from edgeveil_edge.store import trial_name
from tests.kits.trust_files import trust_file


def refused(device, task):
    with pytest.raises(ProtocolError) as caught:
        device.host.perform(task)
    return caught.value.reason


def test_a_job_must_be_the_one_that_was_signed(device, tmp_path):
    fresh = Device(tmp_path / "fresh")
    other = compile_job(job(privacy={"epsilon": 5.0, "delta": 1e-5}))
    package = JobPackage(other.job.canonical(), b"graph")
    assert refused(fresh, InstallJob(announcement(PLAN, fresh.keys()), package)) == "wrong_job"
    loose = PLAN.job.canonical().replace(b":", b": ", 1)
    manifest = msgspec.structs.replace(
        announcement(PLAN, fresh.keys()), job_digest=hashlib.sha256(loose).digest()
    )
    assert refused(fresh, InstallJob(manifest, JobPackage(loose, b"graph"))) == "bad_job"
    assert fresh.store.load().jobs == {}
    assert device.store.load().jobs == {JOB_ID: None}


def test_a_job_whose_final_model_the_box_would_not_take_costs_it_nothing(tmp_path):
    small = Device(tmp_path / "small", Loader(AssertionError("read")))
    room = small.site.limits.blob_bytes
    said = announcement(PLAN, small.keys())
    large = msgspec.structs.replace(said, broadcast_bytes=room - said.stanza_bytes + 1)
    package = JobPackage(PLAN.job.canonical(), PLAN.graph())
    assert isinstance(small.host.perform(InstallJob(large, package)), Installation)
    for _ in range(2):  # a later round has no other answer
        answer = small.declines(PLAN, CENTRE)
        assert (answer.cause, f"limits.blob_bytes allows {room}" in answer.why) == ("fit", True)
    assert small.ledger.spent().epsilon == 0
    willing = Device(tmp_path / "willing")
    fits = msgspec.structs.replace(
        announcement(PLAN, willing.keys()), broadcast_bytes=room - said.stanza_bytes
    )
    assert isinstance(willing.host.perform(InstallJob(fits, package)), Installation)
    willing.seals(PLAN, CENTRE)


def test_a_round_of_an_unknown_or_another_job_is_refused(device, tmp_path):
    package = RoundPackage("centre", 0, False, b"", b"")
    manifest = Round(PLAN, CENTRE, device.keys()).manifest
    fresh = Device(tmp_path / "fresh", Loader(AssertionError("read")))
    assert refused(fresh, ComputeAnswer(manifest, package)) == "unknown_job"
    forked = msgspec.structs.replace(manifest, job_digest=bytes(32))
    assert refused(device, ComputeAnswer(forked, package)) == "wrong_job"
    wrong = RoundPackage("quadratic", 0, False, b"", b"")
    assert refused(device, ComputeAnswer(manifest, wrong)) == "wrong_phase"
    groups = msgspec.structs.replace(manifest, groups=())
    assert refused(device, ComputeAnswer(groups, package)) == "wrong_groups"
    assert device.load.reads == 0


def test_once_trust_has_expired_nothing_is_done_for_the_cloud(tmp_path):
    clock = [now_utc()]
    given = trust_file(tmp_path / "given.json", days=90)
    trust = HeldTrust(tmp_path, given, lambda: clock[0])
    device = Device(tmp_path, Loader(AssertionError("read")), trust=trust).knows(PLAN)
    before, said = read_ledger(tmp_path / "ledger.sqlite").links, len(device.said)
    clock[0] += timedelta(days=91)
    answer = device.declines(PLAN, CENTRE)
    assert "the trust delegations expired on" in answer.why
    assert device.said[said:] == [f"nothing is done for the cloud: {answer.why}"]
    release = InstallRelease(
        announcement(PLAN, device.keys(), "release"), ReleasePackage("bench", final_model())
    )
    assert device.host.perform(release) == fx.WorkFailed("trust_expired")
    assert device.host.releases.current() is None
    assert read_ledger(tmp_path / "ledger.sqlite").links == before
    trust_file(given, days=90, version=2, now=clock[0])
    assert trust.look()
    device.load.error = None
    device.seals(PLAN, CENTRE)
    assert read_ledger(tmp_path / "ledger.sqlite").links > before


class ReadsAhead(Computer):
    """Notes by which share records were read ahead of a round; `forgot`: they have to be read."""

    shares: list[float]
    forgot = False

    def read_ahead(self, share, schema=None):
        self.shares.append(share)
        return self.forgot


def test_no_answer_waits_for_a_reading_and_none_is_paid_that_would(tmp_path):
    """Whether it came in time would follow from the records, and no trial has tried it."""
    compute = ReadsAhead(site(tmp_path), bytes(32), Loader())
    compute.shares, compute.forgot = [], True
    device = Device(tmp_path, compute=lambda _site, _identity: compute).knows(PLAN)
    declined = device.declines(PLAN, CENTRE)
    assert declined.cause == "conditions"
    assert device.ledger.spent().epsilon == 0 and device.load.reads == 0
    compute.forgot = False
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
    ways = "by their values", "as they are stored"
    was, would = ways if first == "values" else ways[::-1]
    assert declined == NoAnswer(
        f"data.schema: the records were split {was}, the job would split them {would}."
        f" ask for the job {'without' if first == 'values' else 'with'} one"
    )


def test_a_round_is_answered_so_often_and_no_more(tmp_path):
    plan = compile_job(job(round={"min_batch": 3, "retries": 1}))
    device = Device(tmp_path).knows(plan)

    def keep(at, *, dummy=False):
        upload = Upload(at, (0,), describe(b"x", 64))
        signed = Signer("device", SigningKey.generate()).header(upload)
        device.store.store(OutboxPut(at, signed, upload, (bytes(32),), b"x", dummy))

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


def released(device, onnx, data_set="bench"):
    package = ReleasePackage("boxed", onnx, data_set)
    return device.host.perform(
        InstallRelease(announcement(PLAN, device.keys(), "release"), package)
    )


def in_use(device):
    return ReleaseStore(device.folder / "releases").current() is not None


OTHER_OPERATOR = final_model().replace(b"Softmax", b"Hardmax")


@pytest.mark.parametrize("onnx", [b"this is no ONNX model", b"", OTHER_OPERATOR, final_model(1)])
def test_a_release_that_does_not_run_is_not_put_in_use(device, onnx):
    assert released(device, onnx) == fx.WorkFailed("refused_release")
    assert not in_use(device) and "not put in use" in device.said[-1]
    assert device.restarted().store.load().release_sequence == -1


def test_a_release_belongs_to_a_data_set(tmp_path):
    device = Device(tmp_path)
    for data_set in ("other", ""):
        assert isinstance(released(device, final_model(), data_set), fx.WorkFailed)
    assert not in_use(device)
    assert released(device, final_model()) == Installation()


def test_the_release_of_a_job_that_the_owner_declines_is_declined(tmp_path):
    device = Device(tmp_path, policy={"min_devices": 3, "max_epsilon_per_job": 0.1}).knows(PLAN)
    assert isinstance(released(device, final_model()), fx.WorkFailed)
    assert "its job is declined here" in device.said[-1] and not in_use(device)


@pytest.mark.parametrize("accepts", ["none", "joined"])
def test_the_owner_says_which_releases_are_accepted(tmp_path, accepts):
    policy = {"min_devices": 3, "accept_releases": accepts}
    device = Device(tmp_path, policy=policy).knows(PLAN)
    assert isinstance(released(device, final_model()), fx.WorkFailed)
    assert f"policy.accept_releases{': joined' if accepts == 'joined' else ''})" in device.said[-1]
    device.answer(Round(PLAN, CENTRE, device.keys()))
    answered = released(device, final_model())
    assert (answered == Installation()) == (accepts == "joined")


def test_a_damaged_release_makes_room_for_the_one_before_at_the_next_start(device):
    store = ReleaseStore(device.folder / "releases")
    first = store.install("boxed", final_model(), {})
    second = store.install("boxed", final_model(2), {})
    second.path.write_bytes(b"half")
    device.host.warm_up()
    assert store.current() == first and "takes its place" in device.said[-1]
    first.path.write_bytes(b"half too")
    device.host.warm_up()
    assert "none is there before it" in device.said[-1]


def test_a_release_that_cannot_be_named_changes_nothing(device):
    manifest = announcement(PLAN, device.keys(), "release")
    with pytest.raises(DataError, match="cannot name a release"):
        device.host.perform(InstallRelease(manifest, ReleasePackage("../../etc", final_model())))
    assert device.restarted().store.load().release_sequence == -1
