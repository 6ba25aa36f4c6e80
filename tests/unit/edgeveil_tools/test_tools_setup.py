"""`edgeveil check` of this machine, `init`, `--completion` and the groups of `--help`."""

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


def test_help_has_every_command_in_a_group_of_its_task_in_one_line(capsys):
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    (commands,) = (a for a in cli.parser()._actions if isinstance(a.choices, dict))
    shown = re.findall(r"^  ([a-z]+)  +\S", said.partition("with every")[0], re.MULTILINE)
    assert sorted(shown) == sorted(commands.choices)
    assert "\nmore:" not in said
    assert max(map(len, said.splitlines())) <= 80


# --- completion ---


COMPLETED = {
    "chec": {"check"},
    "run --sim": {"--simulate"},
    "run --broker mo": {"mosquitto"},
    "run --js": {"--json"},
    "loadtest --packa": {"--package-bytes"},
    "run jo": {"job.yaml", "jobs"},
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
        script += ASKED.format(words=" ".join(f"'{word}'" for word in words), count=len(words))
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert [set(line.split()) for line in done.stdout.splitlines()] == list(COMPLETED.values())


# --- init ---


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        ("classification", "fruit.csv"),
        ("images", "pictures/disc/000.png"),
        ("anomaly", "windows.csv"),
    ],
)
def test_init_writes_a_job_that_plays_right_away(kind, made, tmp_path, capsys):
    folder = tmp_path / "mine"
    assert cli.main(["init", kind, "--out", str(folder)]) == 0
    then = capsys.readouterr().out.splitlines()[-1].split()
    assert str(folder / "job.yaml") in (folder / "README.md").read_text()
    assert validate(folder / "job.yaml") == []
    assert then[:4] == ["edgeveil", "run", str(folder / "job.yaml"), "--simulate"]
    out = tmp_path / "out"
    assert cli.main([*then[1:4], "--out", str(out), "--devices", "6", "--no-reference"]) == 0
    assert leading(json.loads((out / "result.json").read_bytes())["final"])[1] > 0.8
    assert cli.main(["predict", str(out / "model.onnx"), str(folder / made), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["predictions"]
    assert {"apple", "normal", "disc"} & {one["name"] for one in told}


def test_init_writes_the_same_each_time_and_over_nothing(tmp_path, capsys):
    init_job.write("anomaly", tmp_path / "a")
    init_job.write("anomaly", tmp_path / "b")
    one, other = ((tmp_path / name / "windows.csv").read_bytes() for name in "ab")
    assert one == other
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "windows.csv").write_text("mine")
    assert cli.main(["init", "anomaly", "--out", str(tmp_path / "c")]) == 2
    assert [one.name for one in (tmp_path / "c").iterdir()] == ["windows.csv"]
    assert (tmp_path / "c" / "windows.csv").read_text() == "mine"


# --- doctor ---


def test_doctor_finds_nothing_wrong_where_tests_pass(capsys):
    assert cli.main(["check", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    areas = {one["area"] for one in told["findings"]}
    assert areas == {"versions", "uses", "processor", "broker", "room", "network", "clock"}


def test_doctor_ends_with_1_where_something_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(doctor.time, "time", lambda: 0.0)
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: "/proc/none")
    assert cli.main(["check"]) == 1
    assert len(re.findall(r"^ *✗", capsys.readouterr().out, re.MULTILINE)) == 2


def test_every_use_is_an_extra_with_a_purpose():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert set(doctor.USES) - {"lab"} == set(extras) - {"dev", "all", "fuzz", "s3-tests"}
