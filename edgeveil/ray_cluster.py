"""Optional Ray: import, address check, connection. `where` is the key that errors name."""

from __future__ import annotations

import os
import socket
from typing import Any

from edgeveil.errors import UsageError

DIAL_S = 5.0


class ClusterAway(UsageError):  # noqa: N818 - as StoreAway
    """The cluster's address does not answer; a retry may succeed."""


def imported_ray(where: str) -> Any:
    """Import Ray with usage reports off. Raises UsageError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        fix = "pip install 'edgeveil[ray]'"
        raise UsageError("Ray is not installed", where=where, fix=fix) from None
    return ray


def check_cluster(address: str | None, where: str) -> None:
    """Raise ClusterAway if the address does not answer, UsageError if it is malformed."""
    if address in (None, "auto"):
        return
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    fix = "write HOST:PORT of a head that `ray start --head` started, or leave it out"
    try:
        socket.create_connection((host.strip("[]"), int(port)), DIAL_S).close()
    except OSError as error:
        what = f"no Ray cluster answers at {address} ({brief(error)})"
        raise ClusterAway(what, where=where, fix=fix) from None
    except (ValueError, OverflowError) as error:
        what = f"{address} is no address of a Ray cluster ({brief(error)})"
        raise UsageError(what, where=where, fix=fix) from None


def join_cluster(address: str | None, where: str, processors: int | None = None) -> Any:
    """Return Ray, connected; `address` None starts a local one. Raises ClusterAway, UsageError."""
    ray = imported_ray(where)
    check_cluster(address, where)
    own = {"include_dashboard": False, "num_cpus": processors} if address is None else {}
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
            **own,
        )
    except (ConnectionError, ValueError, TimeoutError) as error:
        fix = "start one with `ray start --head`, or leave the address out"
        what = f"no Ray cluster answers ({brief(error)})"
        raise ClusterAway(what, where=where, fix=fix) from None
    except (RuntimeError, ray.exceptions.RayError) as error:
        fix = "install the same Ray and Python as the cluster's, and give it the cluster's token"
        what = f"this Ray cannot be used ({brief(error)})"
        raise UsageError(what, where=where, fix=fix) from None
    return ray


def brief(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
