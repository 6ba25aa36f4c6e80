"""A broker whose clients show certificates: the name in it is the user, and it can be revoked."""

import asyncio
import signal
import subprocess
import sys

import pytest
import yaml
from broker_harness import certified, linked

from edgeveil.crypto.authorities import Authority
from edgeveil.errors import BrokerError
from edgeveil.storage import write_durably
from edgeveil_tools.cli import main
from edgeveil_tools.site.brokers import free_port

ADA, BOB = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"


@pytest.fixture
def authority():
    return Authority.make("devices")


@pytest.fixture
def site(tmp_path, authority):
    """A broker's folder, with an empty list of revoked certificates and three clients' files."""
    certified(tmp_path, authority, "broker", ADA, BOB, "proxy", issue=3)
    write_durably(tmp_path / "revoked.pem", authority.revocations([]), mode=0o644)
    tls = {"cert_file": "broker.crt", "key_file": "broker.key"}
    tls |= {"ca_file": "ca.crt", "crl_file": "revoked.pem"}
    broker = {"engine": "mosquitto", "port": free_port(), "acl": "edge", "tls": tls}
    (tmp_path / "broker.yaml").write_text(yaml.safe_dump({"broker": broker}))
    return tmp_path


@pytest.fixture
def broker(site):
    """Its process, with the address in `url`."""
    config = str(site / "broker.yaml")
    command = [sys.executable, "-m", "edgeveil_tools.cli", "broker", "--config", config]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as running:
        running.url = running.stdout.readline().split()[-1]
        assert running.url.startswith("mqtts://")
        yield running
        running.send_signal(signal.SIGTERM)
        assert running.wait(10) == 0


def entered(site, broker, name, *topics):
    files = {"ca_file": "ca.crt", "cert_file": f"{name}.crt", "key_file": f"{name}.key"}
    files = {key: str(site / file) for key, file in files.items()}
    return linked(broker, None, topics, client_id=name, password=None, **files)


async def test_who_is_revoked_is_cut_off_and_stays_out(site, broker, authority):
    async with entered(site, broker, BOB) as (_, ear):
        assert (await ear.state())[0]
        # Damaged files do not end a broker.
        told = asyncio.to_thread(broker.stderr.readline)
        await asyncio.to_thread(write_durably, site / "revoked.pem", b"", mode=0o644)
        assert "revoked.pem" in await told
        revoked = authority.revocations([BOB])
        await asyncio.to_thread(write_durably, site / "revoked.pem", revoked, mode=0o644)
        assert not (await ear.state())[0]
    assert "started anew" in broker.stdout.readline()
    async with entered(site, broker, ADA) as (link, _):
        assert link.connected
    with pytest.raises(BrokerError, match=r"hung up on our certificate, .* may be revoked"):
        async with entered(site, broker, BOB):
            pass


def test_a_key_that_others_may_read_is_refused(site, capsys):
    (site / "broker.key").chmod(0o640)
    assert main(["broker", "--config", str(site / "broker.yaml")]) == 3
    assert f"chmod 600 {site / 'broker.key'}" in capsys.readouterr().err
