"""A broker whose clients show certificates: the name in it is the user, and it can be revoked."""

import asyncio
import signal
import subprocess
import sys

import pytest
import yaml
from broker_harness import linked

from edgeveil.crypto.authorities import Authority, certificate_pem, key_pem, new_key
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
    """A broker's folder, with an empty list of revoked certificates and two clients' files."""
    authority.save(tmp_path / "ca.crt", tmp_path / "ca.key")
    key = new_key()
    shown = authority.server("broker", key.public_key(), ["127.0.0.1"])
    holders = {"broker": (shown, key)}
    for name in (ADA, BOB, "proxy"):
        secret = new_key()
        holders[name] = (authority.client(name, secret.public_key(), issue=3), secret)
    for name, (certificate, secret) in holders.items():
        write_durably(tmp_path / f"{name}.crt", certificate_pem(certificate), mode=0o644)
        write_durably(tmp_path / f"{name}.key", key_pem(secret), mode=0o600)
    write_durably(tmp_path / "revoked.pem", authority.revocations([]), mode=0o644)
    tls = {"cert_file": "broker.crt", "key_file": "broker.key"}
    tls |= {"ca_file": "ca.crt", "crl_file": "revoked.pem"}
    broker = {"engine": "mosquitto", "port": free_port(), "acl": "edge", "tls": tls}
    (tmp_path / "broker.yaml").write_text(yaml.safe_dump({"broker": broker}))
    return tmp_path


class _Running:
    def __init__(self, folder):
        command = [sys.executable, "-m", "edgeveil_tools.cli", "broker", "--config"]
        self.process = subprocess.Popen(
            [*command, str(folder / "broker.yaml")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = self.process.stdout.readline().split()[-1]
        assert self.url.startswith("mqtts://")


@pytest.fixture
def broker(site):
    running = _Running(site)
    yield running
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(10) == 0
    running.process.stdout.close()
    running.process.stderr.close()


def _files(site, name):
    return {
        "ca_file": str(site / "ca.crt"),
        "cert_file": str(site / f"{name}.crt"),
        "key_file": str(site / f"{name}.key"),
        "password": None,
    }


def test_the_certificates_name_is_the_user(site, broker):
    both = [f"edgeveil/v1/d/{name}/down" for name in (BOB, ADA)]

    async def play():
        async with (
            linked(broker, None, both, **_files(site, ADA), client_id="a") as (_, ear),
            linked(broker, None, **_files(site, "proxy"), client_id="p") as (proxy, _),
        ):
            for topic in both:
                await proxy.publish(topic, b"hello")
            return await ear.message()

    assert asyncio.run(play()) == (both[1], b"hello")  # what is another's does not come


async def test_who_is_revoked_is_cut_off_and_stays_out(site, broker, authority):
    async with linked(broker, None, **_files(site, BOB), client_id="b") as (_, ear):
        assert (await ear.state())[0]
        revoked = authority.revocations([BOB])
        await asyncio.to_thread(write_durably, site / "revoked.pem", revoked, mode=0o644)
        assert not (await ear.state())[0]
    assert "started anew" in broker.process.stdout.readline()

    async def again(name):
        async with linked(broker, None, **_files(site, name), client_id="x") as (link, _):
            return link.connected

    assert await again(ADA)
    with pytest.raises(BrokerError, match=r"hung up on our certificate, .* may be revoked"):
        await again(BOB)


async def test_damaged_files_do_not_end_a_broker(site, broker, authority):
    async with linked(broker, None, **_files(site, BOB), client_id="b") as (_, ear):
        assert (await ear.state())[0]
        told = asyncio.to_thread(broker.process.stderr.readline)
        await asyncio.to_thread(write_durably, site / "revoked.pem", b"", mode=0o644)
        assert "revoked.pem: cannot be used" in await told
        revoked = authority.revocations([BOB])
        await asyncio.to_thread(write_durably, site / "revoked.pem", revoked, mode=0o644)
        assert not (await ear.state())[0]


def test_a_key_that_others_may_read_is_refused(site, capsys):
    (site / "broker.key").chmod(0o640)
    assert main(["broker", "--config", str(site / "broker.yaml")]) == 3
    assert f"chmod 600 {site / 'broker.key'}" in capsys.readouterr().err
