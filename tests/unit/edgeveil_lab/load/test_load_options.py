"""A load test's options: one model behind scenario files and the command line."""

import argparse
import math
import resource
from pathlib import Path

import pytest

from edgeveil.config.site_files import kind_of
from edgeveil.errors import ConfigError, UsageError
from edgeveil.jobs import parse_job
from edgeveil_lab.load.command import check_files
from edgeveil_lab.load.scenario import (
    LoadOptions,
    add_arguments,
    chosen,
    job_yaml,
    option_of,
    resolve,
)
from edgeveil_tools.checks import load
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


def test_every_key_is_an_option():
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    fields = LoadOptions.model_fields
    switches = {key for key, field in fields.items() if field.annotation is bool}
    assert {"tls", "reconnect_storm"} <= switches
    wanted = {option_of(key) for key in fields}
    assert options == wanted | {option_of(f"no_{key}") for key in switches}


def test_an_option_takes_the_place_of_the_file_s_key():
    assert resolved("", SOAK).minutes == 30
    assert resolved("--minutes 5", SOAK).minutes == 5
    assert resolved("--devices 7 --minutes 5", SOAK).interval_s == 10
    assert resolved("--rounds 2", SOAK).minutes is None


def test_all_problems_are_said_at_once_by_the_options_names():
    found = problems("--rounds 9999 --drop 2 --payload-bytes 66 --broker x --cert y")
    assert [line.split(": ")[1] for line in found] == [
        "--rounds", "--payload-bytes", "--drop", "--broker", "--cert",
    ]  # fmt: skip
    assert "must be a multiple of 4, got 66" in found[1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--rounds 0", "set hold_s"),
        ("--broker mqtt://b --site s", "leave one out"),
        ("--broker mqtt://b --fleet f", "also needs cloud, token_file, keys"),
        ("--site s --compare raw", "a site that the test starts"),
        ("--compare raw --drop 0.1 --reconnect-storm", "leave out drop, reconnect_storm"),
        ("--compare raw --qos 0", "leave out qos"),
        ("--password-file p", "set user"),
        ("--cells 2 --site out/site", "a site that the test starts"),
        ("--cells 3 --devices 8", "each cell needs 3 devices"),
        ("--cells 2 --compare raw", "leave out cells"),
    ],
)
def test_impossible_mixes_are_refused(line, text):
    assert text in problems(line)[0]


STEADY = Path("configs/load/steady.yaml")


def test_a_scenario_is_known_by_its_key_and_sent_to_its_own_command():
    assert kind_of({"load": {}}) == "load"
    with pytest.raises(ConfigError, match="edgeveil loadtest --scenario"):
        load(STEADY)


def test_every_key_is_described_and_stands_in_an_example():
    text = STEADY.read_text()
    for name, field in LoadOptions.model_fields.items():
        assert field.description
        assert f"  {name}: " in text


def job(devices, enrolled, **options):
    return parse_job(job_yaml(LoadOptions(devices=devices, **options), enrolled))


@pytest.mark.parametrize("quorum", [1.0, 0.8])
@pytest.mark.parametrize(("devices", "enrolled"), [(6, 6), (6, 7), (20, 10_000), (99_999, 100_000)])
def test_the_quorum_is_of_the_tests_own_devices(devices, enrolled, quorum):
    share = job(devices, enrolled, quorum=quorum).round.quorum
    assert math.ceil(share * enrolled) == math.ceil(quorum * devices)


def test_too_few_open_files():
    check_files(900, 1000)
    check_files(10**6, resource.RLIM_INFINITY)
    with pytest.raises(UsageError, match=r"901 connections need 1001 open files, 1000") as caught:
        check_files(901, 1000)
    assert "ulimit -Hn 1001" in caught.value.fix


def test_an_authority_that_cannot_be_read(capsys, tmp_path):
    assert main(["loadtest", "--tls", "--ca", str(tmp_path / "none.crt")]) == 2
    found = capsys.readouterr().err
    assert "--ca: " in found
    assert "cannot be read (No such file or directory)" in found
