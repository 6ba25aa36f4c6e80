"""Whether a party's process does its work, asked beside it: for health checks of containers."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path

from edgeveil.sites.broker import BrokerSite
from edgeveil.sites.cloud import CloudSite
from edgeveil.sites.edge import EdgeSite
from edgeveil.sites.proxy import ProxySite
from edgeveil.transport.process import LOCK_FILE
from edgeveil_tools.cloud_client import HttpAddress, own_address

TIMEOUT_S = 5.0
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where it is asked instead


def problem_of(site: CloudSite | ProxySite | EdgeSite | BrokerSite) -> str | None:
    """What is wrong, or None: pages that say so, a broker that listens, a device that runs."""
    if isinstance(site, BrokerSite):
        return _listens(site.host, site.port)
    if isinstance(site, EdgeSite):
        return None if _held(site.state_dir) else "the device does not run"
    if site.http.tls is not None:  # it may answer known clients alone
        return _listens(site.http.host, site.http.port)
    return _page(own_address(site.http))


def _listens(host: str, port: int) -> str | None:
    try:
        socket.create_connection((_EVERYWHERE.get(host, host), port), TIMEOUT_S).close()
    except OSError as error:
        return f"nobody listens on port {port}: {error.strerror or error}"
    return None


def _held(state_dir: Path) -> bool:
    """Whether a process has this state folder for itself."""
    try:
        descriptor = os.open(state_dir / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _page(address: str) -> str | None:
    connection = HttpAddress.parse(address).connection(TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        if answer.status == HTTPStatus.OK:
            return None
        parts = _parts(answer.read(1 << 16))
        return f"not well: {', '.join(parts)}" if parts else f"answers {answer.status}"
    except (OSError, HTTPException) as error:
        return f"does not answer at {address}: {error}"
    finally:
        connection.close()


def _parts(raw: bytes) -> list[str]:
    try:
        return [str(part) for part in json.loads(raw)["parts"]]
    except (ValueError, KeyError, TypeError):
        return []
