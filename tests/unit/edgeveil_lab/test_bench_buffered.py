"""The table of `python -m edgeveil_lab.bench.buffered`."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from edgeveil_lab.bench import buffered


def test_accuracies_stand_beside_the_largest_classs_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def played(*_: Any) -> tuple[tuple[float, ...], dict[str, Any]]:
        return (60.0, 0.05, 0.8, 1.0), {"largest_class_rate": 0.1}

    monkeypatch.setattr(buffered, "played", played)
    monkeypatch.setattr(logging, "disable", lambda: None)
    buffered.main()
    told = " ".join(capsys.readouterr().out.split())
    assert "lowest accuracy: 0.050 (always the largest class 0.100, and the model is worse)" in told
