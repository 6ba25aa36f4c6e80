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


def test_records_that_learning_drops_are_counted_and_what_does_not_fit_is_told(folder, capsys):
    def checked(x, y):
        np.savez(folder / "own.npz", x=x, y=y)
        code = data_check(folder / "edge.yaml", folder / "job.yaml")
        return code, capsys.readouterr().out

    x = np.ones((4, 4))
    code, shown = checked(x, [0, 1, 2, 2])
    assert code == 0 and "0: 1, 1: 1, 2: 2" in shown and "4 usable" in shown
    x[0, 0], x[1, 0] = np.nan, 99
    code, shown = checked(x, [0, 1, 7, 2])
    assert code == DataError.exit_code
    for figure in ("2 usable", "1 records hold NaN", "1 labels are outside", "input_scale"):
        assert figure in shown
    job = JOB.replace("source: digits", "source: meters").replace("[4]", "[8, 8]")
    (folder / "job.yaml").write_text(job)
    code, shown = checked(np.ones((4, 4)), [0, 1, 2, 2])
    assert code == DataError.exit_code and "'meters'" in shown and "(8, 8)" in shown
    assert not (folder / "state").exists()  # a check makes nothing


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


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("csv, path: own.csv", 1),
        ("csv, path: own.csv, header: true", 1),
        ("images, path: ., images: {size: [2, 2]}", 2),
    ],
)
def test_forms_that_a_device_would_decline_are_refused(folder, data, code):
    site = SITE.format().replace("npz, path: own.npz", data)
    (folder / "edge.yaml").write_text(site)
    (folder / "own.csv").write_text("1,2,3,4,0\n")
    assert data_check(folder / "edge.yaml") == code
