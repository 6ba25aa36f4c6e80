"""Cover traffic: at the proxy the selected look like all others, and the model is the same."""

from collections import defaultdict

import pytest

from edgeveil.config.policy import Policy
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil.protocol import effects as fx
from edgeveil.protocol import messages as m
from edgeveil.transport.memory import LATENCY_S
from tests.kits.fleet import PACKET_BYTES, Fleet, committed, small_job

pytestmark = pytest.mark.slow

WINDOW_S = 4.0
DEVICES, SELECTED = 8, 5
ROUNDS = 4  # centre, quadratic, two of training
JOB = small_job(selection={"devices": SELECTED}, train={"method": "fm", "rounds": 2})


class CoveredFleet(Fleet):
    def __init__(self, folder, devices, policy=None, **proxy):
        self.moments = defaultdict(list)
        self._begun = {}
        covered = {"cover_traffic": True, "cover_window_s": WINDOW_S, "limits": proxy}
        super().__init__(folder, devices, faults=self._timed, policy=policy, proxy=covered)

    def _timed(self, _sender, to, frame):
        message, now_s = m.decode(frame, PACKET_BYTES), self.net.now_s
        header = m.decode_header(message.header) if isinstance(message, m.Offer) else None
        if (
            isinstance(header, m.Manifest)
            and header.kind == "round"
            and isinstance(to, fx.DeviceAddress)
        ):
            self._begun.setdefault(header.at.round, now_s)
        if isinstance(header, m.Upload):
            self.moments[header.at.round].append(now_s - self._begun[header.at.round])
        return [LATENCY_S]


def played(fleet):
    fleet.net.run(lambda: False, fleet.net.now_s + 2.0)  # one may say hello twice, by chance
    fleet.net.wire = []
    job = fleet.submit(JOB)
    assert fleet.finish(job) == "completed"
    return job


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("plain"), DEVICES)
    return fleet, played(fleet)


@pytest.fixture(scope="module")
def covered(tmp_path_factory):
    owner = Policy(require_cover=True)
    fleet = CoveredFleet(tmp_path_factory.mktemp("cover"), DEVICES, owner)
    return fleet, played(fleet)


def looks(fleet):
    """What the proxy and its broker see of each device: every frame's kind and size, in order."""
    seen = defaultdict(list)
    for sender, _, frame in fleet.net.wire or []:
        if isinstance(sender, fx.DeviceAddress):
            message = m.decode(frame, PACKET_BYTES)
            kind = type(message).__name__
            if isinstance(message, m.Note):
                kind = type(m.decode_body(message.body)).__name__
            inside = isinstance(message, m.Offer) and bool(message.data)
            seen[sender.id].append((kind, len(frame), inside))
    return seen


def released(fleet):
    return [read_ledger(box.site.state_dir / LEDGER_FILE).links for box in fleet.devices]


def test_devices_that_require_cover_are_silent_without_it(tmp_path):
    fleet = Fleet(tmp_path, DEVICES, policy=Policy(require_cover=True))
    fleet.net.wire = []
    job = fleet.submit(
        JOB.model_copy(update={"round": JOB.round.model_copy(update={"retries": 0})})
    )
    assert fleet.finish(job) == "paused"
    kinds = {kind for frames in looks(fleet).values() for kind, *_ in frames}
    assert kinds.isdisjoint({m.Offer.__name__, m.Decline.__name__})


def test_devices_that_the_proxy_has_not_heard_yet_look_alike_too(tmp_path):
    fleet = CoveredFleet(tmp_path, DEVICES, hellos_per_s=0.05)
    fleet.net.run(lambda: len(fleet.proxy.machine.online) == DEVICES)
    fleet.proxy.close()
    fleet.start_proxy()
    played(fleet)
    assert len(fleet.proxy.machine.online) < DEVICES
    alike = {
        tuple(sorted(frame for frame in frames if frame[0] != m.Hello.__name__))
        for frames in looks(fleet).values()
    }
    assert len(alike) == 1


def test_the_proxy_cannot_tell_who_was_selected(plain, covered):
    for fleet, _ in (plain, covered):
        assert min(released(fleet)) < max(released(fleet))  # they were asked unequally often
    told = {tuple(sorted(look)) for look in looks(plain[0]).values()}
    assert len(told) > 1
    alike = {tuple(sorted(look)) for look in looks(covered[0]).values()}
    assert len(alike) == 1
    (frames,) = alike
    assert sum(kind == m.Offer.__name__ for kind, *_ in frames) == ROUNDS
    moments = covered[0].moments.values()
    assert len(moments) == ROUNDS
    for found in moments:
        assert len(found) == DEVICES
        assert all(WINDOW_S / 2 <= moment < WINDOW_S + 0.1 for moment in found)
        assert max(found) - min(found) > 0.1


def test_the_model_is_the_one_without_cover(plain, covered):
    before, after = (committed(*played) for played in (plain, covered))
    assert [r["uploads"] for r in before] == [SELECTED] * ROUNDS
    assert [r["uploads"] for r in after] == [SELECTED] * ROUNDS  # the dummies do not open
    assert [r["accuracy"] for r in before] == [r["accuracy"] for r in after]
    (one, job), (other, its) = plain, covered
    assert one.store.release(job).onnx == other.store.release(its).onnx
    assert released(one) == released(other)  # a dummy is no event


def test_a_device_that_declines_looks_like_the_others(tmp_path):
    fleet = CoveredFleet(tmp_path, DEVICES)
    fleet.devices[0].site.policy.__dict__["min_devices"] = SELECTED + 1
    played(fleet)
    seen = looks(fleet)
    assert all(kind != m.Decline.__name__ for frames in seen.values() for kind, *_ in frames)
    assert len({tuple(sorted(frames)) for frames in seen.values()}) == 1
    assert fleet.devices[0].ledger.spent().epsilon == 0
