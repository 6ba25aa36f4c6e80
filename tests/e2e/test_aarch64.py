"""A device on another processor: it trains with `fm`, infers, and takes the release in use.

User-mode emulation runs the real aarch64 builds of Python and of every library; the kernel is this
machine's.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from edgeveil.config.edge import EdgeSite
from edgeveil.config.site_files import load_site
from edgeveil.parts.own_records import own_records
from edgeveil.privacy.ledger import LEDGER_FILE, read_ledger
from edgeveil_edge.predict import predict
from tests.kits.commands import changed
from tests.kits.debian_roots import CONSTRAINTS, build_wheel, foreign_files, need, run
from tests.kits.live_site import LiveSite, wait_for

pytestmark = pytest.mark.drill

EMULATOR = "qemu-aarch64-static"
# Of the later builds some look at the processor in ways that the emulation does not know.
ONNXRUNTIME = "onnxruntime==1.23.2"
PLATFORMS = [f"manylinux_2_{minor}_aarch64" for minor in (28, 27, 26, 17)]


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    need(EMULATOR, "debootstrap", "dpkg-deb")
    folder = tmp_path_factory.mktemp("aarch64")
    root = foreign_files(folder / "root", "arm64")
    constraints = folder / "constraints.txt"
    pinned = CONSTRAINTS.read_text().splitlines()
    kept = [line for line in pinned if not line.startswith("onnxruntime=")]
    constraints.write_text("\n".join([*kept, ONNXRUNTIME]))
    [python] = (root / "usr" / "bin").glob("python3.[0-9]*[0-9]")
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    where = ["--target", folder / "packages", "--only-binary=:all:", "--no-compile"]
    version = ["--python-version", python.name.removeprefix("python")]
    run(*pip, *where, *platforms, *version, "-c", constraints, f"{build_wheel(folder)}[train-fm]")
    assert not (folder / "packages" / "torch").exists()
    return [EMULATOR, "-L", str(root), "-E", f"PYTHONPATH={folder / 'packages'}", str(python)]


def with_records(config):
    """The digits are read with a library that a device of this kind has not."""
    site = load_site(config)
    assert isinstance(site, EdgeSite)
    records = own_records(site.data)
    np.savez(config.with_name("records.npz"), x=records.x, y=records.y)
    with changed(config) as text:
        data = text["edge"]["data"]
        text["edge"]["data"] = {"name": data["name"], "source": "npz", "path": "records.npz"}
        text["edge"]["policy"]["max_records"] = len(records.x)


def test_a_job_counts_it_as_any_other_and_its_release_infers(box, tmp_path):
    said = run(*box, "-c", "import platform, onnxruntime; print(platform.machine())")
    assert said.stdout.split()[-1] == "aarch64"
    with LiveSite(tmp_path, devices=5) as live:
        foreign, *others = live.site.edges
        with_records(foreign)
        live.start_servers()
        live.start("edge", *others)
        with (live.logs / "aarch64").open("ab") as log:
            live.processes["aarch64"] = subprocess.Popen(
                [*box, "-m", "edgeveil_tools.cli", "edge", "--config", foreign],
                stdout=log,
                stderr=log,
                env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            )
        wait_for(lambda: live.proxy_status().get("online") == 5, "all hellos", 180)
        # Emulated, a box takes some thirty times as long.
        job = live.completed(live.submit(rounds=3, every=2, budget_s=4))
        assert {round["uploads"] for round in job["exchanges"]} == {5}
        state = live.spec.edge_state(1)
        wait_for(lambda: "final model is in use" in live.log("aarch64"), "its release")
        assert live.stop("aarch64") == 0
        (account,) = read_ledger(state / LEDGER_FILE).accounts.values()
        (entry,) = account.values()
        assert len(entry.answers) == len(job["exchanges"])

        records = tmp_path / "asked.npz"
        np.savez(records, x=np.load(foreign.with_name("records.npz"))["x"][:20])
        command = ["-m", "edgeveil_tools.cli", "predict", str(state), str(records), "--json"]
        there = json.loads(run(*box, *command).stdout.splitlines()[-1])["predictions"]
        here = predict(state, records).plain()
        assert [one["label"] for one in there] == [one["label"] for one in here]
