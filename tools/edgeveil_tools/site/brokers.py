"""A site's brokers: specification, mosquitto or amqtt as a child, and `edgeveil broker`."""

from __future__ import annotations

import atexit
import ctypes
import errno
import json
import logging
import os
import pwd
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from edgeveil.config.addresses import WEBSOCKET_PATH, BrokerAddress, place
from edgeveil.config.broker import BrokerSite, BrokerTls
from edgeveil.errors import BrokerError
from edgeveil.storage import file_stamp, read_private, write_durably
from edgeveil.transport.listener import raise_file_limit
from edgeveil.transport.process import notify_systemd, stop_signals
from edgeveil_tools.site import broker_tied
from edgeveil_tools.site.broker_rules import acl_text, read_users, rules_for

LOG = logging.getLogger("edgeveil.broker")

Engine = Literal["auto", "amqtt", "mosquitto"]

_OTHER_FILES = 64  # of a broker: listeners, log, lists, new connections
START_TIMEOUT_S = 10.0
_AMQTT = "edgeveil_tools.site.broker_amqtt"
_STOP_TIMEOUT_S = 5.0
_TLS_S = 0.2
_SERVER_PORTS = range(22_000, 32_000)
_CHOSEN = deque[int](maxlen=200)  # recent ports, whose servers may not listen yet
_PIDFD_GETFD = 438  # on every architecture
_DEFER_S = 60
_BACKLOG = 4096
_CLOSED_MEANWHILE = (errno.ENOENT, errno.EBADF, errno.ENOTSOCK)


@dataclass(frozen=True)
class BrokerSpec:
    """Settings of a broker; `port` None and `websockets_port` 0 mean a free one.

    `acl` defaults to no access list; `wiretap` adds a user for tests that may read everything."""

    engine: Engine = "auto"
    host: str = "127.0.0.1"
    port: int | None = None
    websockets_port: int | None = None
    acl: Literal["edge", "cloud"] | None = None
    cells: tuple[str, ...] = ("",)
    tls: BrokerTls | None = None
    packet_bytes: int = 65536
    max_queued_bytes: int = 1 << 26
    max_connections: int = 20_000
    wiretap: bool = False


def spec_of(site: BrokerSite, **changes: Any) -> BrokerSpec:
    settings = {key: getattr(site, key) for key in ("engine", "host", "port", "websockets_port")}
    settings |= {"acl": site.acl, "cells": site.cells or ("",), "tls": site.tls}
    return BrokerSpec(**settings | site.limits.model_dump() | changes)


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, mode 0600: a broker may read it at any time."""
    write_durably(path, text.encode(), mode=0o600)


def give(path: Path, text: str) -> bytes:
    """Write a party's secret unless it exists; returns its bytes."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text)
    return path.read_bytes()


def choose_engine(engine: Engine = "auto") -> Literal["amqtt", "mosquitto"]:
    if engine == "amqtt" or (engine == "auto" and not shutil.which("mosquitto")):
        try:
            metadata.version("amqtt")
        except metadata.PackageNotFoundError:
            fix = "install mosquitto, or 'edgeveil[tools]'"
            raise BrokerError("no broker is installed", fix=fix) from None
        return "amqtt"
    if not shutil.which("mosquitto"):
        fix = "install it (apt install mosquitto), or set the engine to amqtt"
        raise BrokerError("mosquitto is not on the PATH", fix=fix)
    return "mosquitto"


def _engine_of(spec: BrokerSpec) -> Literal["amqtt", "mosquitto"]:
    """Return the engine for a broker; raises BrokerError if none fits.

    A WebSocket of mosquitto 2.0 gets 85 KB/s, and over TLS stalls for good at some 600 KB."""
    if spec.tls is not None and spec.tls.ca_file is not None and spec.engine == "auto":
        return choose_engine("mosquitto")
    if spec.engine == "mosquitto":
        if spec.websockets_port is not None and spec.tls is not None:
            fix = "set the engine to amqtt, or leave TLS to a server in front"
            raise BrokerError("mosquitto stalls with WebSockets over TLS", fix=fix)
    elif spec.websockets_port is not None:
        return choose_engine("amqtt")
    return choose_engine(spec.engine)


