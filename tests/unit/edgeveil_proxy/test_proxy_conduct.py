"""What one identity may send: its rate, refusals and cool-downs, in tables that stay small."""

import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import BlobPart, Need, encode
from edgeveil.protocol.proxy_rounds import MISFIT
from edgeveil.protocol.proxy_uploads import OpenRequest
from edgeveil_proxy.conduct import BURST_S, OTHERS, SHOWN, ConductLimits, DeviceConduct

NEED, PART = encode(Need(b"b" * 32, (1,))), encode(BlobPart(b"b" * 32, 1, 0, b"x" * 300))
A, B = fx.DeviceAddress("a" * 16), fx.DeviceAddress("b" * 16)


class Scene:
    """Devices that speak to a proxy whose clock is the test's; `admitted` None: everybody is."""

    def __init__(self, clock, asked=lambda _: None, **limits):
        self.clock, self.admitted, self.set_aside = clock, None, []
        self.conduct = DeviceConduct(
            ConductLimits(**limits),
            lambda device: self.admitted is None or device in self.admitted,
            asked,
            self.set_aside.append,
            self.clock,
        )

    @property
    def known(self):
        return len(self.conduct._enrolled) + len(self.conduct._others)

    def takes(self, device, frame=NEED):
        return self.conduct.refusal(device, frame) is None

    def taken(self, device, times):
        return sum(self.takes(device) for _ in range(times))

    def misbehave(self, device=A, times=4, reason="malformed"):
        for _ in range(times):
            self.conduct.refused(device, reason)

    def cooling(self):
        """Seconds for which A's frames are dropped from now on."""
        shown = {one["device"]: one["cooling_down_s"] for one in self.conduct.refused_by_device()}
        return shown.get(A.id, 0.0)


@pytest.fixture
def strict(clock):
    return Scene(clock, refusals=3, window_s=10, cool_down_s=20, cool_down_cap_s=60)


def test_a_burst_then_the_rate_and_nobody_elses_matter(clock):
    scene = Scene(clock, messages_per_s=10, refusals=10**6)
    burst = round(10 * BURST_S)
    for later_s, taken in ((0.0, burst), (1.0, 10), (1000.0, burst)):
        clock.now_s += later_s
        assert scene.taken(A, 100) == pytest.approx(taken, abs=1)
        assert scene.taken(B, 1) == 1
    cloud = fx.CloudAddress()
    assert scene.taken(cloud, 1000) == 1000
    scene.misbehave(cloud, 1000)
    assert scene.takes(cloud)


def test_so_many_parts_as_were_asked_for_come_beside_the_rate_and_no_more(clock):
    asked = {A.id: OpenRequest(1, 16)}
    scene = Scene(clock, asked.get, messages_per_s=10, refusals=30)
    burst = round(10 * BURST_S)
    assert sum(scene.takes(A, PART) for _ in range(30)) == 30, "parts that come twice have a rate"
    asked[A.id] = OpenRequest(2, 16)
    assert sum(scene.takes(A, PART) for _ in range(30)) == pytest.approx(burst + 2, abs=1)
    reasons = {scene.conduct.refusal(A, PART) for _ in range(1000)}
    assert reasons == {"rate", "cooling_down"} and scene.set_aside == [A.id]


def test_a_misbehaving_device_is_dropped_for_a_while_which_nothing_prolongs_and_no_other(strict):
    strict.misbehave(times=3)
    assert strict.takes(A) and not strict.set_aside
    strict.misbehave(times=1)
    assert strict.conduct.refusal(A, NEED) == strict.conduct.refusal(A, PART) == "cooling_down"
    assert strict.takes(B) and strict.set_aside == [A.id]
    strict.taken(A, 1000)
    strict.misbehave(times=1000)  # of frames that were taken before it began
    assert strict.cooling() == 20.0 and strict.set_aside == [A.id]
    strict.clock.now_s += 20.0
    assert strict.takes(A) and strict.conduct.cooling_down == 0


def test_cool_downs_grow_to_the_cap_and_good_behaviour_resets_them(strict):
    scene, lengths = strict, []
    for _ in range(4):
        scene.misbehave()
        lengths.append(scene.cooling())
        scene.clock.now_s += lengths[-1]
    assert lengths == [20.0, 40.0, 60.0, 60.0]
    scene.clock.now_s += 59.0
    scene.misbehave()
    assert scene.cooling() == 60.0
    scene.clock.now_s += 60.0 + 60.0
    scene.misbehave()
    assert scene.cooling() == 20.0


def test_what_a_sound_device_can_meet_is_counted_and_not_held_against_it(strict):
    reasons = ("closed_round", "spool_full", "unknown_blob", "hello_too_often", MISFIT)
    for reason in reasons:
        strict.misbehave(times=1000, reason=reason)
        assert strict.takes(A)
    (shown,) = strict.conduct.refused_by_device()
    assert shown["refused"] == dict.fromkeys(reasons, 1000)


def test_identities_that_nobody_admitted_take_little_room_and_no_page(clock):
    scene = Scene(clock)
    scene.admitted = {A.id}
    assert scene.takes(A)
    for number in range(3 * OTHERS):
        scene.misbehave(fx.DeviceAddress(f"{number:016x}"), 1)
        assert scene.known <= 1 + OTHERS
    assert len(scene.conduct.refused_by_device()) == SHOWN


def test_who_is_admitted_begins_anew_and_who_is_revoked_is_forgotten(strict):
    scene = strict
    scene.admitted = set()
    scene.misbehave()
    assert not scene.takes(A) and not scene.set_aside
    scene.admitted = {A.id}
    assert scene.takes(A) and scene.known == 1
    scene.admitted = set()
    scene.conduct.keep_enrolled()
    assert scene.known == 0
