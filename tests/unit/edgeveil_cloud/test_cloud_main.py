"""The cloud's process: what it says when it cannot start, and that it leaves nothing behind."""

import asyncio
import socket

import pytest

from edgeveil.config.cloud import CloudSite
from edgeveil.crypto.keys import SigningKey
from edgeveil.errors import BrokerError, SystemFault
from edgeveil.transport.process import make_signing_key
from edgeveil_cloud.main import _run


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def site(tmp_path):
    SigningKey.generate().public().save(tmp_path / "proxy.pub")
    make_signing_key(tmp_path / "state", "cloud")
    return CloudSite.model_validate(
        {
            "broker": {"url": f"mqtt://127.0.0.1:{free_port()}"},
            "state_dir": tmp_path / "state",
            "proxy_key_file": tmp_path / "proxy.pub",
            "http": {"port": free_port()},
        }
    )


def start(site):
    async def body():
        await asyncio.wait_for(_run(site, asyncio.Event()), 20)

    asyncio.run(body())


def test_a_broker_that_is_not_there_is_named_and_everything_is_given_back(site):
    for _ in range(2):  # the second start finds the port free and the store unlocked
        with pytest.raises(BrokerError) as caught:
            start(site)
        assert site.broker.urls[0].removeprefix("mqtt://") in str(caught.value)
        assert caught.value.fix


def test_a_missing_key_of_the_proxy_is_named_before_anything_listens(site):
    site.proxy_key_file.unlink()
    with pytest.raises(SystemFault, match=r"public key of the proxy.*\.pub"):
        start(site)


def test_the_state_folder_holds_the_cloud_alone_for_its_owner(site):
    with pytest.raises(BrokerError):
        start(site)
    modes = {path.name: path.stat().st_mode & 0o777 for path in site.state_dir.iterdir()}
    assert modes["cloud.key"] == 0o600
    for name in ("http.token", "http-submit.token", "http-read.token"):
        assert modes[name] == 0o600
    assert {"cloud.pub", "cloud.sqlite"} <= modes.keys()
    assert site.state_dir.stat().st_mode & 0o077 == 0
