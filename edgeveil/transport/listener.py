"""Where HTTP is taken in: TCP or a Unix socket, TLS where asked, and never too many at once.

Connections are files of the process. So each listener holds a bounded number of them, well below
what the process may open, and closes those beyond at once: whoever opens thousands and says nothing
leaves the process its files for broker, store and others' requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import os
import resource
import socket
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from edgeveil.errors import SystemFault, UsageError
from edgeveil.sites.addresses import place
from edgeveil.sites.links import Http
from edgeveil.storage import open_to_others

MOST_CONNECTIONS = 256
LEAST_FILES = 256
HANDSHAKE_S = 5.0
_MOST_FILES = 65536
_SHARE = 4  # one in so many of the files that the process may open
_WAITING = 128  # connections that the kernel holds until they are accepted
_AGAIN_S = 0.2
_SHUTDOWN_S = 2.0
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


def raise_file_limit() -> int:
    """Let this process open as many files as it may; how many. UsageError where it is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # not allowed here: then as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    found = _files()
    if found < LEAST_FILES:
        raise UsageError(
            f"the process may open {found} files, it needs {LEAST_FILES}",
            where="RLIMIT_NOFILE",
            fix="raise it: ulimit -n 4096, LimitNOFILE=4096 in a systemd unit",
        )
    return found


def most_connections() -> int:
    """Connections that one listener holds at once: 256, or a quarter of the process's files."""
    return max(1, min(MOST_CONNECTIONS, _files() // _SHARE))


def _files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True)
class ListenAt:
    """Where to listen: `socket` alone where it is given, else `host` and `port` (0: any free one).

    `tls` is spoken to whoever connects; without it the traffic can be read on its way.
    """

    host: str = "127.0.0.1"
    port: int = 0
    socket: Path | None = None
    socket_group: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, http: Http) -> ListenAt:
        """As a site file says. Raises UsageError for TLS files that cannot be used."""
        files = http.tls
        context = (
            server_context(files.cert_file, files.key_file, files.client_ca_file) if files else None
        )
        return cls(http.host, http.port, http.socket, http.socket_group, context)

    @property
    def is_local(self) -> bool:
        """Whether it is reached from this machine alone."""
        return self.socket is not None or is_loopback(self.host)

    @property
    def is_readable_on_the_way(self) -> bool:
        """Whether others than this machine reach what is served without encryption."""
        return self.tls is None and not self.is_local

    def url(self, port: int) -> str:
        """Address for clients on this machine."""
        if self.socket is not None:
            return f"unix:{self.socket}"
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://{place(self.host, port)}"


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def peer_of(host: str) -> str:
    """The address that limits per peer count by; of IPv6 the /64, which one peer may have whole."""
    try:
        found = ip_address(host)
    except ValueError:  # of a Unix socket
        return host
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64)
    return str(found)


