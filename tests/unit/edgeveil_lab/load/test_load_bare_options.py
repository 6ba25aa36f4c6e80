"""Flags of bare load: what other tools' users type is taken, what cannot be is said at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeveil.errors import ConfigError
from edgeveil_lab.load.bare.options import BareOptions, chosen, topic_of
from edgeveil_tools import cli
from edgeveil_tools.cli import parser


def given(line: str) -> BareOptions:
    found = chosen(parser().parse_args(["loadtest", *line.split()]))
    assert found is not None
    return found


def problems(line: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        given(line)
    return caught.value.problems


def test_a_line_for_emqtt_bench_means_the_same_here():
    found = given(
        "pub -c 50 -i 20 -I 100 -t bench/%i -s 64 -q 1 -L 1000 -V 4 -k 300 -n 7 -u me -F 8"
    )
    assert (found.count, found.rate_per_s, found.message_interval_ms) == (50, 50, 100)
    assert (found.topic, found.size_bytes, found.qos, found.limit) == ("bench/%i", 64, 1, 1000)
    assert (found.protocol, found.keepalive_s, found.startnumber) == (4, 300, 7)
    assert (found.user, found.inflight) == ("me", 8)
    assert given("conn -c 10 -R 200").rate_per_s == 200
    assert given("pub --interval_of_msg 5 --conn_rate 9") == given("pub -I 5 -R 9")


def test_long_names_of_mqttx_are_taken():
    found = given("pub --count 3 --interval 10 --message-interval 7 --payload-size 99 -V 3.1.1")
    assert (found.count, found.rate_per_s) == (3, 100)
    assert (found.message_interval_ms, found.size_bytes, found.protocol) == (7, 99, 4)


def test_nothing_given_is_the_defaults():
    for mode in ("pub", "sub", "conn"):
        assert given(mode) == BareOptions(mode=mode)


def test_without_a_mode_there_is_no_bare_load():
    assert chosen(parser().parse_args(["loadtest", "--devices", "3"])) is None


def test_a_clients_topic():
    assert topic_of("a/%i/%c/%u/%i", 7, "load-7", "me") == "a/7/load-7/me/7"


@pytest.mark.parametrize(
    ("line", "flag", "text"),
    [
        ("pub -q 2", "--qos", "must be 0 or 1, got 2; QoS 2 is not spoken here"),
        ("sub -t a/%x", "--topic", "unknown placeholder %x; there are %i"),
        ("pub -t 50%", "--topic", "unknown placeholder %; there are"),
        ("pub -t a/%u", "--topic", "add --user"),
        ("pub -t a/+", "--topic", "nobody can publish to a wildcard"),
        ("conn -c 0", "--count", "must be 1 to 1,000,000, got 0"),
        ("pub -I -1", "--interval_of_msg", "must be 0 to"),
        ("pub -d nan", "--duration", "must be 0 to"),
        ("pub -V 3", "--protocol", "must be 5, or 4"),
        ("conn -R 5 -i 10", "--interval", "leave one out"),
        ("conn --turns 3", "--turns", "add --versus URL"),
        ("pub --versus mqtt://b -d 0", "--duration", "the other broker has its turn"),
        ("conn --broker edge:1883", "--broker", "must begin mqtt://"),
        ("conn --versus mqtt://me:word@b", "--versus", "holds credentials"),
        ("conn --password-file p", "--password-file", "add --user"),
        ("conn --cert c", "--cert", "give both or none"),
    ],
)
def test_what_cannot_be_is_named(line, flag, text):
    [problem] = problems(line)
    mode = line.split()[0]
    assert problem.startswith(f"edgeveil loadtest {mode}: {flag}: ") and text in problem


def test_all_problems_are_said_at_once():
    assert len(problems("pub -q 3 -c 0 -t a/%z --turns 2")) == 4


def test_a_subscription_may_have_a_wildcard():
    assert given("sub -t load/#").topic == "load/#"


def test_two_brokers_change_places():
    two = given("pub --broker mqtt://a --versus mqtt://b --turns 3")
    assert [two.brokers[at] for at in two.order] == [
        "mqtt://a", "mqtt://b", "mqtt://b", "mqtt://a", "mqtt://a", "mqtt://b",
    ]  # fmt: skip
    assert given("pub").order == (0,)


def test_options_of_devices_do_not_stand_in_front(capsys):
    assert cli.main(["loadtest", "--devices", "3", "pub"]) == 2
    assert "see edgeveil loadtest pub --help" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["pub", "sub", "conn"])
def test_help_is_quick_and_names_the_other_tools(mode):
    code = (
        f"import sys\nfrom edgeveil_tools.cli import main\nmain(['loadtest', '{mode}', '--help'])\n"
        "print(sorted({'numpy', 'pydantic'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "emqtt-bench" in done.stdout and "--versus" in done.stdout
    assert done.stderr == "[]\n"
