"""Releases after they were sealed: reports, the statement, what each party does about them."""

import hashlib

import protocol_kit as kit
from device_bench import ME, device, done, fire, receive
from proxy_bench import FLEET, from_cloud, hello, proxy, send, send_note, to_cloud, to_devices

from edgeveil.protocol import device as dv
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.device_round import OpenedPackage, OpenPackage
from edgeveil.protocol.proxy_broadcasts import ReleaseReplaced, ReleaseStated
from edgeveil.protocol.sealed import ReleasePackage

MODEL = b"sealed model"
PACKAGE = ReleasePackage("job", b"onnx", "digits")
A, B = m.data_set_tag("digits"), m.data_set_tag("scores")


def release(sequence=7, **changes):
    values = {"kind": "release", "groups": (m.HEALTH,), "sequence": sequence, "selected": 4}
    data = MODEL + bytes([sequence])
    return kit.manifest(data, kit.at(0, sequence), **(values | {"deadline_s": 100.0} | changes))


def bytes_of(header):
    return MODEL + bytes([header.sequence])


def ack_of(note, signer=kit.PROXY, status="held"):
    return signer.note(m.Ack(hashlib.sha256(note.body.payload).digest(), status))


def notes(effects, kind):
    return [
        note for note in kit.messages(effects, m.Note) if kit.bodies([fx.Send(None, note)], kind)
    ]


def opened(machine, header, package):
    receive(machine, kit.offer(header, bytes_of(header)))
    return done(machine, OpenPackage(header, bytes_of(header)), OpenedPackage(package))


def installed(machine, header):
    opened(machine, header, PACKAGE)
    return done(machine, dv.InstallRelease(header, PACKAGE), dv.Installation())


def refused_here(machine, header):
    opened(machine, header, PACKAGE)
    return done(machine, dv.InstallRelease(header, PACKAGE), fx.WorkFailed("refused_release"))


def not_mine(machine, header):
    return opened(machine, header, None)


def test_when_and_that_a_device_reports_says_nothing_about_how_it_went():
    header = release()
    waits = set()
    for course in (installed, refused_here, not_mine):
        out = course(device(), header)
        assert dv.ReportDue(header) in kit.stored(out)
        waits.add(kit.timers(out)["report"])
    assert len(waits) == 1
    assert 0 <= waits.pop() < header.deadline_s


def test_a_report_is_made_at_its_moment_and_said_until_the_cloud_has_it():
    machine, header = device(), release()
    installed(machine, header)
    assert kit.tasks(fire(machine, "report")) == [dv.SealReport(header)]
    out = done(machine, dv.SealReport(header), dv.MadeReport(b"r" * m.REPORT_BYTES))
    (note,) = notes(out, m.ReleaseReport)
    assert kit.bodies(out, m.ReleaseReport) == [m.ReleaseReport(header.at, b"r" * m.REPORT_BYTES)]
    assert notes(fire(machine, "report"), m.ReleaseReport) == [note]
    assert dv.ReportSettled(header.sequence) in kit.stored(receive(machine, ack_of(note)))
    assert not kit.messages(fire(machine, "report"), m.Note)
    assert not kit.timers(not_mine(machine, header)).get("report")  # once for each broadcast


def test_what_is_in_use_is_taken_over_under_its_new_sequence_without_a_fetch():
    machine, first, again = device(), release(7), release(9)
    installed(machine, first)
    assert kit.tasks(receive(machine, kit.offer(again))) == [dv.AdoptRelease(again)]
    done(machine, dv.AdoptRelease(again), dv.Installation())
    assert machine.memory.release_sequence == 9
    assert kit.refused(receive(machine, kit.offer(first))) == ["replayed_release"]
    other = release(11, package_digest=b"q" * 32)
    assert kit.tasks(receive(machine, kit.offer(other, bytes_of(other)))) == [
        OpenPackage(other, bytes_of(other))
    ]


def test_a_newer_statement_of_the_cloud_is_applied_and_an_older_one_refused():
    machine = device()
    newer = m.ReleaseStatement(5, 100.0, (7,), (8,))
    assert kit.refused(receive(machine, kit.PROXY.note(newer))) == ["unexpected_body"]
    assert kit.refused(receive(machine, ME.signer.note(newer)))
    assert kit.tasks(receive(machine, kit.CLOUD.note(newer))) == [dv.ApplyStatement(newer)]
    done(machine, dv.ApplyStatement(newer), dv.StatementApplied(left=True))
    assert machine.memory.statement == 5
    assert receive(machine, kit.CLOUD.note(newer)) == []
    older = kit.CLOUD.note(m.ReleaseStatement(4, 900.0, (8,), ()))
    assert kit.refused(receive(machine, older)) == ["replayed_statement"]


