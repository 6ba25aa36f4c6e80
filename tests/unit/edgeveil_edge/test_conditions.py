"""Power and load: when the box may work now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeveil.sites.edge import Conditions
from edgeveil_edge.consent import on_power, why_not_now


def supplies(folder: Path, **kinds: tuple[str, str]) -> Path:
    for name, (kind, online) in kinds.items():
        (folder / name).mkdir()
        (folder / name / "type").write_text(kind + "\n")
        if online:
            (folder / name / "online").write_text(online + "\n")
    return folder


def test_mains_and_battery(tmp_path: Path) -> None:
    folder = supplies(tmp_path, AC=("Mains", "1"), BAT0=("Battery", ""))
    assert on_power(folder)
    (folder / "AC" / "online").write_text("0\n")
    assert not on_power(folder)
    supplies(folder, usb=("USB", "1"))
    assert on_power(folder)


def test_a_battery_that_says_online_is_no_mains(tmp_path: Path) -> None:
    assert not on_power(supplies(tmp_path, BAT0=("Battery", "1")))


def test_a_box_without_a_battery_is_on_mains(tmp_path: Path) -> None:
    assert on_power(tmp_path / "none")
    assert on_power(tmp_path)
    assert on_power(supplies(tmp_path, AC=("Mains", "0")))


def test_odd_entries_are_no_error(tmp_path: Path) -> None:
    folder = supplies(tmp_path, BAT0=("Battery", ""), odd=("Mains", ""))
    (folder / "bare").mkdir()
    (folder / "odd" / "online").write_bytes(b"\xff\xfe")
    assert not on_power(folder)


def test_power_is_asked_for_only_where_the_owner_says_so(tmp_path: Path) -> None:
    folder = supplies(tmp_path, BAT0=("Battery", ""))
    assert why_not_now(Conditions(), folder) == ""
    assert "require_power" in why_not_now(Conditions(require_power=True), folder)
    supplies(folder, AC=("Mains", "1"))
    assert why_not_now(Conditions(require_power=True), folder) == ""


def test_the_load_is_per_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    limit = Conditions(max_load=0.5)
    for load, busy in ((1.9, False), (2.1, True)):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 9.0, 9.0))
        assert bool(why_not_now(limit, tmp_path)) is busy
    assert "conditions.max_load 0.5" in why_not_now(limit, tmp_path)
    assert why_not_now(Conditions(), tmp_path) == ""
