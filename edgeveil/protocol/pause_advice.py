"""What to do before a paused job is resumed, by what stood in its way."""

from __future__ import annotations

_AWAY = (
    "look at the devices (the proxy's /status counts those online); a job submitted anew "
    "may give them more time (round.deadline_s) or attempts (round.retries)"
)
_PROXY = "look at the proxy's log"
# A part of the reason -> what to do. The first that is found.
_ADVICE = (
    ("cache_full", "wait for other jobs to end, or raise limits.cache_bytes at the proxy"),
    ("spool_full", "make room at the proxy, or raise its limits.spool_bytes"),
    ("spool_too_small_for_cover", "raise limits.spool_bytes at the proxy"),
    ("closed_job", "the proxy has closed this job: cancel it and submit it anew"),
    (
        "selected_below_floor",
        "the proxy's min_batch_floor is above what the job selects: submit the job anew with more "
        "devices a round, or lower the floor",
    ),
    ("forked_manifest", "cloud and proxy disagree on what was sent: look at both logs"),
    ("refused the broadcast", _PROXY),
    ("did not answer in time", "see that the proxy runs and that both reach their broker"),
    ("limits.spool_bytes is", "raise limits.spool_bytes at the cloud and start it again"),
    ("below the minimum", _AWAY),
    ("valid upload", f"see what the devices' consoles say; {_AWAY}"),
    ("no device answered", _AWAY),
    ("the disk cannot be used", "make room in the cloud's state_dir, or mend its rights"),
)
RESUME = "then: edgeveil job resume "
OTHERWISE = "mend what stands here, or see the cloud's log"


def advice(reason: str) -> str:
    """The next step in words; for a reason that none is known for, where to look."""
    return next((what for part, what in _ADVICE if part in reason), OTHERWISE)
