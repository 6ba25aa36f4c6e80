"""`edgeveil check`: the owner's console shows what learning would drop."""

import numpy as np
import pytest

from edgeveil.errors import DataError
from edgeveil_tools.cli import main

SITE = """
edge:
  name: box
  broker: {url: mqtt://127.0.0.1:1883}
  state_dir: state
  cloud_key_file: cloud.pub
  proxy_key_file: proxy.pub
  data: {name: digits, source: npz, path: own.npz}
"""
JOB = """
job: check
data: {source: digits, classes: 3, input_shape: [4], nominal_records: 10}
features: [{name: identity, input_scale: 16}]
train: {method: fm}
privacy: {epsilon: 8, delta: 1.0e-5}
"""


@pytest.fixture
def checked(tmp_path, capsys):
    """Check a site and a job, or the site alone: exit code and output."""

    def run(site=SITE, job=JOB):
        files = {"edge.yaml": site, "job.yaml": job}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        code = main(["check", *(str(tmp_path / name) for name, text in files.items() if text)])
        return code, capsys.readouterr().out

    return run


def test_records_that_learning_drops_are_counted_and_what_does_not_fit_is_named(checked, tmp_path):
    def of(x, y, **options):
        np.savez(tmp_path / "own.npz", x=x, y=y)
        return checked(**options)

    x = np.ones((4, 4))
    code, shown = of(x, [0, 1, 2, 2])
    assert code == 0 and "0: 1, 1: 1, 2: 2" in shown and "4 usable" in shown
    job = JOB.replace("source: digits", "source: meters").replace("[4]", "[8, 8]")
    code, shown = of(x, [0, 1, 2, 2], job=job)
    assert code == DataError.exit_code and "'meters'" in shown and "(8, 8)" in shown
    x[0, 0], x[1, 0] = np.nan, 99
    code, shown = of(x, [0, 1, 7, 2])
    assert code == DataError.exit_code
    for figure in ("2 usable", "1 records hold NaN", "1 labels are outside", "input_scale"):
        assert figure in shown
    assert not (tmp_path / "state").exists()  # a check makes nothing


def test_lines_out_of_form_are_named_without_their_content(checked, tmp_path):
    bad = ["1,secret,3,4,1", "1,2", "1,2,3,4,2.5", "1,2,3,4,"]
    (tmp_path / "o").write_text("\n".join(["a,b,c,d,label", "1,2,3,4,0", *bad, *["1,2"] * 20]))
    code, shown = checked(SITE.replace("npz, path: own.npz", "csv, header: true, path: o"))
    assert code == DataError.exit_code
    assert "25 records of shape (4,), 1 usable" in shown
    for text in ("o:3: column 2", "o:4: 2 columns", "o:5: the label", "23 labels are outside"):
        assert text in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ("csv, path: own.csv", 1),
        ("csv, path: own.csv, header: true", 1),
        ("images, path: ., images: {size: [2, 2]}", 2),
    ],
)
def test_forms_that_a_device_would_decline_are_refused(checked, tmp_path, data, code):
    (tmp_path / "own.csv").write_text("1,2,3,4,0\n")
    assert checked(SITE.replace("npz, path: own.npz", data), "")[0] == code


def test_persons_are_counted_for_the_owner(checked, tmp_path):
    rows = [f"{k},{who},ok" for k, who in enumerate(["Ann"] * 5 + ["Bob", "", "?", "Ann "])]
    (tmp_path / "o").write_text("\n".join(["a,who,state", *rows]))
    schema = "origin: public, label: {column: state, classes: [ok, ill]}, missing: ['?'],"
    schema += " columns: [{name: a, number: [0, 9]}]"
    data = f"data: {{source: digits, person: who, nominal_records: 10, schema: {{{schema}}}}}"
    job = JOB.replace(JOB.splitlines()[2], data)
    site = SITE.replace("npz, path: own.npz", "csv, header: true, path: o")
    shown = checked(site, job)[1]
    assert "3 persons, the largest has 6 records" in shown
    assert "set privacy.unit: person" in shown and "Ann" not in shown
