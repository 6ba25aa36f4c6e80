"""One device's rate: bursts, steady speech, parts, a table that stays small."""

from __future__ import annotations

import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import BlobPart, Need
from edgeveil_proxy.role import BURST_S, DeviceRate

NEED, PART = Need(b"b" * 32, (1,)), BlobPart(b"b" * 32, 1, 0, b"x" * 300)
A, B = fx.DeviceAddress("a" * 16), fx.DeviceAddress("b" * 16)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def nobody(_device: str) -> bool:
    return False


def taken(rate: DeviceRate, device: fx.Address, times: int) -> int:
    return sum(rate.allows(device, NEED) for _ in range(times))


def test_a_burst_then_the_rate_and_nobody_elses_matter() -> None:
    clock = Clock()
    rate = DeviceRate(10, 100, nobody, clock)
    burst = round(10 * BURST_S)
    assert taken(rate, A, 100) == pytest.approx(burst, abs=1)
    assert taken(rate, B, 5) == 5
    clock.now_s += 1.0
    assert taken(rate, A, 100) == pytest.approx(10, abs=1)
    clock.now_s += 1000.0
    assert taken(rate, A, 100) == pytest.approx(burst, abs=1)


def test_parts_that_were_asked_for_and_the_cloud_are_not_counted() -> None:
    rate = DeviceRate(0.1, 100, A.id.__eq__, Clock())
    assert all(rate.allows(A, PART) for _ in range(100))
    assert taken(rate, fx.CloudAddress(), 100) == 100


def test_parts_that_nobody_asked_for_are_counted() -> None:
    rate = DeviceRate(10, 100, A.id.__eq__, Clock())
    assert sum(rate.allows(B, PART) for _ in range(100)) == pytest.approx(10 * BURST_S, abs=1)
    assert taken(rate, B, 5) == 0


def test_a_slow_rate_still_takes_one_message_at_a_time() -> None:
    clock = Clock()
    rate = DeviceRate(0.1, 100, nobody, clock)
    assert taken(rate, A, 3) == 1
    clock.now_s += 10.0
    assert taken(rate, A, 3) == 1


def test_the_table_stays_within_the_number_of_devices() -> None:
    clock = Clock()
    rate = DeviceRate(10, 50, nobody, clock)
    for number in range(1000):
        clock.now_s += 0.001
        assert rate.allows(fx.DeviceAddress(f"{number:016}"), NEED)
        assert len(rate._until_s) <= 50
