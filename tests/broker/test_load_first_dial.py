"""A load test's broker is dialled before anything starts: what is wrong is said in one line."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from broker_harness import PASSWORDS

from edgeveil_lab.load.first_dial import dial_brokers
from edgeveil_lab.load.scenario import LoadOptions
from edgeveil_tools import cli
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess, choose_engine, free_port


@pytest.fixture
def broker(tmp_path):
    process = BrokerProcess(
        BrokerPlan(engine=choose_engine(), acl=None), tmp_path / "broker", users=PASSWORDS
    )
    process.start()
    yield process
    process.stop()


@pytest.fixture
def started(monkeypatch):
    """What a load test starts; here it must stay empty."""
    names = []
    monkeypatch.setattr(
        "edgeveil_lab.load.command.LocalSite.start", lambda site: names.append("site")
    )
    yield names


@contextlib.contextmanager
def answering(said: bytes | dict[int, bytes] | None):
    """A port that answers a CONNECT with these bytes and hangs up, or says nothing.

    A dictionary has an answer for each MQTT version; after it the peer's goodbye is waited for.
    """
    server = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                kept.append(peer)
                if said is not None:
                    head = peer.recv(4096)
                    by_version = isinstance(said, dict)
                    peer.sendall(said[head[head.index(b"MQTT") + 4]] if by_version else said)
                    if by_version:
                        peer.recv(4096)
                    peer.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for peer in kept:
        peer.close()


def address_of(broker: BrokerProcess) -> str:
    return broker.url.partition("://")[2]


def refused(capsys, started, *arguments: object) -> str:
    """The one line of a test that ends before anything starts."""
    assert cli.main(["loadtest", "--devices", "3", *map(str, arguments)]) == 3
    assert started == []
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.strip().splitlines()
    return line


def test_a_port_where_nobody_listens(capsys, started):
    address = f"127.0.0.1:{free_port()}"
    line = refused(capsys, started, "--broker", f"mqtt://{address}")
    assert f"{address}: nothing listens on this port" in line and "start the broker" in line


def test_the_broker_between_cloud_and_proxy_is_dialled_too(capsys, started, broker, tmp_path):
    word, other = tmp_path / "word", f"127.0.0.1:{free_port()}"
    word.touch(0o600)
    word.write_text(PASSWORDS["ada"])
    ours = ("--broker", broker.url, "--user", "ada", "--password-file", word)
    line = refused(capsys, started, *ours, "--cloud-broker", f"mqtt://{other}")
    assert f"{other}: nothing listens on this port" in line


def test_an_account_that_the_broker_does_not_know(capsys, started, broker):
    line = refused(capsys, started, "--broker", broker.url, "--user", "nobody")
    assert address_of(broker) in line and "wrong user name or password" in line


def test_a_broker_that_speaks_another_protocol(capsys, started, broker):
    other = broker.url.replace("mqtt", "mqtts")
    line = refused(capsys, started, "--broker", other, "--protocol", 4)
    assert address_of(broker) in line and "check that this port speaks" in line


def test_a_port_that_speaks_something_else(capsys, started):
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        line = refused(capsys, started, "--broker", f"mqtt://{address}")
    assert f"{address}: the broker closed the connection without an answer" in line


def test_a_port_that_says_nothing(capsys, started):
    with answering(None) as address:
        line = refused(capsys, started, "--broker", f"mqtt://{address}", "--protocol", 4)
    assert "no answer to MQTT within" in line


def test_a_broker_without_mqtt_5_names_the_option(capsys, started):
    with answering({5: bytes([0x20, 3, 0, 0x84, 0]), 4: bytes([0x20, 2, 0, 0])}) as address:
        line = refused(capsys, started, "--broker", f"mqtt://{address}")
    assert f"{address}: the broker speaks MQTT 3.1.1 alone. add --protocol 4" in line


def test_one_that_takes_the_account_lets_the_test_begin(broker):
    options = LoadOptions(broker=broker.url, user="ada")
    dial_brokers(options, PASSWORDS["ada"])
