"""Listening sockets, TCP or Unix, with TLS context and connection limit.

The limit stays well below the process's open files, which broker and stores need too.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import json
import os
import resource
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

from edgeveil.config.addresses import place
from edgeveil.config.links import Http
from edgeveil.errors import SystemFault, UsageError
from edgeveil.storage import read_private

MOST_CONNECTIONS = 256
LEAST_FILES = 256
HANDSHAKE_S = 5.0
WAITING = 128  # backlog of connections that are not accepted yet
_MOST_FILES = 65536
_SHARE = 4  # divisor of the limit of open files
_UNIX_PATH_BYTES = 103  # sun_path without its end, on the systems where it is shortest
_PROBE_S = 1.0
ANSWER_S = 10.0


def raise_file_limit() -> int:
    """Raise and return the limit of open files. Raises UsageError if it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # not permitted: keep it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    found = _files()
    if found < LEAST_FILES:
        what = f"the process may open {found} files, it needs {LEAST_FILES}"
        fix = "raise it: ulimit -n 4096, LimitNOFILE=4096 in a systemd unit"
        raise UsageError(what, where="RLIMIT_NOFILE", fix=fix)
    return found


def most_connections() -> int:
    """Return the limit of connections of one listener: 256, or a quarter of the open files."""
    return max(1, min(MOST_CONNECTIONS, _files() // _SHARE))


def _files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True)
class ListenAt:
    """Listening address: `socket`, or `host` and `port` (0: any free one), with optional TLS."""

    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    socket_group: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, http: Http) -> ListenAt:
        """Build from a site file. Raises UsageError for unusable TLS files."""
        files = http.tls
        context = (
            server_context(files.cert_file, files.key_file, files.client_ca_file) if files else None
        )
        return cls(http.host, http.port, http.socket, http.socket_group, context)

    @property
    def is_local(self) -> bool:
        return self.socket is not None or is_loopback(self.host)

    @property
    def is_readable_on_the_way(self) -> bool:
        """Whether other machines reach this address without encryption."""
        return self.tls is None and not self.is_local

    def url(self, port: int) -> str:
        if self.socket is not None:
            return f"unix:{self.socket}"
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{place(self.host, port)}"


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a host name
        return host == "localhost"


def peer_of(host: str) -> str:
    """Return the address for per-peer limits; of IPv6 the /64, which one peer may own."""
    try:
        found = ip_address(host)
    except ValueError:  # of a Unix socket
        return host
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64)
    return str(found)


async def listening_sockets(at: ListenAt) -> list[socket.socket]:
    """Return one socket per address of the host, or the Unix socket. Raises UsageError."""
    if at.socket is not None:
        return [unix_socket(at.socket, at.socket_group)]
    found: list[socket.socket] = []
    try:
        loop, flags = asyncio.get_running_loop(), socket.AI_PASSIVE
        places = await loop.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM, flags=flags)
        for family, address in dict.fromkeys((place[0], place[4]) for place in places):
            try:
                one = socket.create_server(address[:2], family=family, backlog=WAITING)
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(places) > 1:
                    continue  # a name may have an address that this machine lacks
                raise
            one.setblocking(False)
            # Inherited by connections: an answer in several pieces need not wait for an ACK.
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.append(one)
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except OSError as error:
        for one in found:
            one.close()
        raise _no_port(error, at.host, at.port) from error
    return found


def _no_port(error: OSError, host: str, port: int) -> UsageError:
    what, fix = f"cannot listen ({error.strerror})", "check http.host and http.port"
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        taken = error.errno == errno.EADDRINUSE
        what = f"port {port} is in use" if taken else f"port {port} needs more rights"
        fix = "set another http.port (of a device's page: page.port), from 1024"
    return UsageError(what, where=place(host, port), fix=fix)


