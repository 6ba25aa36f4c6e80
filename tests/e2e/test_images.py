"""The container file, built on a bare Debian; one command from a bundle to a counted answer."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from edgeveil_tools.cli import main
from tests.e2e.test_fleet import SERVERS, PlannedFleet
from tests.kits.commands import changed
from tests.kits.debian_roots import CONSTRAINTS, build_wheel, debian_root, need, run, write_records
from tests.kits.live_site import wait_for

# The first of them waits for two Debians to be made.
pytestmark = [pytest.mark.drill, pytest.mark.timeout(1200)]

BASE, BUILDER = "localhost/debian-python", "localhost/debian-python-venv"
BUILD_ONLY = (
    "python3-venv", "python3.11-venv", "python3-pip-whl", "python3-setuptools-whl",
    "python3-distutils", "python3-lib2to3", "ca-certificates", "openssl",
)  # fmt: skip
DOCUMENTS = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale"),
    *("var/cache/apt", "var/lib/apt/lists"),
)
# What pip and apt need to reach their indexes, as on this machine.
MOUNTS = ("/etc/ssl/certs", "/etc/pip.conf", "/etc/resolv.conf", "/etc/apt/apt.conf.d")
ARGUMENTS = {
    "broker": ("--build-arg", "PACKAGES=mosquitto"),
    "proxy": ("--build-arg", "EXTRAS=[proxy]"),
    "edge-infer": ("--build-arg", "EXTRAS=[infer]"),
    "edge-train-fm": ("--build-arg", "EXTRAS=[train-fm]"),
}
MOST_BYTES = {"edge-infer": 260_000_000, "edge-train-fm": 280_000_000}
OUR_USER = 10001
# As compose runs it: nothing can be written to but the state and /tmp. Arguments: the image's root,
# the device's place, the folder of its records.
READ_ONLY = f"""
set -e
cp /etc/hosts "$1/etc/hosts"
mount --bind "$1" "$1"
mount --bind "$2" "$1/etc/edgeveil"
mount --bind "$2/state" "$1/etc/edgeveil/state"
mount -o remount,bind,ro "$1/etc/edgeveil"
mount --bind -o ro "$3" "$1/media"
for name in dev proc; do mount --rbind "/$name" "$1/$name"; done
mount -t tmpfs none "$1/tmp"
mount -o remount,bind,ro "$1"
if touch "$1/opt/edgeveil/written" "$1/etc/edgeveil/written"; then exit 9; fi
exec chroot --userspec={OUR_USER}:{OUR_USER} "$1" /opt/edgeveil/bin/edgeveil edge --config /etc/edgeveil/edgeveil.yaml
"""  # noqa: E501


def started(command, log, environ=os.environ):
    with log.open("ab") as out:
        return subprocess.Popen(
            list(map(str, command)), stdout=out, stderr=out, env=environ, start_new_session=True
        )


class Images:
    def __init__(self, folder):
        self.folder = folder
        self._command = ("buildah", "--root", folder / "root", "--runroot", folder / "run")
        self._built = {}
        self._environ = os.environ | {"STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def __call__(self, *arguments):
        return run(*self._command, *arguments, env=self._environ).stdout.strip()

    def start(self, *arguments, log):
        return started([*self._command, *arguments], log, self._environ)

    def of_root(self, root, name):
        container = self("from", "scratch")
        self("add", "-q", container, root, "/")
        self("commit", "-q", "--rm", container, name)

    def build(self, role, context):
        if role in self._built:
            return self._built[role]
        name = self._built[role] = f"edgeveil/{role}"
        mounts = [word for at in MOUNTS if Path(at).exists() for word in ("-v", f"{at}:{at}:ro")]
        bases = ("--build-arg", f"BASE={BASE}", "--build-arg", f"BUILDER={BUILDER}")
        file = context / "Containerfile"
        self("bud", *bases, *ARGUMENTS[role], *mounts, "-f", file, "-t", name, context)
        return name


@pytest.fixture(scope="module")
def images(tmp_path_factory):
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
def context(tmp_path_factory):
    folder = tmp_path_factory.mktemp("context")
    assert main(["deploy", "containers", "--out", str(folder)]) == 0
    build_wheel(folder)
    shutil.copy(CONSTRAINTS, folder)
    return folder


@pytest.mark.parametrize("role", MOST_BYTES)
def test_an_image_of_a_device_is_small_and_not_root(images, context, role):
    image = images.build(role, context)
    container = images("from", image)
    root = Path(images("mount", container))
    files = {status.st_ino: status.st_size for status in map(os.lstat, root.rglob("*"))}
    size_bytes = sum(files.values())  # a file with two names takes its room once

    images("umount", container)
    images("rm", container)
    config = images(
        "inspect", "--format", "{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}}", image
    )
    assert config == f"{OUR_USER}:{OUR_USER} [edgeveil]"
    assert size_bytes <= MOST_BYTES[role], f"{size_bytes / 1e6:.0f} MB"


@pytest.mark.parametrize(
    ("role", "command", "said"),
    [
        ("proxy", "edgeveil proxy --help", "runs the proxy until Ctrl-C"),
        ("broker", "edgeveil broker --help && /usr/sbin/mosquitto -h", "mosquitto version 2"),
        ("edge-infer", "edgeveil predict --help", "usage: edgeveil predict"),
    ],
)
def test_an_image_is_built_and_runs(images, context, role, command, said):
    container = images("from", images.build(role, context))
    assert said in images("run", container, "--", "sh", "-c", f"{command}; true")
    images("rm", container)


def test_one_command_from_a_bundle_to_a_device_whose_answers_count(images, context, tmp_path):
    box_image = images.build("edge-train-fm", context)
    fleet = PlannedFleet(tmp_path, "certificates")
    try:
        records = tmp_path / "media"
        records.mkdir()
        write_records(records / "records.npz", seed=1)
        own = {"name": "digits", "source": "npz", "path": "/media/records/records.npz"}
        with changed(fleet.site / "fleet.yaml") as plan:
            plan["fleet"]["devices"]["list"] = [
                {"name": "slim", "data": own},
                {"name": "fixed", "data": own | {"path": "/media/records.npz"}},
            ]
        fleet.command("apply")
        boxes = [f"box-000{number}" for number in range(1, 5)]
        fleet.install(*SERVERS, *boxes, "fixed")
        fleet.start_all(*boxes)

        bundle, state = fleet.site / "bundles" / "slim", tmp_path / "slim"
        state.mkdir()
        fixed = fleet.places / "fixed"
        for path in (bundle, *bundle.rglob("*"), state, fixed, *fixed.rglob("*")):
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

        root = images("mount", images("from", box_image))
        own_mounts = ("unshare", "--mount", "sh", "-c", READ_ONLY, "sh")
        fleet.processes["fixed"] = started(
            [*own_mounts, root, fixed, records], fleet.logs / "fixed"
        )
        for name in ("slim", "fixed"):
            wait_for(lambda: "broker_connected" in fleet.log(name), f"the start of {name}")  # noqa: B023

        fleet.learns(6)
        for name in ("slim", "fixed"):
            wait_for(lambda: "final model is in use" in fleet.log(name), f"its release: {name}")  # noqa: B023
    finally:
        for name in ("slim", "fixed"):
            if (device := fleet.processes.pop(name, None)) is not None:
                os.killpg(device.pid, signal.SIGTERM)
                device.wait(30)
        fleet.end()
