"""What cannot be is said before anything starts, with the number and the way out."""

from __future__ import annotations

import resource

import pytest

from edgeveil.errors import UsageError
from edgeveil_lab.load import command
from edgeveil_lab.load.command import check_files, check_ports


def test_too_few_open_files():
    check_files(900, 1000)
    check_files(10**6, resource.RLIM_INFINITY)
    with pytest.raises(UsageError, match=r"901 connections need 1001 open files, 1000") as caught:
        check_files(901, 1000)
    assert "ulimit -Hn 1001" in caught.value.fix


def test_too_few_ports(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_PORT_RANGE", tmp_path / "range")
    check_ports(10**9)  # unknown here
    (tmp_path / "range").write_text("32768\t60999\n")
    check_ports(28232)
    with pytest.raises(UsageError, match="there are 28232") as caught:
        check_ports(28233)
    assert "another host" in caught.value.fix