class Listener:
    """Hands each connection to a protocol of its own, `most` of them at once.

    Beyond, one is hung up on; or, with `yields`, takes the place of the oldest that is not kept
    (`keep`). At most half are kept, so a new one always finds a place.
    """

    def __init__(
        self, at: ListenAt, make: ProtocolFactory, most: int, *, yields: bool = False
    ) -> None:
        self._at, self._make, self._most, self._yields = at, make, most, yields
        self._sockets: list[socket.socket] = []
        self._held: dict[socket.socket, None] = {}  # the oldest first
        self._served: set[int] = set()  # by their numbers
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = at.port

    @property
    def url(self) -> str:
        """Address for clients on this machine."""
        return self._at.url(self.port)

    async def start(self) -> None:
        """Listen on the running loop. Raises UsageError where that cannot be had."""
        at = self._at
        if at.socket is not None:
            self._sockets = [_unix_socket(at.socket, at.socket_group)]
        else:
            self._sockets = await _tcp_sockets(at.host, at.port)
            self.port = int(self._sockets[0].getsockname()[1])
        for one in self._sockets:
            self._keep(self._accept(one))

    async def stop(self) -> None:
        """Take in no more; connections that were handed over stay with their protocols."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._sockets:
            one.close()
        if self._sockets and self._at.socket is not None:
            self._at.socket.unlink(missing_ok=True)
        self._sockets = []

    def _keep(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                found, _ = await loop.sock_accept(listening)
            except OSError as error:
                # A connection that is gone again, or no file is left: somebody else took them all.
                await asyncio.sleep(_AGAIN_S if error.errno in _NO_FILES else 0)
                continue
            # A closed socket has no number any more: so those are counted that take a file now.
            self._held = {one: None for one in self._held if one.fileno() >= 0}
            self._served.discard(found.fileno())
            if len(self._held) >= self._most and not self._make_room():
                found.close()
            else:
                self._held[found] = None
                self._keep(self._hand_over(found))
            await asyncio.sleep(0)  # a crowd does not keep the loop from its other work

    def keep(self, transport: asyncio.BaseTransport | None, *, served: bool = True) -> None:
        """While a connection is `served`, no other takes its place; without effect if half are."""
        of_it = transport.get_extra_info("socket") if transport is not None else None
        number = of_it.fileno() if of_it is not None else -1
        if not served:
            self._served.discard(number)
        elif number >= 0 and sum(s.fileno() in self._served for s in self._held) < self._most // 2:
            self._served.add(number)

    def _make_room(self) -> bool:
        oldest = next((one for one in self._held if one.fileno() not in self._served), None)
        if oldest is None or not self._yields:
            return False
        del self._held[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)  # its protocol closes it
        return True

    async def _hand_over(self, found: socket.socket) -> None:
        tls = self._at.tls
        try:
            if tls is None:
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(self._make, found)
            else:
                await asyncio.get_running_loop().connect_accepted_socket(
                    self._make,
                    found,
                    ssl=tls,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=_SHUTDOWN_S,
                )
        except Exception:  # gone, too slow, not to be trusted: the next one is taken all the same
            found.close()
        except asyncio.CancelledError:
            found.close()
            raise


async def _tcp_sockets(host: str, port: int) -> list[socket.socket]:
    """One for each address that the host has."""
    found: list[socket.socket] = []
    try:
        loop, flags = asyncio.get_running_loop(), socket.AI_PASSIVE
        places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        for family, address in dict.fromkeys((place[0], place[4]) for place in places):
            try:
                one = socket.create_server(address[:2], family=family, backlog=_WAITING)
            except OSError as error:
                if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT) and len(places) > 1:
                    continue  # a name may have an address that this machine has not
                raise
            one.setblocking(False)
            found.append(one)
        if not found:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except OSError as error:
        for one in found:
            one.close()
        raise _unheard(error, host, port) from error
    return found


def _unix_socket(path: Path, group: str | None) -> socket.socket:
    """A listening socket that this user alone may open, or the members of `group` too."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _clear(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        before = os.umask(0o177)  # from its first moment on nobody else can open it
        try:
            made.bind(str(path))
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
            path.chmod(0o660)
        made.listen(_WAITING)
    except (OSError, KeyError) as error:
        made.close()
        raise _no_socket(error, path, group) from error
    made.setblocking(False)
    return made


def _clear(path: Path) -> None:
    """Take away the socket of a process that ended; EADDRINUSE where one answers."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise OSError(errno.EEXIST, "another file has this name")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _no_socket(error: OSError | KeyError, path: Path, group: str | None) -> UsageError:
    if isinstance(error, KeyError):
        what, fix = f"this machine has no group '{group}'", "name a group in http.socket_group"
    elif error.errno == errno.EADDRINUSE:
        what, fix = "another process listens on it", "end that process, or set another http.socket"
    elif error.errno == errno.EPERM and group is not None:
        what = f"this user is no member of the group '{group}'"
        fix = "add the user to it, or set another http.socket_group"
    elif error.errno is None:  # asked of the address before the system was
        what, fix = str(error), "use a shorter path in http.socket, 107 bytes at most"
    else:
        what, fix = f"cannot listen ({error.strerror})", "check http.socket and its folder"
    return UsageError(what, where=str(path), fix=fix)


def server_context(cert_file: Path, key_file: Path, client_ca_file: Path | None) -> ssl.SSLContext:
    """A context that shows the certificate, and wants one of each client if `client_ca_file` says
    who vouches for them. TLS 1.2 or newer. Raises UsageError for files that cannot be used.
    """
    for path in (cert_file, key_file, client_ca_file):
        if path is not None and not path.is_file():
            raise SystemFault("this TLS file does not exist", where=str(path), fix="check http.tls")
    with key_file.open("rb") as file:
        if open_to_others(file.fileno()):
            what = "other users of this machine may read this private key"
            raise UsageError(what, where=str(key_file), fix=f"chmod 600 {key_file}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Asked for no password: a process that waits for one at its console would never start.
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
    """The names in the certificate that a client showed and that was vouched for: the common name
    of its subject, and its alternative names of DNS, URI and e-mail."""
    shown = transport.get_extra_info("peercert") if transport is not None else None
    if not shown:
        return ()
    subject = [pair for part in shown.get("subject", ()) for pair in part]
    names = [value for kind, value in subject if kind == "commonName"]
    kinds = ("DNS", "URI", "email")
    return [*names, *(value for kind, value in shown.get("subjectAltName", ()) if kind in kinds)]


def _unheard(error: OSError, host: str, port: int) -> UsageError:
    key = "http.port (of a device's page: page.port)"
    if error.errno == errno.EADDRINUSE:
        what, fix = f"port {port} is taken", f"stop what uses it, or set another {key}"
    elif error.errno == errno.EACCES:
        what, fix = f"port {port} needs more rights", f"set an {key} from 1024"
    else:
        what, fix = f"cannot listen ({error.strerror})", "check http.host and http.port"
    return UsageError(what, where=place(host, port), fix=fix)
