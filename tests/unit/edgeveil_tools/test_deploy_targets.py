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
# Each device runs in the smallest image that does its work.
IMAGES = {"kitchen": "edge-infer", "box-0001": "edge-train-fm", "box-0002": "edge-train"}
PARTIES = ("broker-edge", "broker-cloud", "cloud", "proxy", *IMAGES)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Among them a device that infers, one that trains with `fm`, and one that may use torch."""
    site = planned(tmp_path_factory.mktemp("fleet") / "site", 2)
    plan(site, devices={"list": [{"name": "kitchen", "role": "infer"}]})
    opened(site).apply()
    owners = site / "bundles" / "box-0002" / "policy.yaml"
    policy = yaml.safe_load(owners.read_text())
    policy["policy"]["allowed_methods"] = ["fm", "dp_sgd"]
    owners.write_text(yaml.safe_dump(policy))
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
    done = analyze("verify", *made)
    assert done.returncode == 0 and "edgeveil" not in done.stderr
    for kind in (*KINDS, "check"):
        unit = tmp_path / "units" / f"edgeveil-{kind}@box-1.service"
        done = analyze("security", "--offline=true", "--threshold=30", unit)
        assert done.returncode == 0, done.stdout
        level = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
        assert float(level[1]) <= 2.0


def analyze(*words):
    command = ["systemd-analyze", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_unit_forbids_cores_and_writes_its_own_partys_state_alone(tmp_path):
    found = deploy("systemd", tmp_path)
    assert "LimitCORE=0" in found["confined.conf"].splitlines()
    for kind in KINDS:
        unit = found[f"edgeveil-{kind}@.service"]
        assert f"/edgeveil {kind} --config /var/lib/edgeveil/%i/" in unit
        assert re.findall("^ReadWritePaths=(.*)$", unit, re.M) == ["/var/lib/edgeveil/%i/state"]
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
    for name, image in IMAGES.items():
        assert f"/{image}:" in services[name]["image"]


def test_kubernetes_manifests_keep_to_the_schemas(bundles, tmp_path):
    found = deploy("kubernetes", tmp_path, *bundles)
    kustomization = yaml.safe_load(found.pop("kustomization.yaml"))
    assert sorted(kustomization["resources"]) == sorted(found)
    manifests = [one for text in found.values() for one in yaml.safe_load_all(text)]
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.30", strict=True)
    kinds = [one["kind"] for one in manifests]
    assert kinds.count("StatefulSet") == kinds.count("NetworkPolicy") == len(PARTIES)
    for name in PARTIES:  # what is stuck is started again, and not what lost a link
        (container,) = pod_of(found, name)["containers"]
        probes = [container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")]
        assert ["--live" in probe["exec"]["command"] for probe in probes] == [True, False, True]
    for name, image in IMAGES.items():
        pod = pod_of(found, name)
        (own,) = {one["image"] for one in (*pod["initContainers"], *pod["containers"])}
        assert f"/{image}:" in own
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
    env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    subprocess.run([shell, option, line], env=env, check=True)
    assert (place / "tls" / "edge.key").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "bundle").exists()


def test_one_party_twice_or_an_update_is_not_deployed(bundles, tmp_path):
    update = tmp_path / "update"
    shutil.copytree(bundles[-1], update)
    (update / "policy.yaml").unlink()
    for given in ([bundles[0]] * 2, [str(update)]):
        assert main(["deploy", "compose", *given, "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
