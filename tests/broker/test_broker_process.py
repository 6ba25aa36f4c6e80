"""Starting and stopping brokers: names, ports, users, the cloud side's access list, the CLI way."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from broker_harness import PASSWORDS, linked, make_link

from edgeveil.config.broker import BrokerTls
from edgeveil.errors import BrokerError
from edgeveil_tools.site import brokers
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec, choose_engine, free_port

OUT, IN = "edgeveil/v1/cloud/out", "edgeveil/v1/cloud/in"


def test_name_protocols_and_a_clean_end(broker):
    assert broker.name.startswith(f"{broker.engine} ")
    assert broker.name.split()[1][0].isdigit()
    assert broker.protocols == ((5, 4) if broker.engine == "mosquitto" else (4,))
    left = psutil.Process(broker.pid).children(recursive=True)
    broker.stop()
    broker.stop()
    assert not broker.running() and psutil.wait_procs(left, timeout=10)[1] == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", broker.port), timeout=1).close()


def test_a_port_is_not_chosen_twice_while_its_server_is_yet_to_listen(monkeypatch):
    monkeypatch.setattr(brokers, "_SERVER_PORTS", brokers._SERVER_PORTS[:120])
    assert len({free_port() for _ in range(20)}) == 20


def test_no_secret_is_readable_by_others_or_written_plain(broker, tmp_path):
    files = list((tmp_path / "broker").iterdir())
    secret = [path for path in files if path.name in ("users", "acl", "mosquitto.conf")]
    assert secret
    assert all(path.stat().st_mode & 0o077 == 0 for path in secret)
    everything = b"".join(path.read_bytes() for path in files)
    assert not any(word.encode() in everything for word in PASSWORDS.values())


def test_auto_takes_mosquitto_where_it_is_and_amqtt_where_not(monkeypatch):
    assert choose_engine("auto") == "mosquitto"
    monkeypatch.setenv("PATH", "/nowhere")
    assert choose_engine("auto") == "amqtt"
    with pytest.raises(BrokerError, match="not on the PATH") as caught:
        choose_engine("mosquitto")
    assert "apt install mosquitto" in caught.value.fix


async def test_the_cloud_side_has_two_voices_and_no_third(engine, tmp_path):
    plan = BrokerSpec(engine=engine, acl="cloud")
    process = BrokerProcess(plan, tmp_path / "b", users=PASSWORDS)
    process.start()
    try:
        async with (
            linked(process, "cloud", [IN]) as (cloud, cloud_ear),
            linked(process, "proxy", [OUT]) as (proxy, proxy_ear),
            linked(process, "ada") as (ada, ada_ear),
        ):
            with contextlib.suppress(BrokerError):
                await ada._session.subscribe(["#"])
            await ada.publish(IN, b"forged")
            await ada.publish(OUT, b"forged")
            await cloud.publish(IN, b"echo")
            await cloud.publish(OUT, b"round")
            await proxy.publish(IN, b"batch")
            assert await proxy_ear.message() == (OUT, b"round")
            assert await cloud_ear.message() == (IN, b"batch")
            assert proxy_ear.messages.empty()
            assert cloud_ear.messages.empty()
            assert ada_ear.messages.empty()
    finally:
        process.stop()


@pytest.mark.parametrize("wiretap", [True, False])
async def test_a_wiretap_hears_everything_but_only_when_asked_for(engine, tmp_path, wiretap):
    plan = BrokerSpec(engine=engine, acl="edge", wiretap=wiretap)
    process = BrokerProcess(plan, tmp_path / "b", users=PASSWORDS | {"wiretap": "w"})
    process.start()
    try:
        async with (
            linked(process, "wiretap", password="w") as (tap, ear),
            linked(process, "proxy", ["edgeveil/v1/d/+/up"]) as (_, proxy_ear),
            linked(process, "ada") as (ada, _),
        ):
            with contextlib.suppress(BrokerError):
                await tap._session.subscribe(["#"])
            await ada.publish("edgeveil/v1/d/ada/up", b"x")
            await proxy_ear.message()
            if wiretap:
                assert await ear.message() == ("edgeveil/v1/d/ada/up", b"x")
            else:
                await asyncio.sleep(0.1)
                assert ear.messages.empty()
            await tap.publish("edgeveil/v1/d/ada/down", b"a tap is silent")
    finally:
        process.stop()


@pytest.mark.parametrize("size", [70_000, 2_000_000])
async def test_the_broker_itself_ends_a_client_that_exceeds_the_packet_size(broker, size):
    async with linked(broker, "proxy", ["edgeveil/v1/d/+/up"]) as (_, ear):
        link = make_link(broker, "ada", protocol=4, packet_bytes=1 << 22)
        await link.connect_or_raise()
        await link.publish("edgeveil/v1/d/ada/up", bytes(size))
        await asyncio.wait_for(asyncio.shield(link._session.lost), 30)
        await link.close()
        assert ear.messages.empty()


def broker_site(tmp_path, engine, port):
    (tmp_path / "users").write_text("ada:ada-word\n")
    (tmp_path / "broker.yaml").write_text(
        f"broker: {{engine: {engine}, port: {port}, users_file: users, acl: edge}}\n"
    )
    code = (
        "import sys; from pathlib import Path; from edgeveil.config.site_files import load_site;"
        "from edgeveil_tools.site.brokers import run_broker;"
        "sys.exit(run_broker(load_site(Path(sys.argv[1]))))"
    )
    return [sys.executable, "-c", code, str(tmp_path / "broker.yaml")]


def test_a_site_broker_takes_new_users_and_ends_on_ctrl_c(engine, tmp_path):
    port = free_port()
    child = subprocess.Popen(
        broker_site(tmp_path, engine, port), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        said = child.stdout.readline().decode()
        assert engine in said
        assert f"127.0.0.1:{port}" in said
        url = type("Broker", (), {"url": f"mqtt://127.0.0.1:{port}"})

        async def play():
            async with linked(url, "ada"):
                pass
            with pytest.raises(BrokerError, match="wrong user name"):
                await make_link(url, "bob").connect_or_raise()
            (tmp_path / "users").write_text("ada:ada-word\nbob:bob-word\n")
            for _ in range(300):
                link = make_link(url, "bob")
                with contextlib.suppress(BrokerError):
                    await link.connect_or_raise()
                    break
                await asyncio.sleep(0.1)
            assert link.connected
            await link.close()

        asyncio.run(play())
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
        assert child.stderr.read() == b""
    finally:
        child.kill()
        child.communicate()
    socket.create_server(("127.0.0.1", port)).close()  # the port is free again


def test_a_broker_does_not_outlive_a_killed_starter(engine, tmp_path):
    """amqtt reads the end of its standard input; mosquitto has a watcher that does."""
    code = (
        "import time; from pathlib import Path; from edgeveil_tools.site.brokers import *;"
        "from edgeveil_tools.site.brokers import *;"
        f"b = BrokerProcess(BrokerSpec(engine={engine!r}), Path({str(tmp_path)!r})); b.start();"
        "import psutil; c = psutil.Process(b.pid).children();"
        "print(*[b.pid, *(p.pid for p in c)], flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    pids = [int(word) for word in starter.stdout.readline().split()]
    starter.kill()
    starter.communicate()

    async def gone(pid):
        while True:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return  # dead, and waiting for somebody to notice
            await asyncio.sleep(0.05)

    for pid in pids:
        asyncio.run(asyncio.wait_for(gone(pid), 30))


def test_a_broker_that_cannot_start_says_why(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(brokers, "START_TIMEOUT_S", 30.0)
    (tmp_path / "x.crt").write_text("no certificate")
    tls = BrokerTls(cert_file=tmp_path / "x.crt", key_file=tmp_path / "x.crt")
    process = BrokerProcess(BrokerSpec(engine=engine, tls=tls), tmp_path / "b")
    with pytest.raises(BrokerError, match=f"{engine} did not start: ."):
        process.start()
    assert not process.running()
