"""Where the segments of a batch are opened: in the cloud's own process, its workers, or on Ray."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from edgeveil.ray_cluster import ClusterAway
from edgeveil_cloud.compute.processes import BatchFile, ComputeError, WorkerProcesses

if TYPE_CHECKING:  # a worker needs no site file
    from edgeveil.sites.cloud import ComputeAt

__all__ = ["BatchFile", "ComputeError", "WorkerProcesses", "workers_of"]

LOG = logging.getLogger("edgeveil.cloud")


def workers_of(at: ComputeAt) -> WorkerProcesses | None:
    """What a site file asks for; None: the cloud's own process.

    Raises UsageError where Ray is not installed or another one than the cluster's. A cluster that
    does not answer is waited for when there is work for it.
    """
    if not at.workers:
        return None
    if at.engine == "local":
        return WorkerProcesses(at.workers, least_bytes=at.least_bytes)
    pool = WorkerProcesses(at.workers, on_ray=True, address=at.address, least_bytes=at.least_bytes)
    try:
        pool.start()
    except ClusterAway as error:
        LOG.warning("compute_away", extra={"reason": str(error)})
    except BaseException:
        pool.close()
        raise
    return pool
