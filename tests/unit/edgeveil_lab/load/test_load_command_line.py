"""A load test's options: one model behind scenario files and the command line."""

import argparse
from pathlib import Path

import pytest

from edgeveil.errors import ConfigError
from edgeveil_lab.load.scenario import LoadOptions, add_arguments, chosen, option_of, resolve
from edgeveil_tools.cli import main

SOAK = Path("configs/load/soak.yaml")


def given(line=""):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    return chosen(parser.parse_args(line.split()))


def resolved(line="", scenario=None):
    return resolve(scenario, given(line))


def problems(line, scenario=None):
    with pytest.raises(ConfigError) as caught:
        resolved(line, scenario)
    return caught.value.problems


def test_nothing_given_is_the_defaults():
    assert resolved() == LoadOptions()


def test_every_key_is_an_option():
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    fields = LoadOptions.model_fields
    switches = {key for key, field in fields.items() if field.annotation is bool}
    assert {"tls", "reconnect_storm"} <= switches
    wanted = {option_of(key) for key in fields if key != "sweep"}
    assert options == wanted | {option_of(f"no_{key}") for key in switches}


def test_the_options_of_other_load_tools_are_there():
    line = (
        "--devices 50 --rate 100 --rounds 2 --payload-bytes 4096 --interval 5 --drop 0.1 "
        "--reconnect-storm --qos 0 --protocol 4 --tls --ca a.pem --cert b.pem "
        "--key c.pem --user fleet --processes 2 --broker mqtt://b:1883 "
        "--cloud http://c:8701 --token-file t --fleet f --keys k"
    )
    found = resolved(line)
    assert (found.devices, found.rate_per_s, found.rounds, found.values) == (50, 100, 2, 1024)
    assert (found.interval_s, found.drop, found.qos, found.protocol) == (5, 0.1, 0, 4)
    assert found.reconnect_storm and found.tls and found.user == "fleet"
    assert found.ca == Path("a.pem").absolute()


def test_an_option_takes_the_place_of_the_file_s_key():
    assert resolved("", SOAK).minutes == 30
    assert resolved("--minutes 5", SOAK).minutes == 5
    assert resolved("--devices 7 --minutes 5", SOAK).interval_s == 10


def test_an_option_ends_the_key_that_would_contradict_it():
    assert resolved("--rounds 2", SOAK).minutes is None
    assert resolved("--rate 9", Path("configs/load/ramp.yaml")).ramp_s == 0


def test_several_counts_are_a_sweep():
    assert resolved("--devices 100,500").counts == (100, 500)
    assert resolved("--devices 100").counts == (100,)


def test_all_problems_are_said_at_once_by_the_options_names():
    found = problems("--rounds 9999 --drop 2 --payload-bytes 66 --broker x --cert y")
    assert [line.split(": ")[1] for line in found] == [
        "--rounds", "--payload-bytes", "--drop", "--broker", "--cert",
    ]  # fmt: skip
    assert "must be a multiple of 4, got 66" in found[1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--ramp 3 --rate 4", "leave one out"),
        ("--rounds 0", "set hold_s"),
        ("--broker mqtt://b --site s", "leave one out"),
        ("--broker mqtt://b --fleet f", "also needs cloud, token_file, keys"),
        ("--site s --devices 1,2", "fresh site"),
        ("--site s --compare raw", "name no running site"),
        ("--compare raw --drop 0.1 --reconnect-storm", "leave out drop, reconnect_storm"),
        ("--compare raw --qos 0", "set qos: 1"),
        ("--password-file p", "set user"),
        ("--minutes 1 --devices 1,2", "a sweep plays rounds"),
    ],
)
def test_impossible_mixes_are_refused(line, text):
    assert text in problems(line)[0]


def test_a_file_s_problems_name_its_lines(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text("load:\n  device: 5\n  rounds: many\n")
    found = problems("", file)
    assert [line.split(" ")[0] for line in found] == [f"{file}:2", f"{file}:3"]
    assert "did you mean 'devices'?" in found[0]


def test_a_job_is_no_scenario():
    assert "must be load" in problems("", Path("tests/kits/quickstart.yaml"))[0]


def test_text_for_a_number_is_refused_by_the_parser():
    with pytest.raises(argparse.ArgumentError, match="--rounds: invalid int value"):
        given("--rounds many")
    with pytest.raises(argparse.ArgumentError, match="invalid count value"):
        given("--devices 5,x")


@pytest.mark.parametrize("mode", ["pub", "sub", "conn"])
def test_plain_load_is_left_to_other_tools(mode, capsys):
    assert main(["loadtest", mode, "--broker", "mqtt://b:1883"]) == 2
    assert f"plain MQTT load ({mode}): emqtt-bench or MQTTX do this" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--cells 2 --site out/site", "--cells: cells are started here"),
        ("--cells 3 --devices 8", "--cells: each cell needs 3 devices"),
        ("--cells 2 --compare raw", "--cells: the bare relay has one cell"),
    ],
)
def test_what_cells_cannot_be_is_named(line, said):
    assert any(said in problem for problem in problems(line))


def test_a_generator_that_joins_starts_no_cells(capsys):
    assert main(["loadtest", "--join", "http://x:1", "--cells", "2"]) == 2
    assert "--cells: says what the leader starts" in capsys.readouterr().err
