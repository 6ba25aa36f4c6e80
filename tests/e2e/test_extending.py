"""The page on parts of one's own: its package is built, installed and run as it stands there."""

import json
import os
import re
import shutil

import pytest

from edgeveil.parts.sources.digits import load_digits_split
from tests.kits.commands import ran
from tests.kits.plugin_wheels import ROOT, edgeveil, files_of, install, written

ROOMS = ("edgeveil", "edge_client", "cloud_server", "proxy", "tools")
NAMES = {"midrange", "vectors", "cut", "two_layers", "one_step"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jobs")  # not beside the sources, which Python would import
    files = files_of(ROOT / "docs" / "extending.md")
    jobs = {name: text for name, text in files.items() if name.endswith(".yaml")}
    written(jobs, folder)
    package = written({"my_parts/__init__.py": "", **files}, tmp_path_factory.mktemp("my-parts"))
    records, _ = load_digits_split()
    lines = [json.dumps({"values": 64})]
    for x, y in zip(records.x[:300].tolist(), records.y[:300].tolist(), strict=True):
        lines.append(json.dumps({"x": x, "y": y}))
    (folder / "records.jsonl").write_text("\n".join(lines))
    return folder, install(package, tmp_path_factory.mktemp("site") / "packages")


def in_site(place, *arguments):
    done = edgeveil(*arguments, plugins=place[1], cwd=place[0])
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_parts_are_listed_with_their_distribution_and_keep_the_laws(place):
    found = json.loads(in_site(place, "methods", "--json", *NAMES))["names"]
    assert {entry["name"] for entry in found} == NAMES
    assert {entry["plugin"] for entry in found} == {"my-parts 1.0"}
    assert all(entry["summary"] and entry["example"] for entry in found)
    found = json.loads(in_site(place, "methods", "--json", "check", *NAMES))["parts"]
    assert len(found) == len(NAMES)
    assert all(len(one["laws"]) >= 2 and len(one["sha256"]) == 64 for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["sums", "updates"])
def test_its_jobs_run(place, job):
    in_site(place, "run", f"{job}.yaml", "--out", f"out-{job}")
    result = json.loads((place[0] / f"out-{job}" / "result.json").read_text())
    assert result["status"] == "completed"


@pytest.mark.slow
def test_one_file_adds_a_rule_to_a_checkout(tmp_path):
    assert "](docs/extending.md)" in (ROOT / "README.md").read_text("utf-8")
    rule = files_of(ROOT / "docs/extending.md")["my_parts/midrange.py"]
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "edgeveil/parts/aggregation/midrange.py").write_text(rule, "utf-8")
    job = (ROOT / "tests/kits/quickstart.yaml").read_text("utf-8")
    job, changed = re.subn(r"aggregation: .*", "aggregation: {name: midrange}", job)
    assert changed == 1
    (tmp_path / "job.yaml").write_text(job.replace("rounds: 15", "rounds: 5"), "utf-8")
    path = os.pathsep.join(str(tmp_path / room) for room in ("", *ROOMS[1:]))

    def ours(*arguments):
        environ = {**os.environ, "PYTHONPATH": path}
        return json.loads(ran("--json", *arguments, cwd=tmp_path, env=environ).stdout)

    (found,) = ours("methods", "midrange")["names"]
    assert (found["name"], found["family"]) == ("midrange", "aggregation")
    (laws,) = ours("methods", "check", "midrange")["parts"]
    assert len(laws["laws"]) >= 2
    assert ours("run", "job.yaml", "--devices", "6", "--out", "out")["status"] == "completed"
