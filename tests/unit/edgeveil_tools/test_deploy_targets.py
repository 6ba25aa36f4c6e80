"""What runs installed bundles: units, containers and manifests that their own tools accept."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from edgeveil_tools.cli import main
from tests.kits.site_folders import opened, plan, planned

KINDS = ("broker", "cloud", "proxy", "edge")
PARTIES = ("broker-edge", "broker-cloud", "cloud", "proxy", "box-0001")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    site = planned(tmp_path_factory.mktemp("fleet") / "site", 1)
    opened(site).apply()
    return [str(site / "bundles" / name) for name in PARTIES]


def deploy(target, out, *bundles):
    assert main(["deploy", target, *bundles, "--out", str(out)]) == 0
    return {path.name: path.read_text() for path in out.rglob("*") if path.is_file()}


def pod_of(found, name):
    manifests = yaml.safe_load_all(found[f"edgeveil-{name}.yaml"])
    (pods,) = (one for one in manifests if one["kind"] == "StatefulSet")
    return pods["spec"]["template"]["spec"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_units_as_they_are_and_finds_them_confined(tmp_path):
    deploy("systemd", tmp_path / "units")
    made = []
    for path in (tmp_path / "units").glob("*@.*"):  # the program is looked for, but not here
        text = path.read_text().replace("/opt/edgeveil/bin/edgeveil", "/bin/true")
        made.append(tmp_path / "units" / path.name.replace("@", "@box-1"))
        made[-1].write_text(text)
    assert len(made) == len(KINDS) + 2
    told = analyze("verify", *made)
    assert told.returncode == 0 and not re.search("^.*edgeveil.*$", told.stderr, re.MULTILINE)
    for kind in (*KINDS, "check"):
        unit = tmp_path / "units" / f"edgeveil-{kind}@box-1.service"
        told = analyze("security", "--offline=true", "--threshold=30", unit)
        assert told.returncode == 0, told.stdout
        level = re.search(r"exposure level for \S+: ([0-9.]+)", told.stdout)
        assert float(level[1]) <= 2.0


def analyze(*words):
    command = ["systemd-analyze", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_unit_forbids_cores_and_names_its_own_party_alone(tmp_path):
    found = deploy("systemd", tmp_path)
    assert "LimitCORE=0" in found["confined.conf"].splitlines()
    for kind in KINDS:
        unit = found[f"edgeveil-{kind}@.service"]
        program = f"ExecStart=/opt/edgeveil/bin/edgeveil {kind} --config /var/lib/edgeveil/%i/"
        assert program in unit
        assert "ReadWritePaths=/var/lib/edgeveil/%i/state" in unit
        assert "PrivateDevices=yes" in unit
        # What computes on models makes machine code.
        assert ("MemoryDenyWriteExecute=yes" in unit) == (kind in ("broker", "proxy"))


def test_compose_confines_each_service_and_asks_after_its_health(bundles, tmp_path):
    services = yaml.safe_load(deploy("compose", tmp_path, *bundles)["compose.yaml"])["services"]
    assert set(services) == set(PARTIES)
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
        own = [f"./{name}:/etc/edgeveil:ro", f"./{name}/state:/etc/edgeveil/state"]
        assert service["volumes"] == own
        assert service["healthcheck"]["test"][:3] == ["CMD", "edgeveil", "health"]
    assert services["broker-edge"]["ports"] == ["8883:8883"]
    assert set(services["cloud"]["depends_on"]) == {"broker-edge", "broker-cloud"}


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    """Bundles of a device that infers, one that trains with `fm`, and one that may use torch."""
    site = planned(tmp_path_factory.mktemp("mixed") / "site", 2)
    plan(site, devices={"list": [{"name": "kitchen", "role": "infer"}]})
    opened(site).apply()
    owners = site / "bundles" / "box-0002" / "policy.yaml"
    policy = yaml.safe_load(owners.read_text())
    policy["policy"]["allowed_methods"] = ["fm", "dp_sgd"]
    owners.write_text(yaml.safe_dump(policy))
    return [str(site / "bundles" / name) for name in ("kitchen", "box-0001", "box-0002")]


def test_each_device_runs_in_the_smallest_image_that_does_its_work(boxes, tmp_path):
    wanted = {"kitchen": "edge-infer", "box-0001": "edge-train-fm", "box-0002": "edge-train"}
    text = deploy("compose", tmp_path / "compose", *boxes)["compose.yaml"]
    found = deploy("kubernetes", tmp_path / "kubernetes", *boxes)
    for name, service in yaml.safe_load(text)["services"].items():
        assert f"/{wanted.pop(name)}:" in service["image"]
        pod = pod_of(found, name)
        images = {one["image"] for one in (*pod["initContainers"], *pod["containers"])}
        assert images == {service["image"]}
    assert not wanted


def test_kubernetes_manifests_keep_to_the_schemas(bundles, tmp_path):
    found = deploy("kubernetes", tmp_path, *bundles)
    kustomization = yaml.safe_load(found.pop("kustomization.yaml"))
    assert sorted(kustomization["resources"]) == sorted(found)
    kinds = []
    for text in found.values():
        for manifest in yaml.safe_load_all(text):
            kubernetes_validate.validate(manifest, "1.30", strict=True)
            kinds.append(manifest["kind"])
    assert kinds.count("StatefulSet") == kinds.count("NetworkPolicy") == len(PARTIES)
    for name in PARTIES:  # what is stuck is started again, and not what lost a link
        (container,) = pod_of(found, name)["containers"]
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        assert all(probe["timeoutSeconds"] > 1 for probe in probes)
        assert ["--live" in probe["exec"]["command"] for probe in probes] == [True, False, True]
    folder = Path(bundles[0]).parent
    for secret in kustomization["secretGenerator"]:
        for pair in secret["files"]:
            assert (folder / pair.partition("=")[2]).is_file()


def test_kubernetes_installs_a_secret_as_it_is_shown(bundles, tmp_path):
    found = deploy("kubernetes", tmp_path / "out", *bundles)
    given, place = tmp_path / "given", tmp_path / "place"
    shutil.copytree(bundles[PARTIES.index("proxy")], given / "..2026_11_23")
    (given / "..data").symlink_to("..2026_11_23")
    for path in (given / "..data").iterdir():  # as a kubelet does
        (given / path.name).symlink_to(f"..data/{path.name}")
    program = tmp_path / "bin" / "edgeveil"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m edgeveil_tools.cli "$@"\n')
    program.chmod(0o755)
    (shell, option, line) = pod_of(found, "proxy")["initContainers"][0]["command"]
    line = line.replace("/etc/edgeveil", str(place)).replace("/given", str(given))
    line = line.replace("/tmp/bundle", str(tmp_path / "bundle"))
    path = f"{program.parent}:{os.environ['PATH']}"
    told = subprocess.run(
        [shell, option, line], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert (place / "tls" / "edge.key").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "bundle").exists()


def test_one_party_twice_or_an_update_is_not_deployed(bundles, tmp_path):
    update = tmp_path / "update"
    shutil.copytree(bundles[-1], update)
    (update / "policy.yaml").unlink()
    for given in ([bundles[0]] * 2, [str(update)]):
        assert main(["deploy", "compose", *given, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
