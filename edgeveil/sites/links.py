"""How a process reaches its broker, where it listens, what it writes: blocks that roles share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from edgeveil.settings.base import Block, Mix, PortNumber, SitePath


def _broker_url(url: str) -> str:
    if "@" in url:  # never repeat it: it holds a password
        raise ValueError("holds credentials; move them to username and password_file")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"'{url[:100]}' has no usable port; write mqtt://host:1883") from None
    if parts.scheme not in ("mqtt", "mqtts") or not parts.hostname or port == 0:
        raise ValueError(
            f"must be mqtt://host:port or mqtts://host:port, got '{url[:100]}'; "
            "write for example mqtt://127.0.0.1:1883"
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"must end after the port, got '{url[:100]}'; drop the rest")
    return url


BrokerUrl = Annotated[str, Field(max_length=300), AfterValidator(_broker_url)]
PacketBytes = Annotated[int, Field(ge=4096, le=268_435_455)]
ByteLimit = Annotated[int, Field(ge=65536, le=1 << 50)]


class BrokerLink(Block):
    """How to reach an MQTT broker."""

    url: BrokerUrl = Field(examples=["mqtt://127.0.0.1:1883"])
    """`mqtt://host:port`, or `mqtts://host:port` for TLS."""
    protocol: Literal[5, 4] = 5
    """MQTT version: 5, or 4 for 3.1.1; brokers without 5 are spoken to in 4 anyway."""
    username: str | None = Field(default=None, min_length=1, max_length=128)
    """User name at the broker."""
    password_file: SitePath | None = None
    """File whose first line is the password; read when the process starts."""
    ca_file: SitePath | None = None
    """PEM file of the authorities that may vouch for the broker; none: the system's."""
    cert_file: SitePath | None = None
    """PEM file of this client's own certificate."""
    key_file: SitePath | None = None
    """PEM file of that certificate's private key."""
    keepalive_s: int = Field(default=60, ge=5, le=65535)
    """Seconds of silence after which the link is checked."""
    backoff_cap_s: float = Field(default=60.0, ge=0.1, le=3600)
    """Longest pause before a lost link is tried again; each pause is drawn at random below it."""


class Http(Block):
    """Where the status and control pages listen."""

    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address; the default is reachable from this machine alone."""
    port: PortNumber = 8701
    """TCP port."""


class ProxyHttp(Http):
    """Where the proxy's status page listens."""

    port: PortNumber = 8702
    """TCP port."""


class Log(Block):
    """What a process writes to its console."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least grave level that is written."""
    format: Literal["text", "json"] = "text"
    """`text` to read, `json` for one object a line."""


def trust_mixes(trust_file: Path | None, **keys: Path | None) -> Iterator[Mix]:
    """A site pins the keys of others one by one, or the root that vouches for them; not both."""
    rooted = trust_file is not None
    for key, path in keys.items():
        if (path is not None) == rooted:
            text = "others' keys stand in trust_file, or are pinned one by one; "
            text += "drop one of the two" if rooted else f"add {key}, or trust_file"
            yield Mix((key, "trust_file"), text)


def broker_mixes(link: BrokerLink, at: str) -> Iterator[Mix]:
    """Impossible mixes of one broker block that stands at key `at`."""
    files = {"ca_file": link.ca_file, "cert_file": link.cert_file, "key_file": link.key_file}
    for key, path in files.items():
        if path is not None and link.url.startswith("mqtt://"):
            text = "is read for TLS alone but the URL says mqtt://; write mqtts://, or drop it"
            yield Mix((f"{at}.{key}", f"{at}.url"), text)
    if (link.cert_file is None) != (link.key_file is None):
        given, other = ("key_file", "cert_file") if link.key_file else ("cert_file", "key_file")
        text = f"a certificate and its private key come together; add {other}"
        yield Mix((f"{at}.{given}", f"{at}.{other}"), text)
    if link.password_file is not None and link.username is None:
        text = "a password needs a user name; add username"
        yield Mix((f"{at}.password_file", f"{at}.username"), text)