def free_port(host: str = "127.0.0.1") -> int:
    """Return a free TCP port below those of outgoing connections; raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in secrets.SystemRandom().sample(_SERVER_PORTS, 100):
        if port in _CHOSEN:
            continue
        with suppress(OSError), socket.create_server((host, port), family=family):
            _CHOSEN.append(port)
            return port
    raise OSError(errno.EADDRINUSE, f"no free port on {host}")


def free_ports(count: int) -> list[int]:
    """Return distinct free ports, as recently chosen ones are skipped."""
    return [free_port() for _ in range(count)]


def defer_accepts(pid: int) -> int:
    """Let the kernel hold back silent connections of a child's TCP listeners.

    mosquitto 2.0 keeps a connection without a CONNECT for 90 s, so that idle ones could take all
    its places; `TCP_DEFER_ACCEPT` (tcp(7)) is set on descriptors taken by `pidfd_getfd`. Returns
    the number of listeners; raises OSError if the system cannot do so."""
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    process, deferred = os.pidfd_open(pid), 0
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if path.readlink().name.startswith("socket:"):
                    deferred += _defer(process, int(path.name))
            except OSError as error:
                if error.errno not in _CLOSED_MEANWHILE:
                    raise
    finally:
        os.close(process)
    return deferred


def _defer(process: int, number: int) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    descriptor = int(library.syscall(_PIDFD_GETFD, process, number, 0))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return False
        if not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, _DEFER_S)
        found.listen(_BACKLOG)
        return True


class BrokerProcess:
    """One broker, which ends with its parent; its files are in `directory`.

    Clients log in as `users_file` lists them; without one everyone may connect."""

    def __init__(
        self, spec: BrokerSpec, directory: Path, *, users_file: Path | None = None
    ) -> None:
        self.engine = _engine_of(spec)
        self.port = spec.port or free_port(spec.host)
        self.websockets_port = spec.websockets_port
        while self.websockets_port in (0, self.port):
            self.websockets_port = free_port(spec.host)
        self._spec, self._directory = spec, directory.absolute()
        self._users_file = users_file
        self._log = self._directory / "broker.log"
        self._ports = [p for p in (self.port, self.websockets_port) if p is not None]
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        if self.engine == "amqtt":
            return f"amqtt {metadata.version('amqtt')}"
        shown = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True, check=False)
        return f"mosquitto {(shown.stdout.split() or ['?', '?', '?'])[2]}"

    @property
    def url(self) -> str:
        return BrokerAddress(self._spec.host, self.port, self._spec.tls is not None).url

    @property
    def websockets_url(self) -> str | None:
        if self.websockets_port is None:
            return None
        tls = self._spec.tls is not None
        return BrokerAddress(self._spec.host, self.websockets_port, tls, WEBSOCKET_PATH).url

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def start(self) -> None:
        """Start, and wait at most 10 s for connections; raises BrokerError."""
        self._check_ports()
        self._directory.mkdir(parents=True, exist_ok=True)
        self.refresh_users()
        command = self._mosquitto() if self.engine == "mosquitto" else self._amqtt()
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the parent, which stops it last
            )
        atexit.register(self.stop)
        self._wait_until_open()
        if self.engine == "mosquitto":
            try:
                defer_accepts(self._child.pid)
            except OSError as error:
                LOG.warning("idle_connections_are_taken", extra={"reason": error.strerror})

    def stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        atexit.unregister(self.stop)
        if child.stdin is not None:
            child.stdin.close()
        child.terminate()
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def refresh_users(self) -> None:
        """Reload the users, also while running."""
        if self._users_file is None:
            return
        listed = read_users(self._users_file)
        text = "".join(f"{name}:{hashed}\n" for name, hashed in listed.items())
        write_private(self._directory / "users", text)
        if self.engine == "mosquitto" and self._child is not None and self.running():
            self._child.send_signal(signal.SIGHUP)

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def _check_ports(self) -> None:
        family = socket.AF_INET6 if ":" in self._spec.host else socket.AF_INET
        for port in self._ports:
            try:
                socket.create_server((self._spec.host, port), family=family).close()
            except OSError as error:
                what = f"cannot listen on port {port}: {error.strerror}"
                where, fix = place(self._spec.host, port), "stop who uses it, or set another port"
                raise BrokerError(what, where=where, fix=fix) from None

    def _wait_until_open(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if not self.running():
                break
            try:
                for port in self._ports:
                    socket.create_connection((self._spec.host, port), timeout=1.0).close()
            except OSError:
                time.sleep(0.02)
            else:
                if self._spec.tls is None or self._keeps_running():
                    return
        *_, reason = ["no answer", *self.log.strip().splitlines()]
        self.stop()
        what, where = f"{self.engine} did not start: {reason}", place(self._spec.host, self.port)
        raise BrokerError(what, where=where, fix=f"see {self._log}")

    def _keeps_running(self) -> bool:
        """Return whether it still runs: mosquitto listens before it reads its certificate."""
        with suppress(subprocess.TimeoutExpired):
            if self._child is not None:
                self._child.wait(_TLS_S)
        return self.running()

    def _mosquitto(self) -> list[str]:
        spec, tls = self._spec, self._spec.tls
        anonymous = self._users_file is None and not (tls and tls.ca_file)
        of_listener = [f"max_connections {spec.max_connections}"]
        if tls is not None:
            of_listener += [f"certfile {tls.cert_file}", f"keyfile {tls.key_file}"]
            if tls.ca_file is not None:
                of_listener += [f"cafile {tls.ca_file}", "require_certificate true"]
                if self._users_file is None:
                    of_listener.append("use_identity_as_username true")
            if tls.crl_file is not None:
                of_listener.append(f"crlfile {tls.crl_file}")
        lines = []
        rules = rules_for(spec.acl, spec.cells, wiretap=spec.wiretap)
        if rules is not None:
            write_private(self._directory / "acl", acl_text(rules))
            lines.append(f"acl_file {self._directory / 'acl'}")
        if self._users_file is not None:
            lines.append(f"password_file {self._directory / 'users'}")
        lines += [
            f"listener {self.port} {spec.host}",
            f"allow_anonymous {str(anonymous).lower()}",
            f"user {pwd.getpwuid(os.getuid()).pw_name}",
            "persistence false",
            "retain_available false",
            "sys_interval 0",
            "set_tcp_nodelay true",
            "max_inflight_messages 200",
            "max_queued_messages 100000",
            f"max_queued_bytes {spec.max_queued_bytes}",
            f"max_packet_size {spec.packet_bytes}",
            "log_dest stderr",
            "log_type error",
            "connection_messages false",
            *of_listener,
        ]
        if self.websockets_port is not None:
            lines += [f"listener {self.websockets_port} {spec.host}", "protocol websockets"]
            lines += of_listener
        write_private(self._directory / "mosquitto.conf", "\n".join(lines) + "\n")
        command = ["mosquitto", "-c", str(self._directory / "mosquitto.conf")]
        return [sys.executable, "-I", "-S", broker_tied.__file__, *command]

    def _amqtt(self) -> list[str]:
        spec, tls = self._spec, self._spec.tls
        if tls is not None and tls.ca_file is not None:
            fix = "use mosquitto, or leave ca_file out"
            raise BrokerError("amqtt cannot demand client certificates", fix=fix)
        every: dict[str, Any] = {"max_connections": spec.max_connections}
        if tls is not None:
            every |= {"ssl": True, "certfile": str(tls.cert_file), "keyfile": str(tls.key_file)}
        ports = {"default": ("tcp", self.port), "websockets": ("ws", self.websockets_port)}
        listeners = {  # the library splits at the last colon, and takes no brackets for IPv6
            name: {"type": kind, "bind": f"{spec.host}:{port}", **every}
            for name, (kind, port) in ports.items()
            if port is not None
        }
        users = str(self._directory / "users") if self._users_file is not None else ""
        plugins: dict[str, Any] = {f"{_AMQTT}.UsersPlugin": {"users_file": users}}
        rules = rules_for(spec.acl, spec.cells, wiretap=spec.wiretap)
        if rules is not None:
            listed = [[rule.user or "", rule.access, rule.topic] for rule in rules]
            plugins[f"{_AMQTT}.RulesPlugin"] = {"rules": listed}
        settings = {"listeners": listeners, "plugins": plugins}
        path = self._directory / "amqtt.json"
        write_private(path, json.dumps({"packet_bytes": spec.packet_bytes, "library": settings}))
        return [sys.executable, "-P", "-m", _AMQTT, str(path)]


def run_broker(site: BrokerSite) -> int:
    """Run the broker of a site file until one of `stop_signals`; returns the exit code.

    A changed `users_file` takes effect within two seconds; changed TLS files restart the broker,
    which ends a revoked certificate's connection. Raises BrokerError."""
    os.umask(0o077)  # as of every process that serves (`run_until_stopped`)
    # Refuse connections before files run out, as a broker without any stalls for minutes.
    files = raise_file_limit() - _OTHER_FILES
    if site.tls is not None:
        _check_key(site.tls.key_file)
    spec = spec_of(site, max_connections=min(site.limits.max_connections, files))
    users_file, stop, tls = site.users_file, threading.Event(), site.tls
    tls_files = [tls.cert_file, tls.key_file, tls.ca_file, tls.crl_file] if tls else []
    for number in stop_signals():
        signal.signal(number, lambda *_: stop.set())
    with tempfile.TemporaryDirectory(prefix="edgeveil-broker-") as directory:
        broker = BrokerProcess(spec, Path(directory), users_file=users_file)
        broker.start()
        urls = [url for url in (broker.url, broker.websockets_url) if url is not None]
        sys.stdout.write(f"{broker.name} listens on {' and '.join(urls)}\n")
        sys.stdout.flush()
        notify_systemd("READY=1")
        known, read = file_stamp(users_file), [file_stamp(path) for path in tls_files]
        seen = read
        try:
            while broker.running() and not stop.wait(1.0):
                notify_systemd("WATCHDOG=1")
                if (stamp := file_stamp(users_file)) != known:
                    known = stamp
                    try:
                        broker.refresh_users()
                    except BrokerError as error:  # half edited: keep the known users
                        sys.stderr.write(f"{error}\n")
                before, seen = seen, [file_stamp(path) for path in tls_files]
                if seen != read and seen == before:  # their replacement is complete
                    read = seen
                    _start_anew(broker, spec.tls)
        finally:
            died = not broker.running()
            notify_systemd("STOPPING=1")
            broker.stop()
    if died and not stop.is_set():
        what = f"{broker.engine} ended by itself"
        raise BrokerError(what, where=broker.url, fix="start it again")
    return 0


def _check_key(path: Path) -> None:
    try:
        read_private(path, "private key", BrokerError)
    except OSError as error:
        what = f"this TLS file cannot be read ({error.strerror})"
        raise BrokerError(what, where=str(path), fix="check tls.key_file") from error


def _start_anew(broker: BrokerProcess, tls: BrokerTls | None) -> None:
    if tls is not None and (problem := _problem(tls)):  # half edited: keep the loaded files
        sys.stderr.write(f"{problem}; those before are used. install its newest bundle\n")
        return
    broker.stop()
    broker.start()
    sys.stdout.write(f"{broker.engine} started anew: its certificates or revocations changed\n")
    sys.stdout.flush()


def _problem(tls: BrokerTls) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    path = tls.cert_file
    try:
        context.load_cert_chain(path, tls.key_file, password=b"")
        for path in (one for one in (tls.ca_file, tls.crl_file) if one is not None):
            context.load_verify_locations(path)
    except OSError as error:  # of which ssl.SSLError is one
        return f"{path}: cannot be used ({error.strerror or error})"
    return ""
