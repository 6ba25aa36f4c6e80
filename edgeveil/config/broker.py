"""The site file of a broker that `edgeveil broker` starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from edgeveil.config.base import Block, Mix, PortNumber, SitePath
from edgeveil.config.links import ByteLimit, Cell, PacketBytes

LOOPBACK = ("127.0.0.1", "::1", "localhost")


class BrokerTls(Block):
    """TLS of the broker's listener."""

    ca_file: SitePath | None = None
    """PEM of client authorities: clients then need a certificate; user: its CN, or users_file."""
    crl_file: SitePath | None = None
    """PEM of revoked certificates; when it changes, every connection is cut once."""
    cert_file: SitePath = Field(examples=["../site/tls/broker.crt"])
    """PEM file of the broker's certificate."""
    key_file: SitePath = Field(examples=["../site/tls/broker.key"])
    """PEM file of its private key."""


class BrokerLimits(Block):
    """Limits of the broker's memory."""

    packet_bytes: PacketBytes = 65536
    """Largest whole MQTT packet; at least limits.packet_bytes of the processes."""
    max_queued_bytes: ByteLimit = 1 << 26
    """Bytes that may wait for one slow client; further messages are dropped."""
    max_connections: int = Field(default=20_000, ge=1, le=10**7)
    """Clients at one time."""


class BrokerSite(Block):
    """A broker that `edgeveil broker` starts; any other MQTT broker serves as well."""

    engine: Literal["auto", "amqtt", "mosquitto"] = "auto"
    """`auto`: mosquitto if installed and capable of these settings, else amqtt."""
    host: str = Field(default="127.0.0.1", min_length=1, max_length=255)
    """Address to listen on; the default is reachable only from this machine."""
    port: PortNumber = 1883
    """TCP port."""
    websockets_port: PortNumber | None = Field(default=None, examples=[8080])
    """TCP port of a second listener, MQTT over WebSockets with the same TLS; null: none."""
    users_file: SitePath | None = None
    """File of `name:password` lines; null: everybody on this machine may connect."""
    acl: Literal["edge", "cloud"] | None = None
    """Deny-by-default access list of that side; null: everybody may read and write everything."""
    cells: tuple[Cell, ...] = ()
    """The cells at this broker, for its access list; an empty name is the cell without one."""
    tls: BrokerTls | None = None
    """TLS of the listener; null: plain TCP."""
    limits: BrokerLimits = BrokerLimits()
    """Limits."""

    def _mixes(self) -> Iterator[Mix]:
        if self.engine == "mosquitto" and self.tls is not None and self.websockets_port is not None:
            text = "mosquitto stalls with WebSockets over TLS; set amqtt, or end TLS in front of it"
            yield Mix(("engine", "websockets_port", "tls"), text)
        ca_file, crl_file = (self.tls.ca_file, self.tls.crl_file) if self.tls else (None, None)
        if crl_file is not None and ca_file is None:
            text = "clients show no certificate that could be revoked; add tls.ca_file"
            yield Mix(("tls.crl_file", "tls.ca_file"), text)
        if self.engine == "amqtt" and ca_file is not None:
            yield Mix(("engine", "tls.ca_file"), "amqtt cannot demand certificates; set mosquitto")
        if self.websockets_port == self.port:
            what = f"{self.port} is the plain MQTT port; choose another"
            yield Mix(("websockets_port", "port"), what)
        if self.cells and self.acl is None:
            yield Mix(("cells", "acl"), "cells require an access list; add acl, or remove cells")
        if len(set(self.cells)) < len(self.cells):
            yield Mix(("cells",), "names a cell twice; name each once")
        if self.users_file is not None or ca_file is not None:
            return
        if self.acl is not None:
            text = "an access list requires users who log in; add users_file"
            yield Mix(("acl", "users_file", "tls"), text)
        if self.host not in LOOPBACK:
            text = f"{self.host} is open to the network without a log-in; add users_file,"
            yield Mix(("host", "users_file", "tls"), f"{text} or listen on 127.0.0.1")
