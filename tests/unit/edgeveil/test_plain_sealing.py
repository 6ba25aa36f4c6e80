"""What a simulation sends in clear: the real sizes, and worth nothing to a real process."""

from __future__ import annotations

import pytest

from edgeveil.config.data import DataSource
from edgeveil.config.edge import EdgeSite
from edgeveil.config.links import BrokerLink
from edgeveil.crypto.keys import OpeningKey
from edgeveil.privacy.ledger import Ledger
from edgeveil.protocol import sealed as real
from edgeveil.protocol.device_round import OpenedPackage, OpenPackage
from edgeveil.protocol.messages import Group, RoundId
from edgeveil.protocol.sealed import JobPackage, Sealing, Terms, encode_package
from edgeveil.testing import PlainSealing
from edgeveil_edge.host import DeviceHost
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.store import DeviceStore

PLAIN = PlainSealing()
GROUP = Group("centre", 128)
DIGEST = b"d" * 32
AT = RoundId(b"j" * 16, 1, 1)
PACKAGE = b"model" * 40


def terms(cloud: OpeningKey, kind: str = "round") -> Terms:
    key = cloud.public().to_bytes()
    return Terms(kind, AT, 1, DIGEST, kind, groups=(GROUP,), cloud_key=key)  # type: ignore[arg-type]


@pytest.fixture
def keys() -> tuple[OpeningKey, OpeningKey, OpeningKey]:
    """A device's, another device's, the cloud's."""
    return OpeningKey.generate(), OpeningKey.generate(), OpeningKey.generate()


def test_those_listed_open_it_and_others_do_not(keys) -> None:
    device, other, cloud = keys
    asked = [OpeningKey.generate().public(), device.public()]
    manifest, data, tag = PLAIN.seal_broadcast(terms(cloud), PACKAGE, asked, 1024)
    assert PLAIN.open_broadcast(device, manifest, data) == (PACKAGE, tag)
    assert PLAIN.open_broadcast(other, manifest, data) is None


def test_a_segment_opens_in_its_own_round_alone(keys) -> None:
    device, _, cloud = keys
    manifest, _, tag = PLAIN.seal_broadcast(terms(cloud), PACKAGE, [device.public()], 1024)
    segment = PLAIN.seal_segment(manifest, GROUP, tag, b"sums")
    opened = PLAIN.open_segment(cloud, AT, DIGEST, GROUP, tag, segment)
    assert opened == b"sums".ljust(128, b"\0")
    assert segment != PLAIN.seal_segment(manifest, GROUP, tag, b"sums")
    later = RoundId(AT.job_id, 2, 1)
    assert PLAIN.open_segment(cloud, later, DIGEST, GROUP, tag, segment) is None
    assert PLAIN.open_segment(cloud, AT, DIGEST, GROUP, b"x" * 32, segment) is None
    assert PLAIN.open_segment(cloud, AT, DIGEST, GROUP, tag, segment[:-1]) is None


def test_a_real_cloud_opens_no_plain_segment_and_a_simulated_one_no_real(keys) -> None:
    device, _, cloud = keys
    for mine, theirs in ((PLAIN, real), (real, PLAIN)):
        sealing: Sealing = mine
        opening: Sealing = theirs
        manifest, _, tag = sealing.seal_broadcast(terms(cloud), PACKAGE, [device.public()], 1024)
        segment = sealing.seal_segment(manifest, GROUP, tag, b"sums")
        assert opening.open_segment(cloud, AT, DIGEST, GROUP, tag, segment) is None


def test_a_devices_process_takes_no_plain_package(keys, tmp_path) -> None:
    """As the edge process makes its host: nothing in a site file or a manifest says otherwise."""
    site = EdgeSite(
        name="box",
        broker=BrokerLink(url="mqtt://127.0.0.1:1"),
        state_dir=tmp_path,
        cloud_key_file=tmp_path / "cloud.pub",
        proxy_key_file=tmp_path / "proxy.pub",
        data=DataSource(name="digits", source="digits"),
    )
    identity = DeviceIdentity.load_or_create(tmp_path)
    store, ledger = DeviceStore(tmp_path / "device.sqlite"), Ledger(tmp_path / "l.sqlite", "digits")
    host, own = DeviceHost(site, identity, store, ledger), identity.opening.public()
    package = encode_package(JobPackage(b"{}", b"graph"))
    outcomes = {}
    for name, sealing in (("plain", PLAIN), ("real", real)):
        chosen: Sealing = sealing
        manifest, data, _ = chosen.seal_broadcast(terms(keys[2], "job"), package, [own], 1024)
        outcomes[name] = host.perform(OpenPackage(manifest, data))
    assert isinstance(outcomes["plain"], OpenedPackage)
    assert outcomes["plain"].package is None
    assert isinstance(outcomes["real"], OpenedPackage)
    assert outcomes["real"].package is not None
