"""Blocks shared by roles: broker links, listeners, logs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from edgeveil.config.addresses import BrokerAddress, HttpProxy
from edgeveil.config.base import Block, Mix, SitePath
from edgeveil.config.broker_profiles import PROFILES, ProfileName
from edgeveil.errors import UsageError


def _broker_urls(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return _broker_url(value)
    if not isinstance(value, (list, tuple)) or not all(isinstance(url, str) for url in value):
        raise ValueError("must be a URL or a list of them; write mqtt://127.0.0.1:1883")
    if not 1 <= len(value) <= MOST_ADDRESSES:
        raise ValueError(f"must hold 1 to {MOST_ADDRESSES} addresses, got {len(value)}")
    urls = tuple(_broker_url(url) for url in value)
    if len(set(urls)) < len(urls):
        raise ValueError("names an address twice; drop one")
    return urls


def _broker_url(url: str) -> str:
    if len(url) > _URL_CHARACTERS:
        raise ValueError(f"must have at most {_URL_CHARACTERS} characters, got {len(url)}")
    _parsed(BrokerAddress.parse, url)
    return url


def _proxy_url(url: str) -> str:
    _parsed(HttpProxy.parse, url)
    return url


def _parsed(parse: Callable[[str], object], url: str) -> None:
    try:
        parse(url)
    except UsageError as error:
        got = f", got '{error.where}'" if error.where else ""
        raise ValueError(f"{error.what}{got}; {error.fix}") from None


def _cell(name: str) -> str:
    if name and not _CELL.fullmatch(name):
        usual = re.sub("[^a-z0-9-]", "-", name.lower()).strip("-")[:32]
        what = f"must be small letters, digits and hyphens, 32 at most, got '{name[:64]}'"
        raise ValueError(f"{what}; write {usual or 'north, for example'}")
    return name


_CELL = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_CELL_FORM = {"type": "string", "pattern": rf"^({_CELL.pattern})?$"}
Cell = Annotated[str, AfterValidator(_cell), WithJsonSchema(_CELL_FORM)]
MOST_ADDRESSES = 8
_URL_CHARACTERS = 300
BrokerUrl = Annotated[str, Field(max_length=_URL_CHARACTERS), AfterValidator(_broker_url)]
_Url = Annotated[str, Field(max_length=_URL_CHARACTERS)]
_Urls = Annotated[tuple[_Url, ...], Field(min_length=1, max_length=MOST_ADDRESSES)]
BrokerUrls = Annotated[_Url | _Urls, BeforeValidator(_broker_urls)]
PacketBytes = Annotated[int, Field(ge=4096, le=268_435_455)]
ByteLimit = Annotated[int, Field(ge=65536, le=1 << 50)]


class BrokerLink(Block):
    """How to reach an MQTT broker."""

    url: BrokerUrls = Field(examples=["mqtt://127.0.0.1:1883"])
    """`mqtt[s]://host:port` or `ws[s]://host:port/path`; or a list of them, tried in turn."""
    http_proxy: Annotated[str, Field(max_length=300), AfterValidator(_proxy_url)] | None = Field(
        default=None, repr=False, examples=["http://10.0.0.1:3128"]
    )
    """`http://[user@]host:port` of an HTTP proxy for all connections (CONNECT); none: direct."""
    http_proxy_password_file: SitePath | None = None
    """File whose first line is the password at that proxy; read when the process starts."""
    profile: ProfileName = "default"
    """Managed service with the limits that the link respects (docs/brokers.md)."""
    protocol: Literal[5, 4] = 5
    """MQTT version: 5, or 4 for 3.1.1; brokers without version 5 get 4 in any case."""
    username: str | None = Field(default=None, min_length=1, max_length=128)
    """User name at the broker."""
    password_file: SitePath | None = None
    """File whose first line is the password; read when the process starts."""
    ca_file: SitePath | None = None
    """PEM file of the authorities accepted for the broker; none: the system's."""
    cert_file: SitePath | None = None
    """PEM file of this client's own certificate."""
    key_file: SitePath | None = None
    """PEM file of that certificate's private key."""
    keepalive_s: int = Field(default=60, ge=5, le=65535)
    """Seconds of silence after which the link is checked."""
    links: int = Field(default=1, ge=1, le=64)
    """Connections of a proxy: the first receives, the others send. At most two to the cloud."""
    silence_s: float = Field(default=600.0, ge=5, le=3600)
    """Seconds without a message until the peer is probed; without an answer the link reconnects."""

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if isinstance(self.url, str) else self.url


