"""The cloud's process: what it names when it cannot start, and that it leaves nothing behind."""

import asyncio

import pytest

from edgeveil.config.cloud import CloudSite
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import BrokerError, SystemFault
from edgeveil.transport.process import make_signing_key
from edgeveil_cloud.main import _run
from edgeveil_tools.site.brokers import free_ports


def test_a_cloud_that_cannot_start_names_why_and_gives_everything_back(tmp_path):
    state, key, (port, own) = tmp_path / "state", tmp_path / "proxy.pub", free_ports(2)
    SigningKey.generate().public().save(key)
    make_signing_key(state, "cloud")
    site = CloudSite.model_validate(
        {
            "broker": {"url": f"mqtt://127.0.0.1:{port}"},
            "state_dir": state,
            "proxy_key_file": key,
            "http": {"port": own},
        }
    )

    def start():
        asyncio.run(asyncio.wait_for(_run(site, asyncio.Event()), 20))

    for _ in range(2):  # the second start finds the port free and the store unlocked
        with pytest.raises(BrokerError, match=f"127.0.0.1:{port}"):
            start()
    modes = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir()}
    tokens = ("http.token", "http-submit.token", "http-read.token")
    assert {modes[name] for name in ("cloud.key", *tokens)} == {0o600}
    assert {"cloud.pub", "cloud.sqlite"} <= modes.keys()
    assert state.stat().st_mode & 0o077 == 0
    key.unlink()
    with pytest.raises(SystemFault, match="public key of the proxy"):
        start()
