"""A device: what it fetches, opens and refuses."""

import device_bench as db
import msgspec
import protocol_kit as kit
import pytest

from edgeveil.protocol import device as dv
from edgeveil.protocol import device_round as dr
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.sealed import JobPackage, ReleasePackage

LONG = bytes(range(256)) * 20


def offered(machine, header, data=db.MODEL, signer=kit.CLOUD):
    return db.receive(machine, kit.offer(header, data, signer))


def job_id(number):
    return b"%016d" % number


def announced(number, data=None, **changes):
    data = data or b"sealed job %d" % number
    where = kit.at(0, 0, job_id(number))
    return kit.manifest(data, where, kind="job", groups=(), selected=0, **changes), data


def test_an_older_round_or_attempt_or_another_model_for_one_is_refused_also_after_a_restart():
    machine, header = db.device(), kit.manifest(db.MODEL, kit.at(5, 3))
    offered(machine, header)
    fork = msgspec.structs.replace(header, commitment=b"z" * 32)
    for one in (machine, db.device(machine.memory)):
        before = db.snapshot(one)
        for older in (kit.at(4, 10), kit.at(5, 2)):
            assert kit.refused(offered(one, kit.manifest(db.MODEL, older))) == ["replayed_round"]
        assert kit.refused(offered(one, fork)) == ["forked_manifest"]
        assert db.snapshot(one) == before


THIEF = m.Signer("cloud", db.ME.signer.key)
HUGE, CRUMBS = (m.Blob(b"x" * 32, *size) for size in ((10_001, kit.PART_BYTES), (9_000, 1)))


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (kit.offer(kit.manifest(db.MODEL), db.MODEL, THIEF), "forged"),
        (kit.offer(kit.manifest(db.MODEL), db.MODEL, kit.PROXY), "unknown_signer"),
        (kit.offer(kit.manifest(db.MODEL), b"other length"), "bad_digest"),
        (kit.offer(kit.manifest(db.MODEL), db.MODEL[:-1] + b"?"), "bad_digest"),
        (kit.offer(kit.manifest(db.MODEL, blob=HUGE)), "oversized_blob"),
        (kit.offer(kit.manifest(db.MODEL, blob=CRUMBS)), "tiny_parts"),
        (kit.offer(kit.manifest(db.MODEL, stanza_bytes=len(db.MODEL) + 1), db.MODEL), "malformed"),
    ],
)
def test_an_offer_of_another_or_that_cannot_be_fetched_changes_nothing(sent, reason):
    machine = db.device(blob_bytes=10_000)
    db.upload(machine, kit.manifest(db.MODEL, kit.at(0)))
    before = db.snapshot(machine)
    assert kit.refused(db.receive(machine, sent)) == [reason]
    assert db.snapshot(machine) == before


def test_a_round_that_holds_no_round_and_a_job_that_holds_none_are_refused():
    job, round_ = dr.OpenedPackage(JobPackage(b"{}", b"")), dr.OpenedPackage(db.PACKAGE)
    rows = [(db.device(), kit.manifest(db.MODEL), db.MODEL, job)]
    rows.append((db.device(), *announced(7), round_))
    for machine, header, data, found in rows:
        offered(machine, header, data)
        out = db.done(machine, dr.OpenPackage(header, data), found)
        assert kit.refused(out) == ["malformed_package"] and kit.tasks(out) == []
        assert machine.state is dr.DeviceState.IDLE


def release(sequence):
    return kit.manifest(b"final", kit.at(0, 0), kind="release", sequence=sequence)


def test_an_older_release_cannot_take_the_place_of_the_installed_one():
    machine = db.device(dr.DeviceMemory(jobs={kit.JOB: None}, release_sequence=7))
    assert kit.refused(offered(machine, release(6), b"final")) == ["replayed_release"]
    # Nor is a round answered from before it: the model would be refused, the budget be gone.
    behind, ahead = (kit.manifest(db.MODEL, sequence=number) for number in (6, 8))
    assert kit.refused(offered(machine, behind)) == ["outdated_round"]
    assert kit.tasks(offered(machine, ahead)) == [dr.OpenPackage(ahead, db.MODEL)]


def test_a_release_that_could_not_be_used_holds_up_no_round():
    """Its number was the cloud's own word, but nothing came of it."""
    machine, far = db.device(), release(2**40)
    (opening,) = kit.tasks(offered(machine, far, b"final"))
    found = dr.OpenedPackage(ReleasePackage("digits", b"onnx"))
    (task,) = kit.tasks(db.done(machine, opening, found))
    out = db.done(machine, task, fx.WorkFailed("refused_release"))
    assert kit.refused(out) == ["refused_release"]
    assert kit.refused(offered(machine, kit.manifest(db.MODEL))) == []


def test_a_closed_job_stays_closed():
    machine, close = db.device(), kit.CLOUD.note(m.Close(job_id(7), "completed"))
    assert kit.reports(db.receive(machine, close))["job_closed"]["status"] == "completed"
    assert db.receive(machine, close) == []
    for header, data in (
        (kit.manifest(db.MODEL, kit.at(job=job_id(7))), db.MODEL),
        announced(7),
    ):
        assert kit.refused(offered(machine, header, data)) == ["closed_job"]


