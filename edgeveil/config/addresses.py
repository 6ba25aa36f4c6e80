"""Addresses of brokers and HTTP proxies, parsed from the URLs of site files."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from edgeveil.errors import UsageError

WEBSOCKET_PATH = "/mqtt"
_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
_FORMS = "write mqtt://host:1883, mqtts://host:8883 for TLS, ws://host:80/mqtt or wss://host/mqtt"
_PROXY_FORM = "write http://host:port or http://user@host:port"


def place(host: str, port: int | str) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_place(text: str) -> tuple[str, int] | None:
    """Return host and port of `host:port`, IPv6 in brackets; None if malformed."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        sound = ":" in host and not set(host) & set("[]")
    else:
        sound = bool(host) and not set(host) & set("[]:")
    sound &= port.isascii() and port.isdecimal() and 0 < len(port) < 6 and 0 < int(port) < 65536
    return (host, int(port)) if sound else None


@dataclass(frozen=True)
class BrokerAddress:
    """A broker's address; `path` is None for plain MQTT and the resource for WebSockets."""

    host: str
    port: int
    tls: bool
    path: str | None = None

    @classmethod
    def parse(cls, url: str) -> BrokerAddress:
        """Parse `mqtt[s]://host[:port]` or `ws[s]://host[:port][/path]`. Raises UsageError."""
        parts = _split(url, _FORMS)
        if "@" in parts.netloc:  # the URL itself would print the password
            fix = "move them to username and password_file"
            raise UsageError("holds credentials", fix=fix)
        if parts.scheme not in _PORTS:
            what = "must begin mqtt://, mqtts://, ws:// or wss://"
            raise UsageError(what, where=url[:100], fix=_FORMS)
        if not parts.hostname or parts.port == 0:
            raise UsageError("needs a host and a port", where=url[:100], fix=_FORMS)
        websocket = parts.scheme in ("ws", "wss")
        if parts.fragment or (not websocket and (parts.path not in ("", "/") or parts.query)):
            end = "path" if websocket else "port"
            raise UsageError(f"must end after the {end}", where=url[:100], fix=_FORMS)
        path = None
        if websocket:
            path = parts.path if parts.path not in ("", "/") else WEBSOCKET_PATH
            path += f"?{parts.query}" if parts.query else ""
            if not path.isascii() or not path.isprintable() or " " in path:
                raise UsageError("has a path that no URL may hold", where=url[:100], fix=_FORMS)
        tls = parts.scheme in ("mqtts", "wss")
        return cls(parts.hostname, parts.port or _PORTS[parts.scheme], tls, path)

    @property
    def url(self) -> str:
        scheme = "mqtt" if self.path is None else "ws"
        at = place(self.host, self.port)
        return f"{scheme}{'s' if self.tls else ''}://{at}{self.path or ''}"

    def __str__(self) -> str:
        # For logs and errors: without the query, which may hold a signature.
        return place(self.host, self.port) if self.path is None else self.url.partition("?")[0]


@dataclass(frozen=True)
class HttpProxy:
    """An HTTP proxy that opens tunnels (CONNECT)."""

    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> HttpProxy:
        """Parse `http://[user[:password]@]host:port`. Raises UsageError without the password."""
        parts = _split(url, _PROXY_FORM, secret=True)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise UsageError("must be http://host:port", fix=_PROXY_FORM)
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise UsageError("must end after the port", fix=_PROXY_FORM)
        username = unquote(parts.username) if parts.username else None
        password = unquote(parts.password) if parts.password else None
        if password is not None and username is None:
            raise UsageError("has a password and no user name", fix=_PROXY_FORM)
        if ":" in (username or ""):
            raise UsageError("has a user name with a colon", fix="use a name without one")
        return cls(parts.hostname, parts.port, username, password)

    def __str__(self) -> str:
        return place(self.host, self.port)


def _split(url: str, fix: str, *, secret: bool = False) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - parsed, and refused, when it is read
    except ValueError:
        where = "" if secret or "@" in url else url[:100]
        raise UsageError("has no usable host or port", where=where, fix=fix) from None
    return parts
