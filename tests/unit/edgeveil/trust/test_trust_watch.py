"""What cloud and proxy tell of trust: warnings long before an end, why they are not believed."""

import asyncio
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


class RoundFacts:
    """A cloud's or proxy's process under a root whose delegations end in `days`; no link is up."""

    def __init__(self, folder, role, days):
        self.folder, self.role, self.given = folder, role, folder / "trust.json"
        self.names(make_signing_key(folder / "state", role), days=days)
        site = {"state_dir": folder / "state", "trust_file": self.given}
        if role == "cloud":
            self.executor = ThreadPoolExecutor(1)
            self.process = _CloudProcess(
                CloudSite.model_validate({**site, "broker": NOWHERE}), self.executor
            )
            self.health = self.process.health(ListenAt("127.0.0.1"))
            self.party = self.process.cloud
        else:
            links = {"edge_broker": NOWHERE, "cloud_broker": NOWHERE}
            self.process = ProxyProcess(ProxySite.model_validate({**site, **links}))
            self.health, self.party = self.process.health, self.process.proxy

    def names(self, key, *, days=180, version=1):
        """The root's word: this key speaks for the role."""
        roles = {
            "cloud": {
                "cloud-jobs": key.public(),
                "cloud-releases": make_signing_key(self.folder / "state", "releases").public(),
            },
            "proxy": {"proxy-rosters": key.public()},
        }
        trust_file(self.given, roles[self.role], days=days, version=version)

    def delegations_expire_s(self):
        """The metric's value."""
        page = self.process.metrics.shown().body
        text = page.decode() if isinstance(page, bytes) else page
        name = r'edgeveil_trust_expires_timestamp_seconds\{document="delegations"\} (\S+)'
        return float(re.search(name, text)[1])


@pytest.fixture(params=["cloud", "proxy"])
def told(request, tmp_path):
    made = RoundFacts(tmp_path, request.param, 20)
    yield made
    made.party.close()


async def health(told):
    page = await told.health.state()
    return page.get("warnings", []), "trust" in page.get("parts", [])


def test_health_and_metrics_warn_of_an_end_twenty_days_before(told):
    async def body():
        assert await health(told) == (["the trust delegations will expire in 20 days"], False)
        left_s = told.delegations_expire_s() - now_utc().timestamp()
        assert 19.9 * DAY_S < left_s < 20.1 * DAY_S
        told.names(make_signing_key(told.folder / "state", told.role), version=2)
        told.process.trust.look()  # renewed while it runs
        assert await health(told) == ([], False)

    asyncio.run(body())


def test_a_key_that_the_root_no_longer_names_fails_health_until_it_is_there(told, caplog):
    async def body():
        other = SigningKey.generate()
        told.names(other, version=2)
        told.process.trust.look()
        assert other.public().fingerprint() in told.party.not_delegated
        assert (await health(told))[1]
        assert [record.message for record in caplog.records].count("trust") == 1
        other.save(told.folder / "state" / f"{told.role}-next.key")  # handed over after all
        told.names(other, version=3)
        told.process.trust.look()
        assert told.party.not_delegated == "" and not (await health(told))[1]

    asyncio.run(body())
