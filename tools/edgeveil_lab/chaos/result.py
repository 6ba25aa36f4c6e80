"""The content of `chaos.json`: the schedule, what happened, and what the checks found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from edgeveil_lab.chaos.checks import SHOWN, Checked, rounds_during_faults, warnings
from edgeveil_lab.chaos.course import Course
from edgeveil_lab.chaos.evidence import Evidence


def result_of(
    course: Course, found: Evidence, checked: Sequence[Checked], *, broker: str, workers: int
) -> dict[str, Any]:
    """Plain values for JSON; times in seconds since the run's beginning."""
    asked = course.asked
    facts = course.facts()
    resumed = course.jobs.resumed
    return {
        "ok": all(one.holds for one in checked),
        "seed": asked.seed,
        "kills": asked.kills,
        "every_s": asked.every_s,
        "broker": broker,
        "devices": len(found.devices),
        "workers": workers,
        "up_s": course.up_s,
        "quiet_s": course.quiet_s,
        "seconds": course.state.elapsed_s,
        "faults": dict(Counter(fault.kind for fault in course.faults_done)),
        "touched": dict(facts.touched),
        "disk_by": course.disk_by,
        "rounds_during_faults": rounds_during_faults(found, facts),
        "warnings": warnings(found, facts),
        "processes": _processes(course),
        "links": course.site.relays.counts(),
        "jobs": [
            {
                "id": job.id,
                "status": job.status,
                "reason": job.reason,
                "rounds": len(job.commits),
                "attempts": sum(commit.attempt for commit in job.commits),
                "resumed": resumed[job.id],
            }
            for job in found.jobs
        ],
        "rounds": [
            {
                "job": job.id,
                "round": commit.index,
                "attempt": commit.attempt,
                "uploads": commit.uploads,
                "at_s": commit.committed_s - course.begun_at,
            }
            for job in found.jobs
            for commit in job.commits
        ],
        "receipts": dict(Counter(r.state for device in found.devices for r in device.receipts)),
        "checks": [
            {
                "name": one.name,
                "about": one.about,
                "looked": one.looked,
                "violations": one.violations[:SHOWN],
                "more": max(0, len(one.violations) - SHOWN),
            }
            for one in checked
        ],
        "stalled": course.stalled,
        "schedule": [asdict(fault) for fault in course.faults],
        "ends": [asdict(end) for end in course.site.supervisor.ends],
    }


def _processes(course: Course) -> dict[str, dict[str, int]]:
    """How often each was started, killed, and ended by itself."""
    ends = course.site.supervisor.ends
    counts = Counter((end.name, end.how) for end in ends)
    return {
        name: {
            "starts": sum(end.name == name for end in ends),
            "killed": counts[name, "killed"],
            "by_itself": counts[name, "by itself"],
        }
        for name in course.site.processes
    }
