"""`edgeveil check` of this machine, `init` and `--completion`."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from edgeveil.evaluation.figures import leading
from edgeveil_tools import cli
from edgeveil_tools.checks import validate
from edgeveil_tools.setup import doctor, init_job

ROOT = Path(__file__).parents[3]


COMPLETED = {
    "chec": {"check"},
    "run --sim": {"--simulate"},
    "run --broker mo": {"mosquitto"},
    "loadtest --packa": {"--package-bytes"},
    "run ": {"job.yaml", "jobs"},
    "predict rec": {"records.npz"},
    "run --out ": {"jobs"},
}
ASKED = """
COMP_WORDS=(edgeveil {words}); COMP_CWORD={count}; COMPREPLY=()
$(complete -p edgeveil | sed -E 's/.*-F ([^ ]+).*/\\1/')
echo "${{COMPREPLY[@]}}"
"""


def test_bash_completes_commands_options_choices_and_paths(tmp_path, capsys):
    (tmp_path / "jobs").mkdir()
    for name in ("job.yaml", "notes.txt", "records.npz"):
        (tmp_path / name).touch()
    capsys.readouterr()
    assert cli.main(["--completion", "bash"]) == 0
    script = capsys.readouterr().out
    for line in COMPLETED:
        words = line.split(" ")
        script += ASKED.format(words=" ".join(map(repr, words)), count=len(words))
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert [set(line.split()) for line in done.stdout.splitlines()] == list(COMPLETED.values())


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("classification", "fruit.csv"),
        pytest.param("images", "pictures/disc/000.png", marks=pytest.mark.slow),
        pytest.param("anomaly", "windows.csv", marks=pytest.mark.slow),
    ],
)
def test_init_writes_a_job_that_plays_right_away(kind, made, tmp_path, capsys):
    folder = tmp_path / "mine"
    assert cli.main(["init", kind, "--out", str(folder)]) == 0
    then = capsys.readouterr().out.splitlines()[-1].split()  # the next command, as it is shown
    assert str(folder / "job.yaml") in (folder / "README.md").read_text()
    assert validate(folder / "job.yaml") == []
    assert then[:4] == ["edgeveil", "run", str(folder / "job.yaml"), "--simulate"]
    out = tmp_path / "out"
    assert cli.main([*then[1:4], "--out", str(out), "--devices", "6", "--no-reference"]) == 0
    assert leading(json.loads((out / "result.json").read_bytes())["final"])[1] > 0.8
    assert cli.main(["predict", str(out / "model.onnx"), str(folder / made), "--json"]) == 0
    predictions = json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"]
    assert {"apple", "normal", "disc"} & {one["name"] for one in predictions}


def test_init_writes_the_same_each_time_and_over_nothing(tmp_path, capsys):
    init_job.write("anomaly", tmp_path / "a")
    init_job.write("anomaly", tmp_path / "b")
    one, other = ((tmp_path / name / "windows.csv").read_bytes() for name in "ab")
    assert one == other
    (tmp_path / "b" / "windows.csv").write_text("mine")
    (tmp_path / "b" / "job.yaml").unlink()
    assert cli.main(["init", "anomaly", "--out", str(tmp_path / "b")]) == 2
    assert (tmp_path / "b" / "windows.csv").read_text() == "mine"
    assert not (tmp_path / "b" / "job.yaml").exists()


def test_doctor_finds_what_is_wrong_and_nothing_where_tests_pass(monkeypatch, capsys):
    assert cli.main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    monkeypatch.setattr(doctor.time, "time", lambda: 0.0)
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: "/proc/none")
    assert cli.main(["check"]) == 1
    assert len(re.findall(r"^ *✗", capsys.readouterr().out, re.MULTILINE)) == 2


def test_every_use_is_an_extra_with_a_purpose():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "all", "fuzz", "s3-tests"}
    assert set(doctor.USES) - {"lab"} == extras
