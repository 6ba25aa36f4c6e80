"""What the machines make of newer metadata: a leaked key's words end with its epoch."""

from dataclasses import replace

import pytest

from edgeveil.crypto.keys import SigningKey
from edgeveil.protocol import effects as fx
from edgeveil.protocol.cloud import CancelJob, CloudMachine, OwnKeys, RosterMark, RosterRefused
from edgeveil.protocol.cloud_job import Broadcast, CellBroadcasts, CloudState, SealJob, StartJob
from edgeveil.protocol.device import CloudEpoch, DeviceMachine
from edgeveil.protocol.device_round import DeviceMemory
from edgeveil.protocol.messages import (
    Blob,
    Hello,
    Note,
    PeerKeys,
    ReleaseStatement,
    Roster,
    RoundId,
    Signer,
    TrustMetadata,
    decode_body,
)
from edgeveil.protocol.proxy import ProxyMachine
from edgeveil.protocol.proxy_rounds import KeptBroadcast, ProxyMemory, ProxySettings
from edgeveil.protocol.transfer import describe
from tests.fuzz import samples

LEAKED, NEW, RELEASES, PROXY, DEVICE = (SigningKey(bytes([n]) * 32) for n in range(31, 36))
JOB = bytes(range(16))
UNDER_ROOT = PeerKeys(LEAKED.public(), PROXY.public(), RELEASES.public(), epoch=0, versions=(1, 1))
ROTATED = replace(UNDER_ROOT, cloud=NEW.public(), epoch=1, versions=(1, 2))
METADATA = TrustMetadata((), b"newer delegations")
DEVICE_ID = DEVICE.public().fingerprint()
CLOUD = fx.CloudAddress()


def manifest(sequence, kind="release", round=0):
    where = RoundId(JOB, round, 1)
    return samples.manifest(kind, where, sequence, describe(b"sealed", 4096))


def deliver(machine, message, sender=None):
    return machine.handle(fx.MessageReceived(sender or fx.ProxyAddress(), message), 0.0)


def refusals(effects):
    return [effect.reason for effect in effects if isinstance(effect, fx.Refuse)]


def messages(effects, kind=object):
    found = [effect.message for effect in effects if isinstance(effect, fx.Send)]
    return [one for one in found if isinstance(one, kind)]


def device(keys=UNDER_ROOT, **memory):
    held = DeviceMemory(jobs={JOB: None}, **memory)
    return DeviceMachine(Signer(DEVICE_ID, DEVICE), keys, held)


def offered(key, header):
    return Signer("cloud", key).offer(header, b"sealed")


# --- a device ---------------------------------------------------------------------------------


def test_a_fast_forwarded_sequence_ends_with_the_key_s_epoch():
    machine = device()
    assert refusals(deliver(machine, offered(RELEASES, manifest(2**62)))) == ["far_sequence"]
    deliver(machine, offered(LEAKED, manifest(1, "round", 2**31)))
    assert refusals(deliver(machine, offered(LEAKED, manifest(2, "round", 4)))) == [
        "replayed_round"
    ]
    deliver(machine, offered(RELEASES, manifest(2**44 - 1)))
    late = deliver(machine, offered(LEAKED, manifest(7, "round", 1)))
    assert refusals(late) == ["outdated_round"], "the leaked key's number is above all others"

    (work,) = deliver(machine, METADATA)
    assert work == fx.Work(fx.TakeTrust(METADATA))
    out = machine.handle(fx.WorkDone(work.task, ROTATED), 0.0)
    assert fx.Persist(CloudEpoch(1)) in out
    assert refusals(deliver(machine, offered(LEAKED, manifest(8, "round", 1)))) == ["forged"]
    assert refusals(deliver(machine, offered(NEW, manifest(8, "round", 1)))) == []
    assert refusals(deliver(machine, offered(RELEASES, manifest(9)))) == []


def test_the_same_key_anew_forgets_nothing():
    machine = device(release_sequence=50)
    machine.handle(fx.WorkDone(fx.TakeTrust(METADATA), replace(UNDER_ROOT, versions=(1, 2))), 0.0)
    old = deliver(machine, offered(RELEASES, manifest(49)))
    assert refusals(old) == ["replayed_release"]


def test_each_role_s_key_speaks_for_that_role_alone():
    for key, header in ((LEAKED, manifest(5)), (RELEASES, manifest(5, "round", 1))):
        assert refusals(deliver(device(), offered(key, header))) == ["forged"]


