"""What a device lacks is said before a round finds out, with the fix."""

import errno
import os
from dataclasses import replace

import pytest

from edgeveil_edge.self_check import LEAST_MEMORY_BYTES, BoxFacts, self_check
from edgeveil_tools.cli import main
from tests.unit.edgeveil_edge.edge_kit import site

NOW_S = 1_800_000_000.0
WELL = BoxFacts(
    now_s=lambda: NOW_S,
    installed=lambda _library: True,
    free_bytes=lambda _folder: 1 << 40,
    memory_bytes=lambda: 1 << 36,
)


@pytest.mark.parametrize(
    ("lacks", "said"),
    [
        ({"installed": lambda library: library != "onnxruntime"}, "edgeveil[infer]"),
        ({"installed": lambda library: library != "torch"}, "edgeveil[train]"),
        ({"now_s": lambda: 0.0}, "the clock says 1970-01-01"),
        ({"free_bytes": lambda _folder: 511 << 20}, "511 MiB are free, a round may take 512 MiB"),
        ({"memory_bytes": lambda: LEAST_MEMORY_BYTES // 2}, "128 MiB are available"),
    ],
)
def test_each_want_is_said_alone(tmp_path, lacks, said):
    box = site(tmp_path, policy={"min_devices": 3, "allowed_methods": ("fm", "dp_sgd")})
    assert self_check(box, WELL) == []
    (only,) = self_check(box, replace(WELL, **lacks))
    assert said in only


def test_a_box_that_cannot_be_asked_is_no_end(tmp_path):
    def without_proc():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/meminfo")

    (only,) = self_check(site(tmp_path), replace(WELL, memory_bytes=without_proc))
    assert "/proc/meminfo: how much room there is cannot be measured" in only


def test_a_clock_behind_the_device_s_own_files_is_not_believed(tmp_path):
    (tmp_path / "ledger.sqlite").touch()
    os.utime(tmp_path / "ledger.sqlite", (NOW_S, NOW_S + 86401))
    assert "before this device's own files" in self_check(site(tmp_path), WELL)[0]
    os.utime(tmp_path / "ledger.sqlite", (NOW_S, NOW_S + 86399))
    assert self_check(site(tmp_path), WELL) == []


def test_data_that_are_not_there_or_cannot_be_read_are_named(tmp_path):
    path = tmp_path / "own.npz"
    box = site(tmp_path, data={"name": "own", "source": "npz", "path": path})
    assert "is not there" in self_check(box, WELL)[0]
    path.write_bytes(b"no archive")
    assert self_check(box, WELL) == []  # not read at the start
    assert str(path) in self_check(box, WELL, read_records=True)[0]
    assert self_check(site(tmp_path), WELL, read_records=True) == []  # the digits


def of_a_table(folder):
    """A box whose file has no line that names the columns, and a job that names them itself."""
    (folder / "rows.csv").write_text("39, Private, no\n50, Self, yes\n")
    (folder / "edge.yaml").write_text(
        f"""edge:
  name: kitchen
  broker: {{url: "mqtt://127.0.0.1:1"}}
  state_dir: {folder}
  cloud_key_file: {folder}/cloud.pub
  proxy_key_file: {folder}/proxy.pub
  data: {{name: people, source: csv, path: {folder}/rows.csv, header: false}}
"""
    )
    (folder / "job.yaml").write_text(
        """job: people
data:
  source: people
  nominal_records: 100
  schema:
    origin: public
    label: {column: rich, classes: ["no", "yes"]}
    header: [age, work, rich]
    columns: [{name: age, number: [0, 100]}, {name: work, category: [Private, Self]}]
features: [{name: identity}]
train: {method: fm, rounds: 2}
unsupervised: {eval_type: NOT_EVAL}
privacy: {epsilon: 8}
"""
    )


def test_a_file_that_only_a_job_s_schema_reads_is_read_with_that_job(tmp_path, capsys):
    of_a_table(tmp_path)
    line = ["check", str(tmp_path / "edge.yaml")]
    assert main(line) == 1
    assert "data.schema may read it: name the job's file too" in capsys.readouterr().out
    assert main([*line, str(tmp_path / "job.yaml")]) == 0
    assert "2 records of shape" in capsys.readouterr().out
    (tmp_path / "job.yaml").write_text(
        (tmp_path / "job.yaml").read_text().replace("source: people", "source: others")
    )
    assert main([*line, str(tmp_path / "job.yaml")]) == 4
    assert "would sit the job out" in capsys.readouterr().out
