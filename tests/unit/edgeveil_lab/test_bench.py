"""The bench: figures of a real row, an unmeasured peer that passes nothing, unknown rows."""

import json

import pytest

from edgeveil_lab import bench


def test_a_row_is_measured_and_a_peer_that_is_not_installed_has_no_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "find_spec", lambda _name: None)
    monkeypatch.setattr("sys.argv", ["bench", "--repeats", "2", "--out", str(tmp_path), "start"])
    assert bench.main() == 0
    [row] = json.loads((tmp_path / "bench.json").read_text())["rows"].values()
    assert row["peer"] is None
    for one in row["ours"].values():
        assert 0 < one["least"] <= one["median"] <= one["most"]
    [*_, first, missing] = (tmp_path / "bench.md").read_text().splitlines()
    assert first.endswith("| 0.5 s | – |") and missing.endswith("| 0.3 s | – |")


def test_a_peer_is_divided_by_ours():
    spread = {"median": 2.0, "least": 1.0, "most": 3.0}
    row = {"what": "step", "to_reach": "0.7 of it", "ours": {"ms": spread}, "peer": spread}
    assert bench.table({"rows": {"step": row}}).splitlines()[2].endswith("| 2: 1.00 |")


def test_an_unknown_row_is_named(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "rounds"])
    with pytest.raises(SystemExit) as stop:
        bench.main()
    assert stop.value.code == 2 and "rounds" in capsys.readouterr().err