def test_a_key_of_the_version_before_does_not_speak_beside_those_of_the_newest():
    releases_anew = replace(UNDER_ROOT, releases=NEW.public(), epoch=1, versions=(1, 2))
    word = ReleaseStatement(1, 1e9, (), ())
    for machine, cloud in ((device(releases_anew), None), (proxy(releases_anew), CLOUD)):
        assert refusals(deliver(machine, offered(RELEASES, manifest(5)), cloud)) == ["forged"]
        assert refusals(deliver(machine, note_of(RELEASES, word), cloud)) == ["forged"]
        assert refusals(deliver(machine, offered(NEW, manifest(5)), cloud)) == []
        assert refusals(deliver(machine, offered(LEAKED, manifest(6, "round", 1)), cloud)) == []
    for machine, cloud in ((device(ROTATED), None), (proxy(ROTATED), CLOUD)):
        assert refusals(deliver(machine, offered(RELEASES, manifest(5)), cloud)) == []
        late = deliver(machine, offered(LEAKED, manifest(6, "round", 1)), cloud)
        assert refusals(late) == ["forged"]


def test_who_pins_keys_takes_no_metadata_and_who_is_behind_says_hello_again():
    pinned = device(PeerKeys.pinned(cloud=LEAKED.public(), proxy=PROXY.public()))
    assert refusals(deliver(pinned, METADATA)) == ["unexpected_metadata"]
    machine = device()
    deliver(machine, METADATA)
    out = machine.handle(fx.WorkDone(fx.TakeTrust(METADATA), fx.WorkFailed("metadata_gap")), 0.0)
    (hello,) = messages(out)
    assert refusals(out) == ["metadata_gap"]
    assert decode_body(hello.body) == Hello(DEVICE_ID, 1, 1, knows=3)


# --- the proxy --------------------------------------------------------------------------------


class OneDevice:
    lineage = "5e" * 16

    def verify_key(self, name):
        return DEVICE.public() if name == DEVICE_ID else None

    def roster(self):
        return 1, b""

    def roster_expires_s(self):
        return 100.0


def documents_after(root_version, version):
    """Root 3 after 1 and 2, delegations 4."""
    roots = (b"1", b"2", b"3")[root_version:]
    return roots, b"delegations" if version < 4 or roots else b""


def proxy(keys=UNDER_ROOT, **options):
    signer = Signer("proxy", PROXY)
    return ProxyMachine(signer, keys, OneDevice(), trust=documents_after, **options)


@pytest.mark.parametrize(
    "knows, sent",
    [
        ((1, 1), [TrustMetadata((b"2", b"3"), b"delegations")]),
        ((3, 3), [TrustMetadata((), b"delegations")]),
        ((3, 4), []),
        ((0, 0), []),
    ],
)
def test_a_device_is_sent_exactly_what_it_lacks_and_all_a_rotation_before_anything_else(
    knows, sent
):
    hello = Signer(DEVICE_ID, DEVICE).note(Hello(DEVICE_ID, *knows, knows=3))
    out = deliver(proxy(), hello, fx.DeviceAddress(DEVICE_ID))
    assert messages(out, TrustMetadata) == sent
    out = proxy().handle(fx.Command(ROTATED), 0.0)
    assert out[0] == fx.Send(fx.AllDevices(), TrustMetadata((b"2", b"3"), b"delegations"))


def test_what_a_leaked_key_said_holds_up_no_release_at_the_proxy():
    forged = manifest(90_000)
    kept = KeptBroadcast(Signer("cloud", RELEASES).header(forged), forged, b"sealed")
    statement = ReleaseStatement(90_000, 0.0, (), (7,))
    memory = ProxyMemory(kept={forged.blob.digest: kept}, statement=note_of(RELEASES, statement))
    machine = proxy(replace(UNDER_ROOT, releases=RELEASES.public()), memory=memory)
    cloud = fx.CloudAddress()
    genuine, word = manifest(7), ReleaseStatement(1, 1e9, (), ())
    assert refusals(deliver(machine, offered(RELEASES, genuine), cloud)) == ["forked_manifest"]
    assert refusals(deliver(machine, note_of(RELEASES, word), cloud)) == ["replayed_statement"]

    machine.handle(fx.Command(replace(ROTATED, releases=NEW.public())), 0.0)
    assert refusals(deliver(machine, offered(NEW, genuine), cloud)) == []
    assert refusals(deliver(machine, offered(NEW, manifest(8)), cloud)) == []
    assert refusals(deliver(machine, offered(RELEASES, forged), cloud)) == ["forged"]
    assert refusals(deliver(machine, note_of(NEW, word), cloud)) == []


