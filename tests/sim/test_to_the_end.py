"""A job whose end cannot be reached pauses before its first round: no device has paid."""

import time

import pytest

from edgeveil.jobs import compile_job
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.protocol.proxy_rounds import ProxySettings
from tests.kits.fleet import PACKET_BYTES, Fleet, small_job

pytestmark = pytest.mark.slow


FEATURES = ({"name": "random", "dimension": 256, "seed": 1, "input_scale": 16.0},)
WIDE = small_job(features=FEATURES)
MOST = compile_job(WIDE).upload_bytes  # of its second round; the first takes 1 KB


def test_a_job_pauses_unpaid_where_its_release_would_be_refused_and_ends_once_it_is_not(tmp_path):
    """Of a fleet without a root, whose cloud's key somebody has and uses once."""
    fleet = Fleet(tmp_path, 5)
    fleet.net.run(lambda: fleet.enrolled)
    leaked = m.Signer("cloud", fleet.cloud.machine.signer.key)
    statement = m.ReleaseStatement(int((time.time() + 3 * 3600) * 1000), 0.0, (), ())
    event = fx.MessageReceived(fx.CloudAddress(), leaked.note(statement))
    fleet.net.post(fleet.proxy.runner, event, 0.0)
    fleet.net.run(lambda: False, fleet.net.now_s + 1.0)
    job = fleet.submit(small_job())
    assert fleet.finish(job) == "paused"
    reason = fleet.store.job(job).reason
    assert "replayed_statement" in reason and "trust rotate DIR cloud-releases" in reason
    assert paid(fleet) == 0.0 and not fleet.store.rounds(job)
    for one in (fleet.cloud.store, fleet.proxy.registry):
        one._now_s = lambda: time.time() + 4 * 3600.0  # the remedy of a site without a root
    fleet.resume(job)
    assert fleet.finish(job) == "completed", fleet.store.job(job).reason
    assert paid(fleet) > 0.0


def paid(fleet):
    return max(box.ledger.spent().epsilon for box in fleet.devices)


def test_a_job_pauses_unpaid_where_a_later_round_would_pass_a_limit_of_the_proxy(tmp_path):
    """It was paid for with its first round; then all were late, and sound devices blamed."""
    fleet = Fleet(tmp_path, 5, proxy={"limits": {"upload_bytes": MOST - 1}})
    fleet.net.run(lambda: fleet.enrolled)
    job = fleet.submit(WIDE)
    assert fleet.finish(job) == "paused"
    assert "limits.upload_bytes" in fleet.store.job(job).reason
    assert paid(fleet) == 0.0
    assert not any(fleet.proxy.conduct.refused_by_device())
    fleet.proxy.machine._context.settings = ProxySettings(packet_bytes=PACKET_BYTES)
    fleet.resume(job)
    assert fleet.finish(job) == "completed"
