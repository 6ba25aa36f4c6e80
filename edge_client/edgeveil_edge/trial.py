"""A job's trial on a device: whether it can be played here, and how long an answer takes.

Made-up records alone: what comes of it is the same for all records that a device may hold.
"""

from __future__ import annotations

from edgeveil.data.records import MAX_BYTES, require_room
from edgeveil.jobs.rehearsal import rehearse_device
from edgeveil.sites.edge import EdgeSite
from edgeveil_edge.computation import TaughtJob

_WARM_RECORDS = 8
_TRIES = 3  # the least counts: what the box can do, whatever else it did meanwhile


def tried(job: TaughtJob, site: EdgeSite, *, trains: bool) -> float:
    """Seconds that the longest answer of a round takes, and the one without records before it.

    With as many records as the job takes a device to hold. Raises DataError, PrivacyError or
    ProtocolError with the reason why the job cannot be done here.
    """

    def play(records: int) -> float:
        return rehearse_device(
            job.plan,
            job.graph,
            trains=trains,
            records=records,
            processor=site.device,
            memory_bytes=site.limits.memory_bytes,
        )

    data = job.plan.job.data
    records = data.nominal_records
    require_room((records, *data.input_shape), 4, MAX_BYTES, "data.nominal_records")
    play(min(records, _WARM_RECORDS))  # loads what is used from now on
    return min(play(records) for _ in range(_TRIES)) + min(play(0) for _ in range(_TRIES))