def broadcast(machine, header):
    return from_cloud(machine, kit.offer(header, bytes_of(header)))


def holding(header=None, **settings):
    machine = proxy(min_batch_floor=3, **settings)
    broadcast(machine, header or release())
    for one in FLEET[:4]:
        hello(machine, one)
    return machine


def report(machine, number, header=None):
    sealed = bytes([number]) * m.REPORT_BYTES
    where = (header or release()).at
    return send(machine, FLEET[number], FLEET[number].signer.note(m.ReleaseReport(where, sealed)))


def look(machine):
    return machine.handle(fx.Timer("reports"), 0.0)


def handed(effects):
    return [body.sealed for body in kit.bodies(effects, m.ReleaseReports)]


def test_reports_are_handed_over_together_and_in_an_order_that_says_nothing():
    machine = holding()
    short = FLEET[0].signer.note(m.ReleaseReport(release().at, b"x"))
    assert kit.refused(send(machine, FLEET[0], short)) == ["wrong_size"]
    assert [status for status, _ in kit.acks(report(machine, 0, release(8)))] == ["closed"]
    for number in (3, 1):
        assert not to_cloud(report(machine, number))
    assert not handed(look(machine))
    report(machine, 0)
    (sealed,) = handed(look(machine))
    assert sealed == tuple(sorted(sealed))
    assert len(sealed) == 3


def test_a_device_hears_that_its_report_is_counted_once_the_cloud_has_it():
    machine = holding()
    out = [effect for number in range(4) for effect in report(machine, number)]
    assert not [s for s in out if isinstance(s, fx.Send) and s.to != fx.CloudAddress()]
    (note,) = notes(out, m.ReleaseReports)
    assert notes(look(machine), m.ReleaseReports) == [note]
    told = from_cloud(machine, ack_of(note, kit.CLOUD))
    assert len(kit.bodies(told, m.Ack)) == 4
    assert not handed(look(machine))
    assert kit.acks(report(machine, 2))[0][0] == "held"  # said again
    assert not handed(look(machine))


def test_a_release_for_too_few_gives_the_cloud_no_counts():
    header = release(selected=2)
    machine = holding(header)
    out = [effect for number in range(4) for effect in report(machine, number, header)]
    assert not handed(out + look(machine))


def test_the_newest_statement_is_kept_passed_on_and_told_to_who_comes():
    machine = holding()
    note = kit.CLOUD.note(m.ReleaseStatement(5, 100.0, (7,), ()))
    out = from_cloud(machine, note)
    assert to_devices(out) == [note]
    assert kit.stored(out) == [ReleaseStated(note)]
    assert to_devices(from_cloud(machine, note)) == []
    older = kit.CLOUD.note(m.ReleaseStatement(4, 100.0, (), (7,)))
    assert kit.refused(from_cloud(machine, older)) == ["replayed_statement"]
    send_note(machine, FLEET[0], m.Bye(FLEET[0].id))
    out = hello(machine, FLEET[0])
    assert note in kit.messages(out, m.Note)
    assert len(kit.headers(out)) == 1


def test_a_withdrawn_release_is_served_no_more_and_not_taken_again():
    machine, header = holding(), release()
    note = kit.CLOUD.note(m.ReleaseStatement(5, 100.0, (), (7,)))
    assert kit.stored(from_cloud(machine, note)) == [ReleaseStated(note, (header.blob.digest,))]
    assert not kit.messages(hello(machine, FLEET[5]), m.Offer)
    assert kit.refused(broadcast(machine, header)) == ["withdrawn_release"]


def kept_releases(machine):
    return [kept.header.sequence for kept in machine.memory.kept.values()]


def test_of_each_data_set_the_newest_release_is_kept():
    machine = holding(release(5, data_set=A))
    replaced = ReleaseReplaced(release(5).blob.digest)
    assert replaced not in kit.stored(broadcast(machine, release(7, data_set=B)))
    assert kept_releases(machine) == [5, 7]
    assert replaced in kit.stored(broadcast(machine, release(9, data_set=A)))
    assert kept_releases(machine) == [7, 9]
    assert [header.sequence for header in kit.headers(hello(machine, FLEET[5]))] == [7, 9]
    assert kit.refused(broadcast(machine, release(6, data_set=B))) == ["replayed_release"]


def test_a_release_of_another_data_set_is_left_and_reported_like_one_s_own():
    machine, other, mine = device(data_set=A), release(9, data_set=B), release(7, data_set=A)
    out = receive(machine, kit.offer(other, bytes_of(other)))
    assert kit.tasks(out) == [] and kit.stored(out) == [dv.ReportDue(other)]
    out = receive(machine, kit.offer(mine, bytes_of(mine)))
    assert kit.tasks(out) == [OpenPackage(mine, bytes_of(mine))]
