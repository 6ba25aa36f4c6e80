"""A load test's scenario among the other files: each is told from the others, with the way out."""

from pathlib import Path

import pytest

from edgeveil.errors import ConfigError
from edgeveil.jobs import parse_job
from edgeveil.sites.files import kind_of, load_site
from edgeveil_lab.load.scenario import LoadOptions, load_scenario
from edgeveil_tools.checks import load

STEADY = Path("configs/load/steady.yaml")


def test_a_scenario_is_known_by_its_key_and_sent_to_its_own_command():
    assert kind_of({"load": {}}) == "load"
    with pytest.raises(ConfigError, match="edgeveil loadtest --scenario"):
        load(STEADY)


@pytest.mark.parametrize("path", sorted(STEADY.parent.iterdir()), ids=str)
def test_every_example_loads(path):
    load_scenario(path)


def test_every_key_is_described_and_stands_in_an_example():
    text = STEADY.read_text()
    for name, field in LoadOptions.model_fields.items():
        assert field.description
        assert f"  {name}: " in text


def test_the_example_says_the_defaults():
    """All but the two of which it says otherwise."""
    found, usual = load_scenario(STEADY), LoadOptions()
    differing = {
        key for key in LoadOptions.model_fields if getattr(found, key) != getattr(usual, key)
    }
    assert differing == {"devices", "rounds"}


def test_as_a_job_it_is_sent_to_its_own_command():
    with pytest.raises(ConfigError, match="edgeveil loadtest --scenario"):
        parse_job(STEADY.read_text())


def test_it_is_no_site():
    with pytest.raises(ConfigError, match="this is a load file"):
        load_site(STEADY)


def test_it_holds_nothing_else(tmp_path):
    file = tmp_path / "two.yaml"
    file.write_text("load: {devices: 5}\njobs: 3\n")
    with pytest.raises(ConfigError, match="'load' holds nothing else"):
        load_scenario(file)


def test_paths_count_from_the_file_s_folder(tmp_path):
    file = tmp_path / "paths.yaml"
    file.write_text("load: {ca: tls/ca.crt}\n")
    assert load_scenario(file).ca == tmp_path / "tls" / "ca.crt"


def test_sizes_are_whole_float32_values(tmp_path):
    assert LoadOptions(payload_bytes=4096).values == 1024
    file = tmp_path / "odd.yaml"
    file.write_text("load:\n  payload_bytes: 4097\n")
    with pytest.raises(ConfigError, match=r":2 load\.payload_bytes: must be a multiple of 4"):
        load_scenario(file)
