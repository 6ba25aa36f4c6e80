"""The two wheels, as users have them: in a fresh environment, beside packages of our old names."""

import json
import os
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from edgeveil.pages.assets import SHARED
from tests.kits.debian_roots import build_wheel

pytestmark = pytest.mark.drill

ROOT = Path(__file__).parents[2]
LAB = ROOT / "tools" / "edgeveil_lab"
OURS = {"edgeveil", "edgeveil_edge", "edgeveil_cloud", "edgeveil_proxy", "edgeveil_tools"}
LABORATORY = ("loadtest", "audit", "attack", "reproduce", "capacity")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def home(wheel, tmp_path_factory):
    """A fresh environment with the wheel; what it needs of others is read from this one's."""
    home = tmp_path_factory.mktemp("home")
    venv.create(home / "venv", with_pip=True)
    python = home / "venv" / "bin" / "python"
    pip = [python, "-I", "-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-deps"]
    subprocess.run([*pip, wheel], check=True)
    [packages] = (home / "venv" / "lib").glob("python*/site-packages")
    others = home / "others"
    others.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "edgeveil" not in path.name:
            (others / path.name).symlink_to(path)
    (packages / "others.pth").write_text(f"{others}\n")
    for name in ("proxy", "proxy/http", "tools"):  # of another distribution
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text("ANOTHERS = True\n")
    (home / "tools").mkdir()
    (home / "tools" / "__init__.py").write_text("raise ImportError('a user has tools, too')\n")
    return home


def command(home, *arguments):
    script = home / "venv" / "bin" / "edgeveil"
    return python_of(home, script, *arguments)


def python_of(home, *arguments):
    return subprocess.run(
        arguments,
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def packages(wheel):
    names = {name.partition("/")[0] for name in ZipFile(wheel).namelist()}
    return {name for name in names if not name.endswith(".dist-info")}


def test_it_installs_names_that_are_ours(wheel):
    assert packages(wheel) == OURS
    files = set(ZipFile(wheel).namelist())
    assert "edgeveil_tools/templates/init/images/job.yaml" in files
    assert "edgeveil_tools/deploy/systemd/edgeveil-.service.d/confined.conf" in files
    assert "edgeveil_tools/deploy/kubernetes/party.yaml" in files
    for page in ("edgeveil_proxy/static/proxy", "edgeveil_edge/static/device"):
        assert {f"{page}.{ending}" for ending in ("html", "css", "js")} <= files
    assert {f"edgeveil/pages/static/{name}" for name in SHARED} <= files


def test_quickstart_and_predict_run_beside_packages_of_our_old_names(home):
    job = (ROOT / "tests" / "kits" / "quickstart.yaml").read_text()
    (home / "job.yaml").write_text(job.replace("rounds: 15", "rounds: 5"))
    done = command(home, "run", "job.yaml", "--devices", "8", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "completed"
    np.savez(home / "records.npz", x=np.zeros((2, 64), np.float32))
    done = command(home, "predict", "out/model.onnx", "records.npz", "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["predictions"]) == 2


def test_the_laboratory_is_a_wheel_of_its_own(home, tmp_path):
    for name in LABORATORY:
        done = command(home, name, "--quick")
        assert done.returncode == 2
        assert done.stderr.endswith("which is not installed. pip install edgeveil-lab\n")
    assert "pip install edgeveil-lab" in command(home, "--help").stdout
    lab = build_wheel(tmp_path, "tools/edgeveil_lab")
    assert packages(lab) == {"edgeveil_lab"}
    sources = {f"edgeveil_lab/{path.relative_to(LAB)}" for path in LAB.rglob("*.py")}
    assert sources <= set(ZipFile(lab).namelist())
    pip = [home / "venv" / "bin" / "python", "-I", "-m", "pip", "install"]
    subprocess.run([*pip, "-q", "--no-deps", lab], check=True)
    try:
        for name in LABORATORY:
            done = command(home, name, "--help")
            assert done.returncode == 0, done.stderr
        made = ("--devices", "5", "--rounds", "1", "--json")
        done = command(home, "loadtest", *made)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["uploads"] == 5
    finally:
        subprocess.run([*pip[:-1], "uninstall", "-q", "-y", "edgeveil-lab"], check=True)


def test_both_distributions_have_one_version():
    files = (ROOT / "pyproject.toml", LAB / "pyproject.toml")
    product, lab = (tomllib.loads(path.read_text())["project"] for path in files)
    assert lab["version"] == product["version"]
    assert f"edgeveil[tools]=={product['version']}" in lab["dependencies"]
