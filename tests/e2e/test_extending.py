"""The page on parts of one's own: its package is built, installed and run as it stands there."""

import json

import pytest

from edgeveil.parts.sources.digits import load_digits_split
from tests.kits.plugin_wheels import ROOT, edgeveil, files_of, install, written

NAMES = {"midrange", "jsonl", "cut", "two_layers", "one_step"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the page's files, with records, and that of the installed package."""
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


def test_its_parts_are_listed_with_their_distribution(place):
    folder, plugins = place
    ran = edgeveil("methods", "--json", *NAMES, plugins=plugins, cwd=folder)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)["names"]
    assert {entry["name"] for entry in found} == NAMES
    assert {entry["plugin"] for entry in found} == {"my-parts 1.0"}
    assert all(entry["summary"] and entry["example"] for entry in found)


def test_its_parts_keep_the_laws(place):
    folder, plugins = place
    ran = edgeveil("methods", "--json", "check", *NAMES, plugins=plugins, cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = json.loads(ran.stdout)["parts"]
    assert len(found) == len(NAMES)
    assert all(len(one["laws"]) >= 2 and len(one["sha256"]) == 64 for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["sums", "updates"])
def test_its_jobs_run(place, job):
    folder, plugins = place
    out = folder / f"out-{job}"
    ran = edgeveil("run", f"{job}.yaml", "--out", str(out), plugins=plugins, cwd=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = json.loads((out / "result.json").read_text())
    assert result["status"] == "completed"
