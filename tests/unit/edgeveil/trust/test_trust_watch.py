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


class Told:
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

    async def page(self):
        """`/healthz`."""
        return await self.health.state()

    async def expires_s(self):
        """The metric, by document."""
        page = self.process.metrics.shown().body
        text = page.decode() if isinstance(page, bytes) else page
        name = r'edgeveil_trust_expires_timestamp_seconds\{document="(\w+)"\} (\S+)'
        return {document: float(at) for document, at in re.findall(name, text)}

    def close(self):
        """Give the files back."""
        self.party.close()


@pytest.fixture(params=["cloud", "proxy"])
def role(request):
    return request.param


@pytest.fixture
def started(tmp_path, role):
    made = []

    def start(days):
        made.append(Told(tmp_path, role, days))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_health_and_metrics_tell_of_an_end_twenty_days_before(
    started,
):
    async def body():
        told = started(20)
        page = await told.page()
        assert page["warnings"] == ["the trust delegations will expire in 20 days"]
        assert "trust" not in page.get("parts", [])  # nothing fails yet
        left_s = (await told.expires_s())["delegations"] - now_utc().timestamp()
        assert 19.9 * DAY_S < left_s < 20.1 * DAY_S
        told.names(make_signing_key(told.folder / "state", told.role), version=2)
        told.process.trust.look()  # renewed while it runs
        assert "warnings" not in await told.page()

    asyncio.run(body())


def test_a_key_that_the_root_does_not_name_any_more_fails_health_and_is_named(started, caplog):
    async def body():
        told = started(180)
        assert "trust" not in (await told.page())["parts"]
        other = SigningKey.generate()
        told.names(other, version=2)
        told.process.trust.look()
        assert other.public().fingerprint() in told.party.not_delegated
        assert "trust" in (await told.page())["parts"]
        (said,) = [record for record in caplog.records if record.message == "trust"]
        assert "the root vouches for another key" in said.reason
        folder = told.folder / "state"
        other.save(folder / f"{told.role}-next.key")  # it is handed over after all
        told.names(other, version=3)
        told.process.trust.look()
        assert told.party.not_delegated == ""
        assert "trust" not in (await told.page())["parts"]

    asyncio.run(body())
