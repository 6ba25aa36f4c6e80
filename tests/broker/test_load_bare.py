"""Bare load at real brokers: what is sent arrives and is measured, what is wrong is named first."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading

import pytest
from broker_harness import PASSWORDS, linked, listener_tls

from edgeveil_lab.load.bare import command
from edgeveil_tools import cli
from edgeveil_tools.site.brokers import BrokerPlan, BrokerProcess, free_port


@pytest.fixture
def broker(engine, tmp_path):
    process = BrokerProcess(
        BrokerPlan(engine=engine, acl=None), tmp_path / "broker", users=PASSWORDS
    )
    process.start()
    yield process
    process.stop()


@pytest.fixture
def account(tmp_path):
    word = tmp_path / "word"
    word.touch(0o600)
    word.write_text(PASSWORDS["ada"])
    return ("--user", "ada", "--password-file", word)


@pytest.fixture
def started(monkeypatch):
    """The loads that began; wrong input must leave it empty."""
    names = []

    class Watched(command.BareLoad):
        def __init__(self, options, url, *rest):
            names.append(url)
            super().__init__(options, url, *rest)

    monkeypatch.setattr(command, "BareLoad", Watched)
    return names


def loadtest(*arguments: object) -> int:
    return cli.main(["loadtest", *map(str, arguments)])


def measured(capsys, *arguments: object, code=0):
    assert loadtest(*arguments, "--json") == code
    return json.loads(capsys.readouterr().out)


def test_clients_connect_and_are_held(capsys, broker, account):
    found = measured(capsys, "conn", "--broker", broker.url, *account, "-c", 20, "-d", 0.2)
    [one] = found["brokers"]
    assert (one["connects"], one["failures"], found["status"]) == (20, {}, "completed")
    assert one["protocol"] == (5 if broker.name.startswith("mosquitto") else 4)
    assert one["connect_s"]["p50"] > 0
    assert one["ack_s"]["p50"] is one["sent_per_s"] is None


@pytest.mark.parametrize("qos", [0, 1])
def test_what_clients_publish_reaches_its_subscriber(capsys, broker, account, tmp_path, qos):
    load = ("-c", 5, "-I", 20, "-L", 100, "-s", 64, "-q", qos, "-t", "t/%u/%i/%c")
    beside = ("--subscribers", 10, "--out", tmp_path / "out")  # each topic has two
    found = measured(capsys, "pub", "--broker", broker.url, *account, *load, *beside)
    [one] = found["brokers"]
    assert (one["connects"], one["sent"], one["received"]) == (15, 100, 200)
    assert (one["lost"], one["failures"]) == (0, {})
    assert one["acknowledged"] == (100 if qos else 0)
    assert one["end_to_end_s"]["p50"] > 0 and (one["ack_s"]["p50"] is None) == (qos == 0)
    assert json.loads((tmp_path / "out" / "load.json").read_text()) == found
    assert (tmp_path / "out" / "load.html").stat().st_size > 1000


def test_as_fast_as_they_may(capsys, broker, account):
    load = ("-c", 3, "-I", 0, "-F", 4, "-L", 300, "-q", 1, "-s", 0)
    [one] = measured(capsys, "pub", "--broker", broker.url, *account, *load)["brokers"]
    assert (one["sent"], one["acknowledged"], one["held_back"]) == (300, 300, 0)


def test_subscribers_hear_what_others_publish(capsys, broker, account):
    """Of another program too, which stamps nothing: it counts, its latency is unknown."""

    async def publish(until: threading.Event) -> None:
        async with linked(broker, "bob") as (link, _):
            while not until.is_set():
                await link.publish("t/1", b"unstamped, and long enough for a stamp")
                await asyncio.sleep(0.01)

    heard = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(publish(heard)))
    thread.start()
    try:
        load = ("sub", "--broker", broker.url, *account, "-c", 2, "-t", "t/#", "-d", 0.5)
        [one] = measured(capsys, *load)["brokers"]
    finally:
        heard.set()
        thread.join()
    assert one["received"] > 0 and one["received_per_s"] > 0
    assert one["end_to_end_s"]["p50"] is None and one["failures"] == {}


def test_two_brokers_carry_the_same_load_in_turns(capsys, tmp_path, started):
    brokers = [
        BrokerProcess(BrokerPlan(engine=engine, acl=None), tmp_path / engine)
        for engine in ("mosquitto", "amqtt")
    ]
    for one in brokers:
        one.start()
    try:
        first, second = (one.url for one in brokers)
        load = ("-c", 4, "-I", 20, "-L", 40, "-q", 1, "--out", tmp_path / "out")
        found = measured(capsys, "pub", "--broker", first, "--versus", second, *load)
    finally:
        for one in brokers:
            one.stop()
    assert started == found["order"] == [first, second, second, first]
    assert [one["sent"] for one in found["brokers"]] == [80, 80]
    assert [one["acknowledged"] for one in found["brokers"]] == [80, 80]
    assert [one["protocol"] for one in found["brokers"]] == [5, 4]
    page = (tmp_path / "out" / "load.html").read_text()
    assert all(url.partition("://")[2] in page for url in (first, second))


def test_over_tls(capsys, pki):
    plan = BrokerPlan(engine="mosquitto", acl=None, tls=listener_tls(pki))
    broker = BrokerProcess(plan, pki / "broker", users=PASSWORDS)
    broker.start()
    word = pki / "word"
    word.touch(0o600)
    word.write_text(PASSWORDS["ada"])
    try:
        who = ("--user", "ada", "--password-file", word, "--ca", pki / "ca.crt")
        load = ("pub", "--broker", broker.url, *who, "-c", 3, "-I", 10, "-L", 9, "-q", 1)
        [one] = measured(capsys, *load)["brokers"]
    finally:
        broker.stop()
    assert broker.url.startswith("mqtts://") and one["acknowledged"] == 9


# --- what is wrong ---


def refused(capsys, started, *arguments: object) -> str:
    """The one line of a load that ends before anything starts."""
    assert loadtest(*arguments) == 3
    assert started == []
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.strip().splitlines()
    return line


@pytest.mark.parametrize("engine", ["mosquitto"])
def test_the_other_broker_is_dialled_before_anything_starts(capsys, broker, account, started):
    nobody = f"127.0.0.1:{free_port()}"
    load = ("conn", "--broker", broker.url, "--versus", f"mqtt://{nobody}", *account)
    assert f"{nobody}: nothing listens on this port" in refused(capsys, started, *load)


def test_an_account_that_the_broker_does_not_know(capsys, broker, started):
    line = refused(capsys, started, "sub", "--broker", broker.url, "--user", "nobody")
    assert "wrong user name or password" in line


@pytest.mark.parametrize("engine", ["amqtt"])
def test_a_version_that_is_asked_for_is_spoken(capsys, broker, account, started):
    line = refused(capsys, started, "conn", "--broker", broker.url, *account, "-V", 5)
    assert "speaks MQTT 3.1.1 alone" in line


@pytest.mark.parametrize(
    ("flags", "text"),
    [(("-q", 2), "--qos: must be 0 or 1, got 2"), (("-t", "a/%x"), "unknown placeholder %x")],
)
def test_wrong_flags_start_nothing(capsys, started, flags, text):
    assert loadtest("pub", "--broker", f"mqtt://127.0.0.1:{free_port()}", *flags) == 2
    assert text in capsys.readouterr().err and started == []


@pytest.mark.parametrize("engine", ["mosquitto"])
def test_a_broker_that_goes_away_ends_it_and_what_was_measured_stays(
    capsys, broker, account, tmp_path, monkeypatch
):
    hold, out = command.BareLoad._hold, tmp_path / "out"

    async def hold_without_broker(load):
        await asyncio.to_thread(broker.stop)
        await hold(load)

    monkeypatch.setattr(command.BareLoad, "_hold", hold_without_broker)
    load = ("-c", 5, "-d", 60, "--out", out)
    assert loadtest("conn", "--broker", broker.url, *account, *load) == 3
    assert "all connections are gone" in capsys.readouterr().err
    found = json.loads((out / "load.json").read_text())
    assert found["status"] == "failed" and found["brokers"][0]["connects"] == 5
    assert sum(found["brokers"][0]["failures"].values()) == 5


@pytest.mark.parametrize("engine", ["mosquitto"])
def test_ctrl_c_leaves_what_was_measured(broker, account, tmp_path):
    load = ("pub", "--broker", broker.url, *account, "-c", 5, "-I", 50, "-d", 0, "--out", tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "edgeveil_tools.cli", "loadtest", *map(str, load)],
        stdout=subprocess.PIPE,
        text=True,
        # A background job of a shell ignores SIGINT; this one must hear it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert any("loading" in line for line in process.stdout)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    found = json.loads((tmp_path / "load.json").read_text())
    assert (found["status"], found["reason"]) == ("interrupted", "interrupted")
    assert found["brokers"][0]["sent"] > 0 and found["brokers"][0]["failures"] == {}
    assert "messages sent a second" in process.stdout.read()
