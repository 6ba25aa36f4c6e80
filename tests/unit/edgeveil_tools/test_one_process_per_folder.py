"""A second process on a state folder stops before it touches anything; commands still work."""

import subprocess
import sys

import pytest

from edgeveil.config.site_files import load_site
from edgeveil.transport.process import OwnFolder
from edgeveil_edge.identity import DeviceIdentity
from edgeveil_tools.site.provision import Ports, SiteSpec, provision


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return provision(SiteSpec(folder / "site", devices=1, ports=Ports(1, 2, 3, 4)))


@pytest.mark.parametrize("role", ["cloud", "proxy", "edge"])
def test_the_second_process_names_the_folder_and_ends(site, role):
    config = {"cloud": site.cloud, "proxy": site.proxy, "edge": site.edges[0]}[role]
    state_dir = load_site(config).state_dir
    with OwnFolder(state_dir):
        if role == "edge":
            assert DeviceIdentity.load_or_create(state_dir).enrolment().device_id
        before = sorted(state_dir.rglob("*"))
        command = [sys.executable, "-m", "edgeveil_tools.cli", role, "--config", str(config)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert second.returncode == 1  # the one before may be about to end
        assert str(state_dir) in second.stderr and "Traceback" not in second.stderr
        assert sorted(state_dir.rglob("*")) == before
