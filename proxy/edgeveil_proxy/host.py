"""What the proxy's process does for its machine: keep, and show how things stand."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from edgeveil.protocol import effects as fx
from edgeveil.protocol.proxy_tasks import KeepBroadcast, ShuffleRound
from edgeveil_proxy.shuffle import Shuffle
from edgeveil_proxy.spool import Spool

LOG = logging.getLogger("edgeveil.proxy")


class ProxyHost:
    """Stores what the machine says and gathers its reports for the status page."""

    def __init__(self, spool: Spool, shuffle: Shuffle) -> None:
        self._spool, self._shuffle = spool, shuffle
        self.online = 0
        self.round: dict[str, Any] = {}

    def store(self, item: object) -> None:
        """Durable before the next effect."""
        self._spool.store(item)

    def together(self) -> AbstractContextManager[None]:
        """One transaction of the spool."""
        return self._spool.together()

    def perform(self, task: object) -> object:
        """Work on the spool's files, off the event loop."""
        match task:
            case KeepBroadcast():
                return self._spool.keep(task)
            case ShuffleRound():
                return self._spool.shuffled(task, self._shuffle)
        return fx.WorkFailed("no_such_work")

    def report(self, report: fx.Report) -> None:
        """Counts only; a device's id is never among them."""
        data: Mapping[str, Any] = report.data
        if report.what == "devices_online":
            self.online = int(data["count"])
        elif report.what == "round_open":
            self.round = {"index": data["round"], "phase": data["phase"], "uploads": 0}
        elif report.what == "answered":
            self.round = {**self.round, **data, "index": data["round"]}
        LOG.debug(report.what, extra=dict(data))