def unix_socket(path: Path, group: str | None = None) -> socket.socket:
    """Return a socket for this user, and the members of `group`. Raises UsageError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = os.umask(0o177)  # no other user can open it at any moment
        try:
            with _short(path) as name:
                made.bind(name)
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
            path.chmod(0o660)
        made.listen(WAITING)
    except (OSError, KeyError) as error:
        made.close()
        raise _no_unix_socket(error, path, group) from None
    made.setblocking(False)
    return made


class AnswerSocket:
    """Unix socket of this user alone that answers each connection with one line of JSON."""

    def __init__(
        self,
        path: Path,
        answer: Callable[[asyncio.StreamReader], Awaitable[dict[str, Any]]],
        line_bytes: int = 1024,
    ) -> None:
        """`answer` may read a line of `line_bytes`; the exchange is limited to ANSWER_S."""
        self._path, self._answer, self._line_bytes = path, answer, line_bytes
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        listening = unix_socket(self._path)
        limit, made = self._line_bytes, asyncio.start_unix_server
        self._server = await made(self._connected, sock=listening, limit=limit)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    writer.write(json.dumps(await self._answer(reader)).encode() + b"\n")
                    await writer.drain()
        finally:
            writer.close()


def connect_unix(path: Path, timeout_s: float) -> socket.socket:
    """Connect to the process that listens at `path`. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(timeout_s)
    try:
        with _short(path) as name:
            made.connect(name)
    except OSError:
        made.close()
        raise
    return made


def _remove_stale(path: Path) -> None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, "another file has this name")
    try:
        connect_unix(path, _PROBE_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
    else:
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Return a name that fits a socket address: on Linux, one through an open folder."""
    if len(os.fsencode(path)) <= _UNIX_PATH_BYTES or not Path("/proc/self/fd").is_dir():
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _no_unix_socket(error: OSError | KeyError, path: Path, group: str | None) -> UsageError:
    fix = "name a path in a folder of this user's, on a local disk"
    if isinstance(error, KeyError):
        what, fix = f"this machine has no group '{group}'", "name a group in http.socket_group"
    elif error.errno == errno.EADDRINUSE:
        what, fix = "another process listens on it", "end that process, or set another path"
    elif error.errno == errno.EPERM and group is not None:
        what, fix = f"this user is no member of the group '{group}'", "add the user to it"
    else:
        what = f"cannot listen here ({error.strerror or error})"
        if error.errno is None:  # the path does not fit into a socket's address
            fix = f"use a name of at most {_UNIX_PATH_BYTES // 2} bytes"
    return UsageError(what, where=str(path), fix=fix)


def server_context(cert_file: Path, key_file: Path, client_ca_file: Path | None) -> ssl.SSLContext:
    """Return a TLS context; `client_ca_file` requires client certificates. Raises UsageError."""
    for path in (cert_file, key_file, client_ca_file):
        if path is not None and not path.is_file():
            raise SystemFault("this TLS file does not exist", where=str(path), fix="check http.tls")
    read_private(key_file, "private key", UsageError)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Empty password: a prompt at the console would block the process.
        context.load_cert_chain(cert_file, key_file, password=b"")
    except ssl.SSLError:
        what = "the certificate and its key do not fit together"
        fix = "give the certificate's own unencrypted key as http.tls.key_file"
        raise UsageError(what, where=str(cert_file), fix=fix) from None
    if client_ca_file is not None:
        try:
            context.load_verify_locations(client_ca_file)
        except ssl.SSLError:
            what = "no CA certificate can be read from this file"
            raise UsageError(what, where=str(client_ca_file), fix="give a PEM file") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def peer_names(transport: asyncio.BaseTransport | None) -> Sequence[str]:
    """Return common and alternative names (DNS, URI, e-mail) of a verified client certificate."""
    shown = transport.get_extra_info("peercert") if transport is not None else None
    if not shown:
        return ()
    subject = [pair for part in shown.get("subject", ()) for pair in part]
    names = [value for kind, value in subject if kind == "commonName"]
    kinds = ("DNS", "URI", "email")
    return [*names, *(value for kind, value in shown.get("subjectAltName", ()) if kind in kinds)]
