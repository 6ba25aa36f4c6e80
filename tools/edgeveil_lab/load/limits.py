"""What one machine allows: open files and outgoing ports."""

from __future__ import annotations

import os
import resource
import socket
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil_lab.load.options import LoadOptions, option_of

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


def check_address(listen: tuple[str, int]) -> None:
    """Raise UsageError unless generators can be taken at this host and port."""
    host, port = listen
    if port == 0:
        return
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UsageError(
            f"cannot be listened at ({os.strerror(error.errno or 0)})",
            where=f"--listen {host}:{port}",
            fix="name an address of this machine and a free port",
        ) from None


def check_readable(options: LoadOptions) -> None:
    """Raise UsageError for a file among the options that cannot be read."""
    for key in ("ca", "cert", "key", "password_file", "fleet"):
        path: Path | None = getattr(options, key)
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({error.strerror})",
                where=option_of(key),
                fix="name a file that you may read",
            ) from None
