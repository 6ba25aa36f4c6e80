"""Blobs beside the broker, as the machines decide on them: who is told what, and when parts come
over the broker after all."""

import hashlib
from dataclasses import replace

import cloud_bench
import protocol_kit as kit
import pytest
from cloud_bench import both_waiting
from device_bench import PACKAGE, SEALED, device, done, fire, receive
from proxy_bench import FLEET, from_cloud, open_round, proxy, send, send_note, to_cloud, to_devices

from edgeveil.protocol import cloud_job as cj
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol import transfer as tr
from edgeveil.protocol.device_round import ComputeAnswer, OpenedPackage, OpenPackage
from edgeveil.protocol.proxy_broadcasts import KeepBroadcast
from edgeveil.protocol.proxy_rounds import UploadKept
from edgeveil.protocol.proxy_uploads import TakePut

PREFIX = "https://blobs.example.org/f/"
URL = PREFIX + "0f" * 32
LARGE = bytes(range(256)) * (tr.LEAST_BYTES // 256)


@pytest.mark.parametrize(
    "url",
    [
        "http://blobs.example.org/f/x",
        "https://blobs.example.org:8443/f/x",
        "https://blobs.example.org.evil.org/f/x",
        "https://blobs.example.org@evil.org/f/x",
        "https://user@blobs.example.org/f/x",
        "https://blobs.example.org/g/x",
        "https://blobs.example.org/f/../g/x",
        "https://blobs.example.org/f/%2e%2e/g/x",
        "https://blobs.example.org/f/",
        "https://blobs.example.org/f/x#y",
        "https://blobs.example.org/f/x\r\nHost: evil.org",
        "https://blobs.example.org\\@evil.org/f/x",
        "https://[::1/f/x",
        "//blobs.example.org/f/x",
    ],
)
def test_a_url_that_is_not_below_a_named_prefix_does_not_count(url):
    assert not tr.is_allowed(url, [PREFIX])


def fetching():
    """A device that is offered a package beside the broker, and the offer's header."""
    machine, header = device(blob_urls=(PREFIX,)), kit.manifest(LARGE)
    (need,) = kit.messages(receive(machine, replaced(kit.offer(header), out_of_band=True)), m.Need)
    assert need.out_of_band
    return machine, header


def comes_in_parts(machine, header):
    out = [effect for part in kit.parts_of(header, LARGE) for effect in receive(machine, part)]
    return kit.tasks(out) == [OpenPackage(header, LARGE)]


def replaced(sent, **changes):
    return m.Offer(sent.header, sent.data, **changes)


def blob_at(url=URL, *, data=LARGE, put=False):
    return kit.PROXY.note(m.BlobAt(hashlib.sha256(data).digest(), url, put, 60.0))


def test_a_device_asks_at_once_and_opens_what_came_beside_the_broker():
    machine, header = fetching()
    (task,) = kit.tasks(receive(machine, blob_at()))
    assert task == tr.FetchOutOfBand(header.blob, URL, 60.0)
    # Nothing is asked for while it comes, and a second answer begins nothing.
    assert not kit.messages(fire(machine, "repair"), m.Need)
    assert not kit.tasks(receive(machine, blob_at()))
    assert kit.tasks(done(machine, task, tr.FetchedOutOfBand(LARGE))) == [
        OpenPackage(header, LARGE)
    ]


def test_a_foreign_url_is_refused_and_package_and_upload_go_in_parts():
    machine, header = fetching()
    out = receive(machine, blob_at("https://10.0.0.1/f/x"))
    assert kit.refused(out) == ["foreign_url"] and not kit.tasks(out)
    (need,) = kit.messages(fire(machine, "repair"), m.Need)
    assert not need.out_of_band
    assert comes_in_parts(machine, header)
    machine, _ = uploading()
    out = receive(machine, blob_at("https://127.0.0.1/admin", put=True))
    assert kit.refused(out) == ["foreign_url"] and not kit.tasks(out)
    (sent,) = kit.messages(fire(machine, "resend"), m.Offer)
    assert not sent.out_of_band


def test_after_some_failures_the_package_comes_in_parts_and_that_is_told_once():
    machine, header = fetching()
    said = []
    for left in reversed(range(tr.MOST_FAILURES)):
        (task,) = kit.tasks(receive(machine, blob_at()))
        out = done(machine, task, fx.WorkFailed("unreachable"))
        assert kit.refused(out) == ["beside_unreachable"]
        said += kit.reports(out)
        (need,) = kit.messages(fire(machine, "repair"), m.Need)
        assert need.out_of_band == (left > 0)
    assert said == ["over_the_broker"]
    assert not kit.tasks(receive(machine, blob_at()))
    assert comes_in_parts(machine, header)


def uploading():
    machine = device(blob_urls=(PREFIX,))
    header = kit.manifest(b"model", groups=(m.Group("layer0", tr.LEAST_BYTES),))
    receive(machine, kit.offer(header, b"model"))
    done(machine, OpenPackage(header, b"model"), OpenedPackage(PACKAGE))
    answer = replace(SEALED, groups=(0,), sizes=(len(LARGE),), data=LARGE, marks=(bytes(32),))
    return machine, done(machine, ComputeAnswer(header, PACKAGE), answer)


def test_an_upload_is_laid_down_and_said_to_lie_there_until_it_is_acknowledged():
    machine, out = uploading()
    (sent,) = kit.messages(out, m.Offer)
    assert sent.out_of_band and not sent.data
    (task,) = kit.tasks(receive(machine, blob_at(put=True)))
    assert task == tr.PutOutOfBand(machine.memory.uploads[kit.JOB].upload.blob, URL, 60.0, LARGE)
    assert not kit.messages(fire(machine, "resend"), m.Offer)  # it is on its way
    (put,) = kit.bodies(done(machine, task, tr.BlobStored()), m.BlobPut)
    assert put.blob == task.blob.digest
    (again,) = kit.messages(fire(machine, "resend"), m.Offer)  # the proxy said nothing: once more
    assert again.out_of_band
    receive(machine, kit.PROXY.note(m.Ack(put.blob, "held")))
    assert machine.memory.uploads[kit.JOB].held


def holding():
    return proxy(out_of_band_bytes=tr.LEAST_BYTES, push_bytes=64 << 20)


def asked_for():
    """A proxy that holds a large broadcast, for which the first device just asked."""
    machine, header = holding(), kit.manifest(LARGE)
    assert to_devices(keep_large(machine, header)) == [
        replaced(kit.offer(header), out_of_band=True)
    ]
    need = m.Need(header.blob.digest, (0,), True)
    (task,) = kit.tasks(send(machine, FLEET[0], need))
    assert isinstance(task, tr.ShowBlob) and task.blob == header.blob
    return machine, need, task


def keep_large(machine, header):
    machine.hold_work = True
    from_cloud(machine, kit.offer(header))
    for part in kit.parts_of(header, LARGE):
        out = from_cloud(machine, part)
    (task,) = kit.tasks(out)
    assert isinstance(task, KeepBroadcast)
    return machine.handle(fx.WorkDone(task, machine.disk.perform(task, machine.shuffle)), 0.0)


def test_a_large_broadcast_is_shown_once_for_all_who_ask_and_in_parts_if_the_store_fails():
    machine, need, task = asked_for()
    assert send(machine, FLEET[1], need) == []  # it waits with the first
    out = machine.handle(fx.WorkDone(task, tr.BlobShown(URL)), 0.0)
    assert [e.to.id for e in out] == [FLEET[0].id, FLEET[1].id]
    url_valid_s = machine.settings.url_valid_s
    told = m.BlobAt(need.blob, URL, False, url_valid_s)
    assert kit.bodies(send(machine, FLEET[2], need), m.BlobAt) == [told]
    out = send(machine, FLEET[3], m.Need(need.blob, (0, 1)))  # a device of an earlier version
    assert len(kit.messages(out, m.BlobPart)) == 2
    # A URL that would end soon is replaced.
    assert kit.tasks(send(machine, FLEET[0], need, url_valid_s / 2)) == [task]
    machine, need, task = asked_for()
    assert "store_failed" in kit.reports(machine.handle(fx.WorkDone(task, fx.WorkFailed("x")), 0.0))
    assert len(kit.messages(send(machine, FLEET[0], need), m.BlobPart)) == 1


def large_round():
    machine = holding()
    groups = (m.Group("layer0", tr.LEAST_BYTES),)
    open_round(machine, kit.manifest(b"sealed model", groups=groups))
    machine.hold_work = True
    return machine, upload()


def granted(machine, header, name="n" * 64):
    """The store has a name for this upload; the grant, and what the device is sent."""
    (grant,) = kit.tasks(put_offer(machine, header))
    assert put_offer(machine, header) == []  # the store is asked once
    out = machine.handle(fx.WorkDone(grant, tr.PutGranted(name, URL)), 0.0)
    (at_,) = kit.bodies(out, m.BlobAt)
    assert at_.put and kit.bodies(put_offer(machine, header), m.BlobAt) == [at_]
    return grant


def lies_there(machine, header, by=FLEET[0], who=FLEET[0]):
    return send(machine, who, by.signer.note(m.BlobPut(header.blob.digest)))


def upload(fill=1):
    size_bytes = tr.LEAST_BYTES + m.SEAL_OVERHEAD_BYTES
    return m.Upload(kit.at(), (0,), tr.describe(bytes((fill,)) * size_bytes, kit.PART_BYTES))


def put_offer(machine, header, who=FLEET[0]):
    return send(machine, who, replaced(kit.offer(header, signer=who.signer), out_of_band=True))


def test_an_upload_is_taken_from_the_store_durable_before_it_is_acknowledged():
    machine, header = large_round()
    assert granted(machine, header) == tr.GrantPut(
        header.blob, fx.DeviceAddress(FLEET[0].id), kit.JOB
    )
    (take,) = kit.tasks(lies_there(machine, header))
    assert take == TakePut(kit.at(), FLEET[0].id, header.blob, "n" * 64, 0)
    assert lies_there(machine, header) == [] and put_offer(machine, header) == []
    out = machine.handle(fx.WorkDone(take, tr.PutTaken()), 0.0)
    assert isinstance(out[0], fx.Persist) and isinstance(out[0].item, UploadKept)
    assert kit.acks(out) == [("held", "")]


def test_what_is_not_the_upload_counts_for_nothing_and_it_is_asked_for_anew():
    machine, header = large_round()
    grant = granted(machine, header)
    assert lies_there(machine, header, by=FLEET[1], who=FLEET[1]) == []  # it is not its own
    assert kit.refused(lies_there(machine, header, by=FLEET[1])) == ["unknown_signer"]
    (take,) = kit.tasks(lies_there(machine, header))
    out = machine.handle(fx.WorkDone(take, fx.WorkFailed("wrong_bytes")), 0.0)
    assert kit.refused(out) == ["beside_wrong_bytes"] and not kit.stored(out)
    assert kit.tasks(put_offer(machine, header)) == [grant]


def test_the_store_forgets_the_name_of_an_offer_that_another_takes_the_place_of():
    """Each other digest is given a name that lives for an hour, if nobody forgets it."""
    machine, _ = large_round()
    granted(machine, upload(1), "1" * 64)
    (second,) = kit.tasks(put_offer(machine, upload(2)))
    assert second.in_place_of == ("1" * 64,)
    (third,) = kit.tasks(put_offer(machine, upload(3)))  # before the store has answered
    assert third.in_place_of == ()
    for grant, name in ((second, "2" * 64), (third, "3" * 64)):
        machine.handle(fx.WorkDone(grant, tr.PutGranted(name, URL)), 0.0)
    send(machine, FLEET[0], kit.offer(upload(4), signer=FLEET[0].signer))  # over the broker
    (fifth,) = kit.tasks(put_offer(machine, upload(5)))
    assert fifth.in_place_of == ("2" * 64, "3" * 64)


def test_the_proxy_gets_a_broadcast_from_the_clouds_store_and_is_sent_to_no_other():
    machine, header = proxy(blob_urls=(PREFIX,)), kit.manifest(LARGE)
    machine.hold_work = True
    (need,) = to_cloud(from_cloud(machine, replaced(kit.offer(header), out_of_band=True)))
    assert need.out_of_band
    at_ = m.BlobAt(header.blob.digest, URL, False, 60.0)
    by_device = send_note(machine, FLEET[0], at_)
    assert kit.refused(by_device) == ["unexpected_body"]
    (task,) = kit.tasks(from_cloud(machine, kit.CLOUD.note(at_)))
    assert task == tr.FetchOutOfBand(header.blob, URL, 60.0)
    (keep,) = kit.tasks(machine.handle(fx.WorkDone(task, tr.FetchedOutOfBand()), 0.0))
    assert isinstance(keep, KeepBroadcast) and keep.header == header


def beside_batch(job):
    header, data = cloud_bench.batch(kit.at(job=job), fill=job[:1], size=tr.LEAST_BYTES)
    return header, replaced(kit.offer(header, signer=kit.PROXY), out_of_band=True), data


def put_to_cloud(machine, job):
    header, sent, _ = beside_batch(job)
    (grant,) = kit.tasks(cloud_bench.receive(machine, sent))
    assert grant == tr.GrantPut(header.blob, fx.ProxyAddress(), job)
    granted = cloud_bench.done(machine, grant, tr.PutGranted(job.hex(), URL))
    assert [one.put for one in kit.bodies(granted, m.BlobAt)] == [True]
    (take,) = kit.tasks(cloud_bench.receive(machine, kit.PROXY.note(m.BlobPut(header.blob.digest))))
    assert take == cj.TakeBatch(header, job.hex())
    return take


def test_what_is_not_the_batch_is_asked_for_anew_and_at_last_in_parts():
    machine = both_waiting(out_of_band_bytes=tr.LEAST_BYTES, push_bytes=1)
    header, _, data = beside_batch(kit.JOB)
    take = put_to_cloud(machine, kit.JOB)
    out = cloud_bench.done(machine, take, fx.WorkFailed("wrong_bytes"))
    assert kit.refused(out) == ["beside_wrong_bytes"] and not kit.tasks(out)
    assert not kit.messages(cloud_bench.fire(machine, "repair"), m.Need)
    assert put_to_cloud(machine, kit.JOB) == take
    cloud_bench.receive(machine, kit.offer(header, signer=kit.PROXY))  # it gave up the store
    assert kit.messages(cloud_bench.fire(machine, "repair"), m.Need)
    out = [one for part in kit.parts_of(header, data) for one in cloud_bench.receive(machine, part)]
    assert kit.tasks(out) == [cj.Absorb({"": header})]
