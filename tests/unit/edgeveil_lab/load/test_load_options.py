"""A load test's options: one model behind scenario files and the command line."""

import argparse
import math
import resource
from pathlib import Path

import pytest

from edgeveil.config.base import key_texts
from edgeveil.config.site_files import kind_of
from edgeveil.errors import ConfigError, UsageError
from edgeveil.jobs import parse_job
from edgeveil_lab.load.command import check_files
from edgeveil_lab.load.scenario import LoadOptions, add_arguments, chosen, job_yaml, resolve
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
        ("broker broker", "--broker mqtt://b --site s"),
        ("compare", "--site s --compare raw"),
        ("compare", "--compare raw --drop 0.1 --reconnect-storm"),
        ("password-file", "--password-file p"),
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
    for name in LoadOptions.model_fields:
        assert key_texts(LoadOptions)[name]
        assert f"  {name}: " in text
    assert main(["loadtest", "--tls", "--ca", str(tmp_path / "none.crt")]) == UsageError.exit_code


def test_too_few_open_files_are_told_with_their_number():
    check_files(900, 1000)
    check_files(10**6, resource.RLIM_INFINITY)
    with pytest.raises(UsageError) as caught:
        check_files(901, 1000)
    assert "1001" in caught.value.fix


@pytest.mark.parametrize(("devices", "enrolled"), [(6, 7), (20, 10_000), (99_999, 100_000)])
def test_the_quorum_is_of_the_tests_own_devices(devices, enrolled):
    for quorum in (1.0, 0.8):
        text = job_yaml(LoadOptions(devices=devices, quorum=quorum), enrolled)
        share = parse_job(text).round.quorum
        assert math.ceil(share * enrolled) == math.ceil(quorum * devices)
