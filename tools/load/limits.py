"""What one machine allows: open files and outgoing ports."""

from __future__ import annotations

import resource
from pathlib import Path

from fl_core.errors import UsageError

_SPARE_FILES = 100
_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def raise_files_limit() -> int:
    """Raise the soft limit of open files to the hard one; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def check_files(connections: int, limit: int) -> None:
    """Raise UsageError unless a process may hold so many connections."""
    needed = connections + _SPARE_FILES
    if resource.RLIM_INFINITY != limit < needed:
        raise UsageError(
            f"{connections} connections need {needed} open files, {limit} are allowed",
            where="ulimit -n",
            fix=f"raise the hard limit (ulimit -Hn {needed}), or play fewer devices",
        )


def check_ports(connections: int) -> None:
    """Raise UsageError unless the system has a port for each connection to one broker."""
    try:
        low, high = (int(word) for word in _PORT_RANGE.read_text("ascii").split())
    except (OSError, ValueError):
        return
    if connections > high - low + 1:
        raise UsageError(
            f"{connections} connections to one broker need as many ports, there are"
            f" {high - low + 1}",
            where=str(_PORT_RANGE),
            fix="widen it (sysctl net.ipv4.ip_local_port_range='1024 65535'),"
            " or play the rest from another host",
        )
