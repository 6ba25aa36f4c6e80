"""The container files, built on a bare Debian; one command from a bundle to a counted answer."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edgeveil_tools.cli import main
from tests.e2e.test_fleet import SERVERS, PlannedFleet
from tests.kits.debian_roots import (
    CONSTRAINTS,
    build_wheel,
    debian_root,
    need,
    run,
    write_records,
)
from tests.kits.live_site import wait_for

pytestmark = pytest.mark.slow

BASE, BUILDER = "localhost/debian-python", "localhost/debian-python-venv"
BUILD_ONLY = (
    "python3-venv", "python3.11-venv", "python3-pip-whl", "python3-setuptools-whl",
    "python3-distutils", "python3-lib2to3", "ca-certificates", "openssl",
)  # fmt: skip
DOCUMENTS = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/cache/apt",
    "var/lib/apt/lists",
)
# What pip needs to reach its index, as on this machine.
MOUNTS = ("/etc/ssl/certs", "/etc/pip.conf", "/etc/resolv.conf")
MOST_BYTES = 260_000_000  # of an image that infers; one that trains with `fm` holds the same
OUR_USER = 10001


class Images:
    """A store of images of its own, and the commands on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._command = ("buildah", "--root", folder / "root", "--runroot", folder / "run")
        self._environ = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *arguments: str | Path) -> str:
        return run(*self._command, *arguments, env=self._environ).stdout.strip()

    def start(self, *arguments: str | Path, log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            command = [*map(str, self._command), *map(str, arguments)]
            return subprocess.Popen(
                command, stdout=out, stderr=out, env=self._environ, start_new_session=True
            )

    def of_root(self, root: Path, name: str) -> None:
        container = self("from", "scratch")
        self("add", "-q", container, root, "/")
        self("commit", "-q", "--rm", container, name)

    def build(self, role: str, context: Path) -> str:
        name = f"edgeveil/{role}"
        mounts = [word for at in MOUNTS if Path(at).exists() for word in ("-v", f"{at}:{at}:ro")]
        bases = ("--build-arg", f"BASE={BASE}", "--build-arg", f"BUILDER={BUILDER}")
        self("bud", *bases, *mounts, "-f", context / f"{role}.Containerfile", "-t", name, context)
        return name


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """With the base on which containers are built here: Debian, Python and nothing else."""
    need("buildah", "debootstrap")
    folder = tmp_path_factory.mktemp("images")
    images = Images(folder / "store")
    root = debian_root(folder / "debian", "python3-venv", "ca-certificates")
    images.of_root(root, BUILDER)
    run("chroot", root, "dpkg", "--purge", *BUILD_ONLY)
    for name in DOCUMENTS:
        shutil.rmtree(root / name)
    images.of_root(root, BASE)
    shutil.rmtree(root)
    yield images
    images("rm", "--all")
    images("rmi", "--all", "--force")
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the container files say must stand beside them."""
    folder = tmp_path_factory.mktemp("context")
    assert main(["deploy", "containers", "--out", str(folder)]) == 0
    build_wheel(folder)
    shutil.copy(CONSTRAINTS, folder)
    return folder


@pytest.fixture(scope="module")
def box_image(images: Images, context: Path) -> str:
    return images.build("edge-train-fm", context)


def test_an_image_that_infers_and_trains_is_small_and_not_root(
    images: Images, box_image: str
) -> None:
    container = images("from", box_image)
    root = Path(images("mount", container))
    files = {status.st_ino: status.st_size for status in map(os.lstat, root.rglob("*"))}
    size_bytes = sum(files.values())  # a file with two names takes its room once

    images("umount", container)
    images("rm", container)
    config = images(
        "inspect", "--format", "{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}}", box_image
    )
    assert config == f"{OUR_USER}:{OUR_USER} [edgeveil]"
    assert size_bytes <= MOST_BYTES, f"{size_bytes / 1e6:.0f} MB"


def test_the_proxy_s_image_is_built_and_runs(images: Images, context: Path) -> None:
    container = images("from", images.build("proxy", context))
    said = images("run", container, "--", "edgeveil", "proxy", "--help")
    assert "runs the proxy until Ctrl-C" in said
    images("rm", container)


def test_one_command_from_a_bundle_to_a_device_whose_answers_count(
    images: Images, box_image: str, tmp_path: Path
) -> None:
    fleet = PlannedFleet(tmp_path, "certificates")
    try:
        records = tmp_path / "media"
        records.mkdir()
        write_records(records / "records.npz", seed=1)
        plan_file = fleet.site / "fleet.yaml"
        plan = yaml.safe_load(plan_file.read_text())
        own = {"name": "digits", "source": "npz", "path": "/media/records/records.npz"}
        plan["fleet"]["devices"]["list"] = [{"name": "slim", "data": own}]
        plan_file.write_text(yaml.safe_dump(plan))
        fleet.command("apply")
        boxes = [f"box-000{number}" for number in range(1, 5)]
        fleet.install(*SERVERS, *boxes)
        fleet.start(*SERVERS, *boxes)

        bundle, state = fleet.site / "bundles" / "slim", tmp_path / "slim"
        state.mkdir()
        for path in (bundle, *bundle.rglob("*"), state):
            os.chown(path, OUR_USER, OUR_USER)
        for path in (tmp_path, *tmp_path.parents):
            if path.stat().st_uid == os.getuid() and path.is_relative_to("/tmp"):
                path.chmod(path.stat().st_mode | 0o011)
        mounts = (
            f"{bundle}:/media/slim:ro",
            f"{records}:/media/records:ro",
            f"{state}:/var/lib/edgeveil",
        )
        places = [word for at in mounts for word in ("-v", at)]
        put = "edgeveil site install /media/slim /var/lib/edgeveil/slim"
        go_on = "exec edgeveil edge --config /var/lib/edgeveil/slim/edgeveil.yaml"
        container = images("from", box_image)
        command = ("run", *places, container, "--", "sh", "-c", f"{put} && {go_on}")
        fleet.processes["slim"] = images.start(*command, log=fleet.logs / "slim")

        found = fleet.finish(devices=5)
        assert found["status"] == "completed", found["reason"] + fleet.log("slim")
        assert {exchange["uploads"] for exchange in found["exchanges"]} == {5}
        wait_for(lambda: "final model is in use" in fleet.log("slim"), "its release")
    finally:
        slim = fleet.processes.pop("slim", None)
        if slim is not None:
            os.killpg(slim.pid, signal.SIGTERM)
            slim.wait(30)
        fleet.end()
