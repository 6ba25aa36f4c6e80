"""A job whose end cannot be reached pauses before its first round: no device has paid."""

import hashlib
import time

import pytest

from edgeveil.jobs import compile_job
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_rounds import ProxySettings
from edgeveil.protocol.transfer import describe, part_bytes
from tests.kits.fleet import PACKET_BYTES, Fleet, small_job

pytestmark = pytest.mark.slow

JOB = small_job()
HOUR_MS = 3_600_000
JUNK = b"junk" * 100


def now_ms():
    return int(time.time() * 1000)


def release(sequence):
    """For the job's data set; what it holds opens for nobody."""
    return m.Manifest(
        kind="release",
        at=m.RoundId(b"F" * 16, 0, 1),
        sequence=sequence,
        job_digest=bytes(32),
        phase="release",
        selected=5,
        min_batch=0,
        quorum=0,
        deadline_s=0.0,
        grace_s=0.0,
        groups=(),
        stanza_bytes=0,
        package_digest=hashlib.sha256(b"").digest(),
        package_bytes=0,
        commitment=bytes(32),
        cloud_key=bytes(32),
        blob=describe(JUNK, part_bytes(PACKET_BYTES)),
        data_set=m.data_set_tag("digits"),
    )


class Struck(Fleet):
    """A fleet without a root; somebody has the cloud's key, and the proxy's, and speaks once."""

    def __init__(self, folder):
        super().__init__(folder, 5)
        self.net.run(lambda: self.enrolled)

    def as_cloud(self, message):
        event = fx.MessageReceived(fx.CloudAddress(), message)
        self.net.post(self.proxy.runner, event, 0.0)
        self.net.run(lambda: False, self.net.now_s + 1.0)

    @property
    def leaked(self):
        return m.Signer("cloud", self.cloud.machine.signer.key)

    def paid(self):
        return max(box.ledger.spent().epsilon for box in self.devices)

    def hours_later(self, hours):
        for one in (self.cloud.store, self.proxy.registry):
            one._now_s = lambda: time.time() + 3600.0 * hours


@pytest.fixture
def fleet(tmp_path):
    return Struck(tmp_path)


def test_no_number_of_a_leaked_key_bars_what_follows(fleet):
    for number in (2**62, 2**44, now_ms() + 30 * HOUR_MS):
        fleet.as_cloud(fleet.leaked.offer(release(number), JUNK))
        fleet.as_cloud(fleet.leaked.note(m.ReleaseStatement(number, 0.0, (), ())))
    assert fleet.proxy.machine.memory.kept == {} and fleet.proxy.machine.memory.statement is None
    job = fleet.submit(JOB)
    assert fleet.finish(job) == "completed", fleet.store.job(job).reason


@pytest.mark.parametrize("what", ["replayed_release", "replayed_statement"])
def test_a_job_pauses_unpaid_where_its_release_would_be_refused_and_ends_once_it_is_not(
    fleet, what
):
    number = now_ms() + 3 * HOUR_MS
    if what == "replayed_release":
        fleet.as_cloud(fleet.leaked.offer(release(number), JUNK))
    else:
        fleet.as_cloud(fleet.leaked.note(m.ReleaseStatement(number, 0.0, (), ())))
    job = fleet.submit(JOB)
    assert fleet.finish(job) == "paused"
    reason = fleet.store.job(job).reason
    assert what in reason and "trust rotate DIR cloud-releases" in reason and job in reason
    assert fleet.paid() == 0.0 and not fleet.store.rounds(job)
    fleet.hours_later(4)  # the remedy of a site without a root
    fleet.resume(job)
    assert fleet.finish(job) == "completed", fleet.store.job(job).reason
    assert fleet.paid() > 0.0


def test_a_job_pauses_unpaid_where_the_proxy_s_rosters_are_refused(fleet):
    registry = fleet.proxy.registry
    keys = registry.roster()[1]
    header = m.Roster(
        2**62,
        describe(keys, part_bytes(PACKET_BYTES)),
        registry.lineage,
        registry.roster_expires_s(),
    )
    signed = m.Signer("proxy", fleet.proxy.machine.signer.key)
    event = fx.MessageReceived(fx.ProxyAddress(), signed.offer(header, keys))
    fleet.net.post(fleet.cloud.runner, event, 0.0)
    fleet.net.run(lambda: False, fleet.net.now_s + 1.0)
    job = fleet.submit(JOB)
    assert fleet.finish(job) == "paused"
    assert "accept-registry" in fleet.store.job(job).reason and fleet.paid() == 0.0
    fleet.store.accept_registry()
    fleet.cloud.close()
    fleet.start_cloud()
    fleet.net.connect(fleet.cloud.runner)
    fleet.net.run(lambda: fleet.enrolled)
    fleet.resume(job)
    assert fleet.finish(job) == "completed", fleet.store.job(job).reason


FEATURES = ({"name": "random", "dimension": 256, "seed": 1, "input_scale": 16.0},)
WIDE = small_job(features=FEATURES)
MOST = compile_job(WIDE).upload_bytes  # of its second round; the first takes 1 KB


@pytest.mark.parametrize(
    ("limits", "reason", "advice"),
    [
        ({"upload_bytes": MOST - 1}, "oversized_upload", "limits.upload_bytes"),
        ({"upload_bytes": MOST, "spool_bytes": 3 * MOST - 1}, "spool_too_small", "spool_bytes"),
        ({"blob_bytes": 100_000}, "oversized_broadcast", "limits.blob_bytes"),
    ],
)
def test_a_job_pauses_unpaid_where_a_later_round_would_pass_a_limit_of_the_proxy(
    tmp_path, limits, reason, advice
):
    """It was paid for with its first round; then all were late, and sound devices blamed."""
    fleet = Fleet(tmp_path, 5, proxy={"limits": limits})
    fleet.net.run(lambda: fleet.enrolled)
    job = fleet.submit(WIDE)
    assert fleet.finish(job) == "paused"
    told = fleet.store.job(job).reason
    assert reason in told and advice in told
    assert all(box.ledger.spent().epsilon == 0 for box in fleet.devices)
    assert not any(fleet.proxy.conduct.refused_by_device())
    fleet.proxy.machine._context.settings = ProxySettings(packet_bytes=PACKET_BYTES)
    fleet.resume(job)
    assert fleet.finish(job) == "completed"
