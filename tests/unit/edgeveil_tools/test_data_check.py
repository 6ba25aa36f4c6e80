"""`edgeveil check`: the owner's console tells what learning would drop."""

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil_tools.cli import main

SITE = """
edge:
  name: box
  broker: {{url: mqtt://127.0.0.1:1883}}
  state_dir: state
  cloud_key_file: cloud.pub
  proxy_key_file: proxy.pub
  data: {{name: digits, source: npz, path: own.npz}}
"""

JOB = """
job: check
data: {source: digits, classes: 3, input_shape: [4], nominal_records: 10}
features: [{name: identity, input_scale: 16}]
train: {method: fm}
privacy: {epsilon: 8, delta: 1.0e-5}
"""


def data_check(site, *jobs):
    return main(["check", str(site), *map(str, jobs)])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "edge.yaml").write_text(SITE.format())
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


def test_good_records(folder, capsys):
    np.savez(folder / "own.npz", x=np.ones((6, 4)), y=[0, 1, 2, 0, 1, 2])
    assert data_check(folder / "edge.yaml", folder / "job.yaml") == 0
    shown = capsys.readouterr().out
    assert "6 records of shape (4,), 6 usable" in shown
    assert "0: 2, 1: 2, 2: 2" in shown
    assert not (folder / "state").exists()  # a check makes nothing


def test_records_that_learning_drops_are_counted(folder, capsys):
    x = np.ones((4, 4))
    x[0, 0], x[1, 0] = np.nan, 99
    np.savez(folder / "own.npz", x=x, y=[0, 1, 7, 2])
    assert data_check(folder / "edge.yaml", folder / "job.yaml") == DataError.exit_code
    shown = capsys.readouterr().out
    assert "2 usable" in shown
    for text in ("1 records hold NaN", "1 labels are outside", "input_scale"):
        assert text in shown


def test_a_job_of_another_data_set_and_shape_is_said(folder, capsys):
    job = folder / "job.yaml"
    job.write_text(JOB.replace("source: digits", "source: meters").replace("[4]", "[8, 8]"))
    np.savez(folder / "own.npz", x=np.ones((4, 4)), y=[0, 1, 2, 2])
    assert data_check(folder / "edge.yaml", job) == DataError.exit_code
    shown = capsys.readouterr().out
    assert "'meters'" in shown
    assert "(8, 8)" in shown


def test_lines_out_of_form_are_named_without_what_they_hold(folder, capsys):
    (folder / "edge.yaml").write_text(
        SITE.format().replace("npz, path: own.npz", "csv, header: true, path: o")
    )
    bad = ["1,secret,3,4,1", "1,2", "1,2,3,4,2.5", "1,2,3,4,"]
    (folder / "o").write_text("\n".join(["a,b,c,d,label", "1,2,3,4,0", *bad, *["1,2"] * 20]))
    assert data_check(folder / "edge.yaml", folder / "job.yaml") == DataError.exit_code
    shown = capsys.readouterr().out
    assert "25 records of shape (4,), 1 usable" in shown
    for text in ("o:3: column 2", "o:4: 2 columns", "o:5: the label", "and 14 more"):
        assert text in shown
    assert "24 labels are outside" not in shown  # line 2 has a label
    assert "23 labels are outside" in shown
    assert "secret" not in shown


def test_forms_that_a_device_would_decline_are_said_with_what_to_write(folder, capsys):
    site = SITE.format()
    for data, text in (
        ("csv, path: own.csv", "write header: true where the first line names the columns"),
        ("csv, path: own.csv, header: true", "write a first line that names every column"),
    ):
        (folder / "edge.yaml").write_text(site.replace("npz, path: own.npz", data))
        (folder / "own.csv").write_text("1,2,3,4,0\n")
        assert data_check(folder / "edge.yaml") == 1
        assert text in capsys.readouterr().out
    images = "images, path: ., images: {size: [2, 2]}"
    (folder / "edge.yaml").write_text(site.replace("npz, path: own.npz", images))
    assert data_check(folder / "edge.yaml") == 2
    assert "add classes: [cat, dog]" in capsys.readouterr().out