class TcpListener(Block):
    """A TCP listener."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address; the default is reachable only from this machine."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """TCP port; 0: the usual one (cloud 8701, proxy 8702, predictions 8710, owner's page 8711)."""


P = TypeVar("P", bound=TcpListener)


class HttpTls(Block):
    """TLS of the status and control pages."""

    cert_file: SitePath
    """PEM file of the certificate chain."""
    key_file: SitePath
    """PEM file of that certificate's private key, unencrypted, mode 0600."""
    client_ca_file: SitePath | None = None
    """PEM of client authorities: clients then need a certificate; none: no certificate needed."""


class HttpClient(Block):
    """A client identified by its certificate."""

    name: str = Field(min_length=1, max_length=255)
    """The common name of its subject, or one of its alternative names (DNS, URI or e-mail)."""
    scope: Literal["read", "submit", "admin"]
    """Its rights without a token; each includes those before it."""


class Http(TcpListener):
    """Listener of the status and control pages."""

    socket: SitePath | None = Field(default=None, examples=["../state/cloud.sock"])
    """Unix socket to listen on in place of host and port, mode 0600; none: TCP."""
    socket_group: str | None = Field(default=None, min_length=1, max_length=64)
    """Group with access to `socket` (mode 0660); none: only this user."""
    tls: HttpTls | None = None
    """Speak HTTPS; none: plain HTTP."""
    clients: tuple[HttpClient, ...] = Field(default=(), max_length=1000)
    """Clients of the cloud without a token, identified by certificates of `tls.client_ca_file`."""


class Log(Block):
    """Console output of a process."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is written."""
    format: Literal["text", "json"] = "text"
    """`text`, or `json` for one object per line."""


def at_usual_port(port: int) -> Callable[[P], P]:
    """Return a validator that replaces port 0 by a role's default port."""

    def resolve(http: P) -> P:
        left_out = http.port == 0 and not getattr(http, "socket", None)
        return http.model_copy(update={"port": port}) if left_out else http

    return resolve


CloudHttp = Annotated[Http, AfterValidator(at_usual_port(8701))]
ProxyHttp = Annotated[Http, AfterValidator(at_usual_port(8702))]


def http_mixes(http: Http) -> Iterator[Mix]:
    tls = "http.tls.client_ca_file"
    if http.socket is not None:
        for key in ("host", "port", "tls"):
            if key in http.model_fields_set and getattr(http, key) is not None:
                text = "a Unix socket replaces TCP; drop one of the two"
                yield Mix((f"http.{key}", "http.socket"), text)
    elif http.socket_group is not None:
        yield Mix(("http.socket_group", "http.socket"), "is of a Unix socket; add http.socket")
    clients = http.clients
    if clients and (http.tls is None or http.tls.client_ca_file is None):
        text = f"no authority for their certificates is set; add {tls}"
        yield Mix(("http.clients", tls, "http.tls"), text)
    names = [one.name for one in clients]
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield Mix(("http.clients",), f"names '{name}' twice; drop one")


def trust_mixes(trust_file: Path | None, **keys: Path | None) -> Iterator[Mix]:
    """Yield a site that pins others' keys and names a trust file too, or has neither."""
    rooted = trust_file is not None
    for key, path in keys.items():
        if (path is not None) == rooted:
            text = "keys of others are either in trust_file or pinned one by one; "
            text += "drop one of the two" if rooted else f"add {key}, or trust_file"
            yield Mix((key, "trust_file"), text)


def broker_mixes(
    link: BrokerLink, at: str, packet_bytes: int, *, of_proxy: bool = False
) -> Iterator[Mix]:
    """Yield impossible mixes of the broker block at key `at`, also with `limits.packet_bytes`."""
    if link.links > 1 and not of_proxy:
        yield Mix((f"{at}.links",), "only a proxy has use for several; drop it")
    for key, text in PROFILES[link.profile].misfits(packet_bytes, link.keepalive_s):
        found = "limits.packet_bytes" if key == "packet_bytes" else f"{at}.{key}"
        yield Mix((found, f"{at}.profile"), f"for {link.profile}: {text}")
    files = {"ca_file": link.ca_file, "cert_file": link.cert_file, "key_file": link.key_file}
    for key, path in files.items():
        if path is not None and not any(BrokerAddress.parse(url).tls for url in link.urls):
            yield Mix((f"{at}.{key}", f"{at}.url"), "is only for TLS; write mqtts:// or wss://")
    if (link.cert_file is None) != (link.key_file is None):
        given, other = ("key_file", "cert_file") if link.key_file else ("cert_file", "key_file")
        text = f"a certificate requires its private key and the reverse; add {other}"
        yield Mix((f"{at}.{given}", f"{at}.{other}"), text)
    if link.password_file is not None and link.username is None:
        yield Mix((f"{at}.password_file", f"{at}.username"), "needs a user name; add username")
    if link.http_proxy_password_file is not None:
        proxy = HttpProxy.parse(link.http_proxy) if link.http_proxy is not None else None
        keys = (f"{at}.http_proxy_password_file", f"{at}.http_proxy")
        if proxy is None or proxy.username is None:
            yield Mix(keys, "a password needs a user name; write http_proxy: http://user@host:port")
        elif proxy.password is not None:
            yield Mix(keys, "http_proxy also contains a password; remove it there")
