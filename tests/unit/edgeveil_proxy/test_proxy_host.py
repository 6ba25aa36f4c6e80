"""What the proxy shows: counts, and never which device."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from edgeveil.protocol import effects as fx
from edgeveil.protocol.messages import ExchangeId
from edgeveil.protocol.proxy_rounds import BatchDelivered, RoundDropped, ShuffledBatch, ShuffleRound
from edgeveil.protocol.proxy_uploads import UploadPart
from edgeveil_proxy.role import ProxyHost
from edgeveil_proxy.spool import Spool


@pytest.fixture
def host(tmp_path: Path) -> ProxyHost:
    return ProxyHost(Spool(tmp_path / "spool.sqlite"), list.sort)


def test_every_report_of_the_machine_can_be_logged(
    host: ProxyHost, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "edgeveil.proxy"):
        host.report(fx.Report("devices_online", {"count": 7}))
        host.report(fx.Report("something_new", {"round": 1}))
        host.report(fx.Report("over_the_broker", {"why": "expired"}))
    *quiet, loud = caplog.records
    assert [r.getMessage() for r in quiet] == ["devices_online", "something_new"]
    assert [r.levelno for r in quiet] == [logging.DEBUG] * 2
    assert (loud.levelno, vars(loud)["why"]) == (logging.WARNING, "expired")


def test_it_stores_at_once_and_does_the_spool_s_work(tmp_path: Path) -> None:
    path = tmp_path / "spool.sqlite"
    turned: list[list[int]] = []
    host = ProxyHost(Spool(path), turned.append)
    assert host.perform("anything") == fx.WorkFailed("no_such_work")
    at = ExchangeId(b"J" * 16, 1, 1)
    host.store(UploadPart(at, 0, b"one two "))
    done = host.perform(ShuffleRound(at, (4,), 4, 1, ((0, (0,)), (1, (0,)))))
    assert isinstance(done, ShuffledBatch) and turned == [[0, 4]] and done.counts == (2,)
    host.store(RoundDropped(at))
    host.store(BatchDelivered(at))
    assert Spool(path).load().batches == {}
