"""What a simulation sends in clear: the real sizes, and worth nothing to a real process."""

import pytest

from edgeveil.config.data import DataSource
from edgeveil.config.edge import EdgeSite
from edgeveil.config.links import BrokerLink
from edgeveil.crypto.keys import OpeningKey
from edgeveil.privacy.ledger import Ledger
from edgeveil.protocol import sealed as real
from edgeveil.protocol.device_round import OpenedPackage, OpenPackage
from edgeveil.protocol.messages import Group, RoundId
from edgeveil.protocol.sealed import JobPackage, Terms, encode_package
from edgeveil.testing import PlainSealing
from edgeveil_edge.host import DeviceHost
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_edge.store import DeviceStore

PLAIN = PlainSealing()
GROUP = Group("centre", 128)
DIGEST = b"d" * 32
AT = RoundId(b"j" * 16, 1, 1)
PACKAGE = b"model" * 40


def terms(cloud, kind="round"):
    key = cloud.public().to_bytes()
    return Terms(kind, AT, 1, DIGEST, kind, groups=(GROUP,), cloud_key=key)  # type: ignore[arg-type]


@pytest.fixture
def cloud():
    return OpeningKey.generate()


@pytest.mark.parametrize(("sealing", "opening"), [(PLAIN, real), (real, PLAIN)])
def test_a_real_cloud_opens_no_plain_segment_and_a_simulated_one_no_real(cloud, sealing, opening):
    device = OpeningKey.generate().public()
    manifest, _, tag = sealing.seal_broadcast(terms(cloud), PACKAGE, [device], 1024)
    segment = sealing.seal_segment(manifest, GROUP, tag, b"sums")
    assert opening.open_segment(cloud, AT, DIGEST, GROUP, tag, segment) is None


def test_a_devices_process_takes_no_plain_package(cloud, tmp_path):
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
    for sealing, opens in ((PLAIN, False), (real, True)):
        manifest, data, _ = sealing.seal_broadcast(terms(cloud, "job"), package, [own], 1024)
        found = host.perform(OpenPackage(manifest, data))
        assert isinstance(found, OpenedPackage) and (found.package is not None) is opens
