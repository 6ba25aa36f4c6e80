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


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("rounds payload-bytes drop broker cert",
         "--rounds 9999 --drop 2 --payload-bytes 66 --broker x --cert y"),
        ("rounds", "--rounds 0"),
        ("broker broker", "--broker mqtt://b --site s"),
        ("broker", "--broker mqtt://b --fleet f"),
        ("compare", "--site s --compare raw"),
        ("compare", "--compare raw --drop 0.1 --reconnect-storm"),
        ("compare", "--compare raw --qos 0"),
        ("password-file", "--password-file p"),
        ("cells", "--cells 2 --site out/site"),
        ("cells", "--cells 3 --devices 8"),
        ("compare", "--cells 2 --compare raw"),
    ],
)  # fmt: skip
def test_impossible_mixes_are_refused_all_at_once_by_the_options_names(line, options):
    found = [problem.split(": ")[1] for problem in problems(line)]
    assert found == [f"--{option}" for option in options.split()]


def test_a_scenario_goes_to_its_own_command_and_one_example_has_every_key(tmp_path):
    assert kind_of({"load": {}}) == "load"
    with pytest.raises(ConfigError):
        load(Path("configs/load/steady.yaml"))
    text = Path("configs/load/steady.yaml").read_text()
    for name, field in LoadOptions.model_fields.items():
        assert field.description
        assert f"  {name}: " in text
    assert main(["loadtest", "--tls", "--ca", str(tmp_path / "none.crt")]) == UsageError.exit_code


def test_too_few_open_files_are_told_with_their_number():
    check_files(900, 1000)
    check_files(10**6, resource.RLIM_INFINITY)
    with pytest.raises(UsageError) as caught:
        check_files(901, 1000)
    assert "1001" in caught.value.fix


def job(devices, enrolled, **options):
    return parse_job(job_yaml(LoadOptions(devices=devices, **options), enrolled))


@pytest.mark.parametrize("quorum", [1.0, 0.8])
@pytest.mark.parametrize(("devices", "enrolled"), [(6, 6), (6, 7), (20, 10_000), (99_999, 100_000)])
def test_the_quorum_is_of_the_tests_own_devices(devices, enrolled, quorum):
    share = job(devices, enrolled, quorum=quorum).round.quorum
    assert math.ceil(share * enrolled) == math.ceil(quorum * devices)