def note_of(key, statement):
    return Signer("cloud", key).note(statement)


def test_metadata_that_do_not_fit_one_packet_come_in_order():
    def after(root_version, _version):
        return tuple(bytes(3000) for _ in range(3 - root_version)), b"delegations"

    settings, signer = ProxySettings(packet_bytes=4096), Signer("proxy", PROXY)
    machine = ProxyMachine(signer, UNDER_ROOT, OneDevice(), None, settings, after)
    hello = Signer(DEVICE_ID, DEVICE).note(Hello(DEVICE_ID, 1, 1, knows=3))
    (first,) = messages(deliver(machine, hello, fx.DeviceAddress(DEVICE_ID)), TrustMetadata)
    assert (len(first.roots), first.delegations) == (1, b"")


# --- the cloud --------------------------------------------------------------------------------


def cloud():
    releases = Signer("cloud", RELEASES)
    machine = CloudMachine(Signer("cloud", LEAKED), {"": UNDER_ROOT}, releases=releases)
    machine.handle(fx.Command(StartJob(JOB, 1, 1, 4, 2)), 0.0)
    sealed = CellBroadcasts({"": Broadcast(manifest(1, "job"), b"sealed")})
    machine.handle(fx.WorkDone(SealJob(JOB), sealed), 0.0)
    return machine


OWN = OwnKeys(NEW, RELEASES, {"": ROTATED}, METADATA)


def test_a_rotation_reaches_the_proxy_first_and_announces_the_round_anew_with_no_retry_spent():
    first, second = messages(cloud().handle(fx.Command(OWN), 0.0))[:2]
    assert first == METADATA
    assert ROTATED.cloud_header(second.header).kind == "job"
    machine = cloud()
    run = machine.runs[JOB]
    run.state, retries = CloudState.WAITING, run.retries_left
    same = replace(OWN, jobs=LEAKED, peers={"": replace(UNDER_ROOT, versions=(1, 2))})
    machine.handle(fx.Command(same), 0.0)  # other metadata alone disturb no round
    assert (run.state, run.attempt) == (CloudState.WAITING, 1)
    out = machine.handle(fx.Command(OWN), 0.0)
    assert SealJob(JOB) in [one.task for one in out if isinstance(one, fx.Work)]
    assert (run.state, run.attempt, run.retries_left) == (CloudState.SEALING_JOB, 2, retries)


def roster(lineage, epoch):
    return Signer("proxy", PROXY).offer(Roster(epoch, Blob(_EMPTY, 0, 4096), lineage, 9.0))


_EMPTY = describe(b"", 4096).digest
A, B = "aa" * 16, "bb" * 16


@pytest.mark.parametrize(
    "named, newest, lineage, epoch, reason",
    [
        ("", None, A, 0, ""),
        ("", RosterMark(A, 3), A, 3, ""),
        ("", RosterMark(A, 3), A, 2, "replayed_roster"),
        ("", RosterMark(A, 3), B, 9, "foreign_registry"),
        ("", RosterMark("", 3), A, 0, ""),  # the proxy was upgraded
        (B, RosterMark(A, 3), B, 0, ""),  # the root vouches for it
        (B, RosterMark(A, 3), A, 4, "foreign_registry"),
        (B, None, A, 4, "foreign_registry"),
    ],
)
def test_whose_roster_counts(named, newest, lineage, epoch, reason):
    keys = replace(UNDER_ROOT, lineage=named)
    rosters = {"": newest} if newest else None
    machine = CloudMachine(Signer("cloud", LEAKED), {"": keys}, rosters=rosters)
    out = deliver(machine, roster(lineage, epoch))
    assert refusals(out) == ([reason] if reason else [])
    stored = [e.item for e in out if isinstance(e, fx.Persist)]
    expected = [RosterRefused(reason, lineage, "", 9.0)] if reason else []
    assert [one for one in stored if isinstance(one, RosterRefused)] == expected


def test_ends_that_nobody_confirmed_are_signed_anew():
    machine = cloud()
    machine.handle(fx.Command(CancelJob(JOB)), 0.0)
    notes = messages(machine.handle(fx.Command(OWN), 0.0), Note)
    assert notes == [Signer("cloud", NEW).note(decode_body(note.body)) for note in notes] != []
