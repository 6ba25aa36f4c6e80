"""Cloud and proxy warn long before trust ends, and fail health when they are not believed."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from edgeveil.config.cloud import CloudSite
from edgeveil.config.proxy import ProxySite
from edgeveil.crypto.keys import SigningKey
from edgeveil.transport.listener import ListenAt
from edgeveil.transport.process import make_signing_key
from edgeveil.trust.metadata import now_utc
from edgeveil_cloud.main import _CloudProcess
from edgeveil_proxy.main import ProxyProcess
from tests.kits.trust_files import trust_file

NOWHERE = {"url": "mqtt://127.0.0.1:1"}
DAY_S = 86400.0


class Party:
    """A cloud's or proxy's process under a root whose delegations end in `days`; no link is up."""

    def __init__(self, folder, role, days):
        self.folder, self.role, self.given = folder, role, folder / "trust.json"
        self.delegate(make_signing_key(folder / "state", role), days=days)
        site = {"state_dir": folder / "state", "trust_file": self.given}
        if role == "cloud":
            site = CloudSite.model_validate({**site, "broker": NOWHERE})
            self.process = _CloudProcess(site, ThreadPoolExecutor(1))
            self.health = self.process.health(ListenAt("127.0.0.1"))
            self.party = self.process.cloud
        else:
            links = {"edge_broker": NOWHERE, "cloud_broker": NOWHERE}
            self.process = ProxyProcess(ProxySite.model_validate({**site, **links}))
            self.health, self.party = self.process.health, self.process.proxy

    def delegate(self, key, *, days=180, version=1):
        """Let the root's document name this key for the role."""
        if self.role == "cloud":
            releases = make_signing_key(self.folder / "state", "releases").public()
            roles = {"cloud-jobs": key.public(), "cloud-releases": releases}
        else:
            roles = {"proxy-rosters": key.public()}
        trust_file(self.given, roles, days=days, version=version)
        if version > 1:
            self.process.trust.look()

    def delegations_expire_s(self):
        """The metric's value."""
        page = self.process.metrics.shown().body
        text = page.decode() if isinstance(page, bytes) else page
        name = r'edgeveil_trust_expires_timestamp_seconds\{document="delegations"\} (\S+)'
        return float(re.search(name, text)[1])

    async def state(self):
        page = await self.health.state()
        return page.get("warnings", []), "trust" in page.get("parts", [])


@pytest.fixture(params=["cloud", "proxy"])
def watched(request, tmp_path):
    made = Party(tmp_path, request.param, 20)
    yield made
    made.party.close()


async def test_health_and_metrics_warn_of_an_end_twenty_days_before(watched):
    warnings, failing = await watched.state()
    assert len(warnings) == 1 and "20 days" in warnings[0] and not failing
    left_s = watched.delegations_expire_s() - now_utc().timestamp()
    assert 19.9 * DAY_S < left_s < 20.1 * DAY_S
    watched.delegate(make_signing_key(watched.folder / "state", watched.role), version=2)
    assert await watched.state() == ([], False)


async def test_a_key_that_the_root_no_longer_names_fails_health_until_it_is_there(watched):
    other = SigningKey.generate()
    watched.delegate(other, version=2)
    assert other.public().fingerprint() in watched.party.not_delegated
    assert (await watched.state())[1]
    other.save(watched.folder / "state" / f"{watched.role}-next.key")  # handed over after all
    watched.delegate(other, version=3)
    assert watched.party.not_delegated == "" and not (await watched.state())[1]
