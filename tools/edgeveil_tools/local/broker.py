"""`edgeveil broker`: one broker of a site, until a signal."""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from pathlib import Path

from edgeveil.errors import BrokerError
from edgeveil.sites.broker import BrokerSite
from edgeveil_tools.site.broker_plan import BrokerPlan, ListenerTls
from edgeveil_tools.site.brokers import BrokerProcess


def run_broker(site: BrokerSite) -> int:
    """Run the broker of a site file until Ctrl-C or SIGTERM; the exit code.

    A changed `users_file` takes effect within two seconds. Raises BrokerError.
    """
    tls = None
    if site.tls is not None:
        tls = ListenerTls(site.tls.cert_file, site.tls.key_file, site.tls.ca_file)
    plan = BrokerPlan(
        engine=site.engine,
        host=site.host,
        port=site.port,
        acl=site.acl,
        tls=tls,
        packet_bytes=site.limits.packet_bytes,
        max_queued_bytes=site.limits.max_queued_bytes,
        max_connections=site.limits.max_connections,
    )
    return _run_until_signal(plan, site.users_file)


def _run_until_signal(plan: BrokerPlan, users_file: Path | None) -> int:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="edgeveil-broker-") as directory:
        broker = BrokerProcess(plan, Path(directory), users_file=users_file)
        broker.start()
        sys.stdout.write(f"{broker.name} listens on {broker.url}\n")
        sys.stdout.flush()
        known = _stamp(users_file)
        try:
            while broker.running() and not stop.wait(1.0):
                if (stamp := _stamp(users_file)) != known:
                    known = stamp
                    _refresh(broker)
        finally:
            died = not broker.running()
            broker.stop()
    if died and not stop.is_set():
        raise BrokerError(
            f"{broker.engine} ended by itself", where=broker.url, fix="start it again"
        )
    return 0


def _refresh(broker: BrokerProcess) -> None:
    try:
        broker.refresh_users()
    except BrokerError as error:  # half edited: the users that were known go on
        sys.stderr.write(f"{error}\n")


def _stamp(path: Path | None) -> tuple[int, int]:
    """Time and size: a file that is emptied and written may keep one time for both."""
    try:
        found = path.stat() if path is not None else None
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_size) if found else (0, 0)
