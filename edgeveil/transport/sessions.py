"""From a site file's broker block to a link that feeds a machine."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from edgeveil.errors import UsageError
from edgeveil.protocol import effects as fx
from edgeveil.sites.links import BrokerLink
from edgeveil.transport.link import Link, LinkSettings, Will
from edgeveil.transport.mqtt_link import MqttLink
from edgeveil.transport.runtime import Runtime
from edgeveil.transport.topics import sender_of


def link_settings(
    broker: BrokerLink, client_id: str, packet_bytes: int, will: Will | None = None
) -> LinkSettings:
    """How to reach the broker; the password comes from its file. Raises UsageError."""
    return LinkSettings(
        url=broker.url,
        client_id=f"{client_id}-{secrets.token_hex(4)}",
        username=broker.username,
        password=read_password(broker.password_file),
        ca_file=_text(broker.ca_file),
        cert_file=_text(broker.cert_file),
        key_file=_text(broker.key_file),
        protocol=broker.protocol,
        keepalive_s=broker.keepalive_s,
        backoff_cap_s=broker.backoff_cap_s,
        packet_bytes=packet_bytes,
        will=will,
    )


def _text(path: Path | None) -> str | None:
    return str(path) if path else None


def read_password(path: Path | None) -> str | None:
    """The first line of a password file; None without a file. Raises UsageError."""
    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(
            f"the password file cannot be read ({error.strerror})",
            where=str(path),
            fix="write the password on its first line, readable by this user only",
        ) from None
    except UnicodeDecodeError:
        raise UsageError(
            "the password file is not UTF-8 text",
            where=str(path),
            fix="write the password on its first line, in UTF-8",
        ) from None
    if not lines or not lines[0]:
        raise UsageError(
            "the password file is empty",
            where=str(path),
            fix="write the password on its first line",
        )
    return lines[0]


class Session:
    """One link of one runtime: its topics, its peer, and how many bytes went each way."""

    def __init__(
        self,
        settings: LinkSettings,
        topics: Sequence[str],
        peer: fx.Address,
        topic_of: Callable[[fx.Address], str],
    ) -> None:
        self.link: Link = MqttLink(settings)
        self.bytes: Counter[str] = Counter()
        self._topics, self._peer, self._topic_of = topics, peer, topic_of

    async def attach(self, runtime: Runtime, on_state: Callable[[bool, str], None]) -> None:
        """Route the link's messages and states into the runtime."""

        async def on_message(topic: str, payload: bytes) -> None:
            self.bytes["in"] += len(payload)
            await runtime.receive(sender_of(topic), payload)

        def state(connected: bool, reason: str) -> None:
            on_state(connected, reason)
            runtime.post(fx.Connected(self._peer) if connected else fx.Disconnected(self._peer))

        self.link.on_message, self.link.on_state = on_message, state
        await self.link.subscribe(self._topics)

    async def publish(self, to: fx.Address, frame: bytes) -> None:
        """Send a frame where this address listens."""
        self.bytes["out"] += len(frame)
        await self.link.publish(self._topic_of(to), frame)
