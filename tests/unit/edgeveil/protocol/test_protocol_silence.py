"""What each role says when nothing came for long: a word that is answered, and no more."""

from __future__ import annotations

from cloud_bench import cloud
from device_bench import device
from protocol_kit import bodies, headers, of
from proxy_bench import proxy

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import Hello, Here, Roster


def test_a_device_says_hello() -> None:
    out = device().handle(fx.PeerSilent(fx.ProxyAddress()), 0.0)
    assert len(bodies(out, Hello)) == len(of(out, fx.Send)) == 1


def test_a_device_that_is_away_says_nothing() -> None:
    machine = device()
    machine.handle(fx.Command("leave"), 0.0)
    assert machine.handle(fx.PeerSilent(fx.ProxyAddress()), 0.0) == []


def test_a_proxy_asks_its_devices_and_offers_the_cloud_its_roster() -> None:
    assert len(bodies(proxy().handle(fx.PeerSilent(fx.AllDevices()), 0.0), Here)) == 1
    (header,) = headers(proxy().handle(fx.PeerSilent(fx.CloudAddress()), 0.0))
    assert isinstance(header, Roster)


def test_a_cloud_asks_the_proxy() -> None:
    out = cloud().handle(fx.PeerSilent(fx.ProxyAddress()), 0.0)
    assert len(bodies(out, Here)) == len(of(out, fx.Send)) == 1
