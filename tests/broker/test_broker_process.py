"""Starting and stopping brokers: names, ports, files, users, the cloud side's access list."""

import asyncio
import contextlib
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from types import SimpleNamespace

import psutil
import pytest
import yaml
from broker_harness import PASSWORDS, linked, make_link

from edgeveil.config.broker import BrokerTls
from edgeveil.errors import BrokerError
from edgeveil_tools.site import brokers
from edgeveil_tools.site.brokers import BrokerProcess, BrokerSpec, choose_engine, free_port

OUT, IN = "edgeveil/v1/cloud/out", "edgeveil/v1/cloud/in"


def test_an_ended_broker_leaves_no_process_and_no_port(broker):
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
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    secret = [path for path in files if path.name in ("users", "acl", "mosquitto.conf")]
    assert secret and all(path.stat().st_mode & 0o077 == 0 for path in secret)
    everything = b"".join(path.read_bytes() for path in files)
    assert not any(word.encode() in everything for word in PASSWORDS.values())


async def test_the_broker_itself_ends_a_client_that_exceeds_the_packet_size(broker):
    async with linked(broker, "proxy", ["edgeveil/v1/d/+/up"]) as (_, ear):
        link = make_link(broker, "ada", protocol=4, packet_bytes=1 << 22)
        await link.connect_or_raise()
        await link.publish("edgeveil/v1/d/ada/up", bytes(70_000))
        await asyncio.wait_for(asyncio.shield(link._session.lost), 30)
        await link.close()
        assert ear.messages.empty()


async def test_a_site_broker_takes_new_users_and_ends_on_ctrl_c(engine, tmp_path):
    port, users, site = free_port(), tmp_path / "users", tmp_path / "broker.yaml"
    users.write_text("ada:ada-word\n")
    site.write_text(f"broker: {{engine: {engine}, port: {port}, users_file: users, acl: edge}}\n")
    command = [sys.executable, "-m", "edgeveil_tools.cli", "broker", "--config", str(site)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as child:
        try:
            said = child.stdout.readline().decode()
            assert engine in said and f"127.0.0.1:{port}" in said
            at = SimpleNamespace(url=f"mqtt://127.0.0.1:{port}")
            async with linked(at, "ada"):
                pass
            with pytest.raises(BrokerError, match="wrong user name"):
                await make_link(at, "bob").connect_or_raise()
            users.write_text("ada:ada-word\nbob:bob-word\n")
            async with asyncio.timeout(30):
                while not (link := make_link(at, "bob")).connected:
                    with contextlib.suppress(BrokerError):
                        await link.connect_or_raise()
                        await link.close()
                        break
                    await asyncio.sleep(0.1)
            child.send_signal(signal.SIGINT)
            assert await asyncio.to_thread(child.wait, 30) == 0
            assert child.stderr.read() == b""
        finally:
            child.kill()
    socket.create_server(("127.0.0.1", port)).close()  # the port is free again


def test_a_broker_does_not_outlive_a_killed_starter(engine, tmp_path):
    """amqtt reads the end of its standard input; mosquitto has a watcher that does."""
    code = (
        "import psutil, time; from pathlib import Path; from edgeveil_tools.site.brokers import *;"
        f"b = BrokerProcess(BrokerSpec(engine={engine!r}), Path({str(tmp_path)!r})); b.start();"
        "c = psutil.Process(b.pid).children();"
        "print(*[b.pid, *(p.pid for p in c)], flush=True); time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    left = [psutil.Process(int(word)) for word in starter.stdout.readline().split()]
    starter.kill()
    starter.communicate()

    def at_work(process):
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.status() != psutil.STATUS_ZOMBIE  # dead, and waits to be noticed

    until_s = time.monotonic() + 30
    while any(map(at_work, left)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert left and not any(map(at_work, left))


def test_a_broker_that_cannot_start_says_why(engine, tmp_path, monkeypatch):
    (tmp_path / "x.crt").write_text("no certificate")
    tls = BrokerTls(cert_file=tmp_path / "x.crt", key_file=tmp_path / "x.crt")
    process = BrokerProcess(BrokerSpec(engine=engine, tls=tls), tmp_path / "b")
    with pytest.raises(BrokerError, match=f"{engine} did not start: ."):
        process.start()
    assert not process.running()
    monkeypatch.setenv("PATH", "/nowhere")
    assert choose_engine("auto") == "amqtt"
    with pytest.raises(BrokerError):
        choose_engine("mosquitto")


SOFT, HARD = 512, 1024
CONNECT = b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x14\x00\x01a"


def _comes_in(port):
    """A client, while more than the broker has places for are connected and say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    with ExitStack() as crowd:
        for _ in range(HARD + 500):
            crowd.enter_context(closing(socket.create_connection(("127.0.0.1", port))))
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            client.settimeout(60)
            client.sendall(CONNECT)
            assert client.recv(4)[:2] == b"\x20\x02", "no CONNACK"


def test_its_connections_fit_into_its_files(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, HARD))

    site, port = tmp_path / "broker.yaml", free_port()
    site.write_text(yaml.safe_dump({"broker": {"engine": "mosquitto", "port": port}}))
    command = [sys.executable, "-m", "edgeveil_tools.cli", "broker", "--config", str(site)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=limit) as running:
        try:
            assert b"listens on" in running.stdout.readline()
            _comes_in(port)
        finally:
            running.terminate()