def learn(machine, number):
    header, data = announced(number)
    db.receive(machine, kit.offer(header, data))
    package = JobPackage(b"{}", b"graph")
    db.done(machine, dr.OpenPackage(header, data), dr.OpenedPackage(package))
    return db.done(machine, dv.InstallJob(header, package), dv.Installation())


def stalled(machine, count):
    """So many job packages on their way, of which no part ever came."""
    headers = [announced(n, LONG + bytes((n,)))[0] for n in range(count)]
    for header in headers:
        assert kit.refused(db.receive(machine, kit.offer(header))) == []
    return headers


def test_what_moves_is_not_given_up():
    machine = db.device()
    moving, *_ = stalled(machine, dv.AT_ONCE)
    db.fire(machine, "repair")
    db.receive(machine, kit.parts_of(moving, LONG + b"\0")[0])
    for number in range(50, 50 + dv.AT_ONCE):
        db.receive(machine, kit.offer(announced(number, LONG + bytes((number,)))[0]))
    assert moving.blob.digest in machine.fetches.under_way


@pytest.mark.parametrize(
    ("settings", "count"), [({}, dv.AT_ONCE), ({"fetch_bytes": 2 * len(LONG) + 10}, 2)]
)
def test_fetches_have_a_bound_in_number_and_bytes_and_what_finds_no_room_changes_nothing(
    settings, count
):
    machine = db.device(**settings)
    stalled(machine, count)
    before = db.snapshot(machine)
    for header in (announced(99, LONG)[0], kit.manifest(LONG)):
        out = db.receive(machine, kit.offer(header))
        assert (kit.refused(out), kit.stored(out)) == (["too_many_fetches"], [])
        assert db.snapshot(machine) == before


def test_a_round_s_package_that_never_completes_is_given_up_at_the_deadline():
    machine = db.device()
    db.receive(machine, kit.offer(kit.manifest(LONG)))
    assert machine.fetches.under_way
    db.fire(machine, "deadline")
    assert machine.state is dr.DeviceState.IDLE and not machine.fetches.under_way
    assert len(kit.tasks(offered(machine, kit.manifest(db.MODEL, kit.at(2))))) == 1


def test_of_many_jobs_the_newest_are_kept_and_the_round_at_hand_is_safe():
    machine = db.device(jobs=3)
    db.work_on(machine, kit.manifest(db.MODEL))
    for number in range(5):
        learn(machine, number)
    assert list(machine.memory.jobs) == [kit.JOB, job_id(3), job_id(4)]
    assert list(machine.memory.closed) == [job_id(0), job_id(1), job_id(2)]
    assert machine.state is dr.DeviceState.WORKING


def test_ends_of_jobs_are_remembered_up_to_a_bound():
    machine = db.device()
    for number in range(dv.CLOSED_KEPT + 20):
        db.receive(machine, kit.CLOUD.note(m.Close(job_id(number), "failed")))
    assert len(machine.memory.closed) == dv.CLOSED_KEPT
    assert job_id(0) not in machine.memory.closed
    assert job_id(dv.CLOSED_KEPT + 19) in machine.memory.closed


@pytest.mark.parametrize("outcome", [dr.OpenedPackage(None), fx.WorkFailed("wrong_package")])
def test_a_job_that_is_of_no_use_here_is_fetched_once(outcome):
    """Its rounds are looked into as those of any other one where the device is not selected."""
    machine = db.device(dr.DeviceMemory())
    header, data = announced(7)
    round_, later = (kit.manifest(db.MODEL, kit.at(number, job=job_id(7))) for number in (1, 2))
    offered(machine, round_)
    offered(machine, header, data)
    look, opening = dr.OpenPackage(round_, db.MODEL), dr.OpenPackage(header, data)
    assert kit.tasks(db.done(machine, opening, outcome)) == [look]
    assert db.done(machine, look, dr.OpenedPackage(None)) == []
    assert offered(machine, header, data) == []
    changed, other = announced(7, b"for everybody", sequence=2)
    for one, sent in ((later, db.MODEL), (changed, other)):
        assert kit.tasks(offered(machine, one, sent)) == [dr.OpenPackage(one, sent)]


def test_it_ends_what_it_has_begun_leaves_once_and_comes_again_at_the_owners_wish_alone():
    machine = db.device()
    leave, come = fx.Command("leave"), fx.Command("come")
    machine.handle(fx.PeerConnected(fx.ProxyAddress()), 0.0)
    db.upload(machine)
    assert machine.handle(leave, 0.0) == []
    assert machine.state is dr.DeviceState.UPLOADING
    assert kit.bodies(db.fire(machine, "deadline"), m.Bye) == [m.Bye(db.ME.id)]
    assert machine.handle(leave, 0.0) == []
    for asked in (m.Here(60.0), m.Later(5.0)):
        assert db.receive(machine, kit.PROXY.note(asked)) == []
        assert db.fire(machine, "hello") == []
    assert len(kit.bodies(machine.handle(come, 0.0), m.Hello)) == 1
    assert machine.handle(come, 0.0) == []
