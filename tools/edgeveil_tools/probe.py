"""`edgeveil health`: check of a process, with the standard library and YAML only.

A cloud, a proxy and each device answer on a socket in their state folder (`HealthSocket`),
independent of load on their pages; a broker must accept a connection. A check may cost 80 ms of a
processor and 20 MiB, so nothing else is imported here, nor `pathlib` or `argparse`."""

from __future__ import annotations

import json
import os
import socket
import sys

TYPE_CHECKING = False  # `typing` itself costs 5 ms
if TYPE_CHECKING:
    import argparse

SOCKET_FILE = "health.sock"
LOCK_FILE = "process.lock"  # as in transport/process.py
TIMEOUT_S = 5.0
_REPLY_BYTES = 1 << 16
_PATH_BYTES = 103
_PARTIES = ("cloud", "proxy", "edge")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the address to connect to


def quick_health(arguments: list[str]) -> int | None:
    """Return the exit code of `edgeveil health`; None leaves it to the whole command."""
    live = "--live" in arguments
    remaining = [one for one in arguments if one != "--live"]
    if len(remaining) != 2 or remaining[0] != "--config":
        return None
    found = site_values(remaining[1])
    if found is None:
        return None
    return print_problem(problem_of(*found, live=live))


def command(args: argparse.Namespace) -> int:
    """Run `edgeveil health` with `--json`, or for an invalid file."""
    from edgeveil.config.site_files import load_site
    from edgeveil.errors import UsageError
    from edgeveil_tools.cli.common import answer

    found = site_values(str(args.config))
    if found is None:
        load_site(args.config)  # raises the reason
        raise UsageError("has no state_dir or port", where=str(args.config), fix="write it")
    problem = problem_of(*found, live=args.live)
    if not args.json:
        return print_problem(problem)
    return answer(args, [], {"problems": [problem] if problem else []}, ok=not problem)


def print_problem(problem: str | None) -> int:
    """Print the problem, or ok; returns the exit code."""
    print(problem or "ok", file=sys.stderr if problem else sys.stdout)
    return 1 if problem else 0


def site_values(config: str) -> tuple[str, str, int] | None:
    """Return (state folder, host, port) of a site file; a broker's has no folder.

    `state_dir` defaults to the loader's `state/PARTY`. None: the loader must judge the file."""
    import yaml

    try:
        with open(config, encoding="utf-8") as file:  # noqa: PTH123 - pathlib takes 2 MiB
            tree = yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        ((party, values),) = tree.items()
        if party == "broker":
            host, port = values.get("host", "127.0.0.1"), values.get("port", 1883)
            sound = isinstance(host, str) and isinstance(port, int)
            return ("", host, port) if sound else None
        state = values.get("state_dir", f"state/{party}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return None
    if party not in _PARTIES or not isinstance(state, str) or not state:
        return None
    return os.path.join(os.path.dirname(os.path.abspath(config)), state), "", 0  # noqa: PTH100, PTH118, PTH120


def problem_of(state_dir: str, host: str, port: int, *, live: bool = False) -> str | None:
    """Return the problem or None; if `live`, only one that a restart would fix."""
    return _listens(host, port) if not state_dir else _answers(state_dir, live)


def _listens(host: str, port: int) -> str | None:
    try:
        socket.create_connection((_EVERYWHERE.get(host, host), port), TIMEOUT_S).close()
    except OSError as error:
        return f"no process listens on port {port}: {error.strerror or error}"
    return None


def _answers(state_dir: str, live: bool) -> str | None:
    try:
        reply = json.loads(_reply(state_dir))
        status, parts, alive = reply["status"], reply.get("reasons", {}), reply.get("live", True)
    except (FileNotFoundError, ConnectionRefusedError):
        if not _is_locked(state_dir):
            return "does not run"
        return None if live else "is starting"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"does not answer: {error}"
    if alive if live else status == "ok":
        return None
    return "degraded: " + ", ".join(f"{part} ({why})" for part, why in parts.items())


def _reply(state_dir: str) -> bytes:
    path, folder = os.path.join(state_dir, SOCKET_FILE), -1  # noqa: PTH118
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(TIMEOUT_S)
        try:
            if len(os.fsencode(path)) > _PATH_BYTES:  # longer than a socket's address may be
                folder = os.open(state_dir, os.O_RDONLY | os.O_DIRECTORY)
                path = f"/proc/self/fd/{folder}/{SOCKET_FILE}"
            asked.connect(path)
        finally:
            if folder >= 0:
                os.close(folder)
        found = b""
        while (piece := asked.recv(4096)) and len(found) < _REPLY_BYTES:
            found += piece
        return found


def _is_locked(state_dir: str) -> bool:
    """Return whether a process has locked this state folder."""
    import fcntl

    try:
        descriptor = os.open(os.path.join(state_dir, LOCK_FILE), os.O_RDONLY)  # noqa: PTH118
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
