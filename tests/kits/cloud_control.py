"""A cloud's control without its machine and its broker: what it says of submitted jobs."""

from __future__ import annotations

from edgeveil_cloud.broadcasts import BroadcastLimits
from edgeveil_cloud.control import Control
from edgeveil_cloud.host import CloudHost
from edgeveil_cloud.store import Store


def idle_control(store: Store, *, python_models: bool = False) -> Control:
    """A control that queues jobs and runs none."""
    host = CloudHost(store, None, BroadcastLimits(4096))
    return Control(store, host, None, None, python_models=python_models)  # type: ignore[arg-type]
