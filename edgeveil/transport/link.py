"""Link settings, send windows, and the topics of the two broker domains.

A device's topics carry its id, never its name; no message is retained, no device uses a wildcard.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from edgeveil.config.addresses import BrokerAddress, HttpProxy
from edgeveil.config.broker_profiles import PROFILES, BrokerProfile
from edgeveil.crypto.buckets import LEVELS, bucket_of
from edgeveil.crypto.keys import SealingKey
from edgeveil.errors import BrokerError
from edgeveil.protocol.effects import (
    Address,
    AllDevices,
    BucketAddress,
    CloudAddress,
    DeviceAddress,
    ProxyAddress,
)

MessageHandler = Callable[[str, bytes], Awaitable[None] | None]
MessageFilter = Callable[[str, bytes], bool]
StateHandler = Callable[[bool, str], None]
Will = tuple[str, bytes]  # topic and payload; QoS 1, not retained

ATTEMPT_S = 20.0  # per address: a cluster without a node takes seconds for each subscription
_HEADER_BYTES = 1 + 4 + 2 + 2 + 1  # type, length, topic length, packet id, empty properties


class LinkDown(BrokerError):  # noqa: N818 - the state's name
    """The link is down: messages handed to it may be lost, so queue them again."""


SERVER_BACKOFF_CAP_S = 15.0  # of cloud and proxy, for which all others wait


@dataclass(frozen=True)
class LinkSettings:
    """Address, credentials and limits of a broker link.

    `url` is one address or several, tried in turn, all through `http_proxy` if given.
    `client_suffix` is appended to the client id; the link draws another if a broker accepted the
    connection but not the client. `protocol` is 5 or 4 (MQTT 3.1.1); 5 falls back to 4.
    `packet_bytes` limits a whole packet, the window unacknowledged messages, the inbox unhandled
    ones; `profile` narrows both and sets the pace. After the n-th failure the link waits a random
    time up to min(`backoff_cap_s`, `backoff_base_s` · 2ⁿ). For `silence_s` see `SilenceMonitor`.
    Refused subscriptions of `optional_topics` are no error.
    """

    url: str | tuple[str, ...]
    client_id: str
    client_suffix: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    http_proxy: HttpProxy | None = None
    profile: BrokerProfile = PROFILES["default"]
    protocol: int = 5
    keepalive_s: int = 60
    packet_bytes: int = 65536
    will: Will | None = None  # published by the broker when the link breaks
    optional_topics: frozenset[str] = frozenset()
    window_messages: int = 64
    window_bytes: int = 4 * 1024 * 1024
    inbox_bytes: int = 16 * 1024 * 1024
    backoff_base_s: float = 0.5
    backoff_cap_s: float = 30.0
    silence_s: float = 600.0

    @property
    def addresses(self) -> tuple[BrokerAddress, ...]:
        """The parsed `url`, at least one. Raises UsageError."""
        urls = (self.url,) if isinstance(self.url, str) else self.url
        return tuple(BrokerAddress.parse(url) for url in urls)


def overhead_bytes(topic: str) -> int:
    """Return an upper bound of the bytes that a PUBLISH adds to its payload, in either protocol."""
    return _HEADER_BYTES + len(topic.encode("utf-8"))


class SendWindow:
    """Limit on unacknowledged messages, first come, first served; one message always fits.

    Calls `on_wait(True)` when the first message starts to wait, `on_wait(False)` after the last.
    """

    def __init__(
        self, messages: int, size_bytes: int, on_wait: Callable[[bool], None] = lambda _waits: None
    ) -> None:
        self._on_wait = on_wait
        self._free_messages, self._free_bytes = messages, size_bytes
        self._messages, self._bytes = messages, size_bytes
        self._waiting, self._turn = 0, asyncio.Lock()  # held by the first that waits
        self._error: Exception | None = None
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def messages(self) -> int:
        return self._messages - self._free_messages

    @property
    def size_bytes(self) -> int:
        return self._bytes - self._free_bytes

    async def acquire(self, size: int) -> None:
        """Wait for room for a message of `size` bytes. Raises the error given to `fail`."""
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        self._waiting += 1
        if self._waiting == 1:
            self._on_wait(True)
        try:
            async with self._turn:
                while self._error is None and not self._fits(size):
                    self._room.clear()
                    await self._room.wait()
                if self._error is not None:
                    raise self._error
                self._take(size)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._on_wait(False)

    def release(self, size: int) -> None:
        self._free_messages += 1
        self._free_bytes += size
        if self.messages == 0:
            self._idle.set()
        self._room.set()

    async def idle(self) -> None:
        await self._idle.wait()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._room.set()
        self._idle.set()

    def _fits(self, size: int) -> bool:
        enough = size <= self._free_bytes or self._free_bytes == self._bytes
        return self._free_messages > 0 and enough

    def _take(self, size: int) -> None:
        self._free_messages -= 1
        self._free_bytes -= size
        self._idle.clear()


ROOT = "edgeveil/v1"


class Topics:
    """Topics of one cell ("" without named cells); its name has no dot, unlike `proxy_id`."""

    def __init__(self, cell: str = "") -> None:
        self.cell = cell
        self.proxy_id = f"proxy.{cell}" if cell else "proxy"
        self.root = root = f"{ROOT}/c/{cell}" if cell else ROOT  # prefix of all topics
        self.all_down = f"{root}/all/down"  # subscribed by all devices
        self.any_bucket = f"{root}/b/+/+"  # for access lists
        self.devices_up = f"{root}/d/+/up"  # the proxy's subscription to all devices
        self.cloud_out, self.cloud_in = f"{root}/cloud/out", f"{root}/cloud/in"
        self.any_renewal, self.any_claim = self.renewal("+"), self.claim("+")
        self.claims_of_before = f"{root}/claim/up"  # of boxes of the previous version
        self.claims_down = f"{root}/claim/down"  # answers to all of these
        self.proxies = f"{root}/proxy"  # detects a second process in the proxy's name
        at = re.escape(root)
        self._up = re.compile(rf"{at}/d/([0-9a-f]{{16}})/up")
        self._to_devices = re.compile(
            rf"{at}/d/[0-9a-f]{{16}}/down|{at}/b/[0-9]{{1,5}}/[0-9]{{1,5}}"
        )
        self._asks = re.compile(rf"{at}/(?:d/([0-9a-f]{{16}})/renew|claim/([0-9a-f]{{32}})/up)")

    def bucket(self, level: int, index: int) -> str:
        return f"{self.root}/b/{level}/{index}"

    def buckets(self, keys: Iterable[SealingKey]) -> list[str]:
        """Return the topics on which stanzas for these keys are broadcast."""
        places = {(level, bucket_of(key, level)) for key in keys for level in LEVELS}
        return [self.bucket(*place) for place in sorted(places)]

    def device_up(self, device: str) -> str:
        return f"{self.root}/d/{device}/up"

    def device_down(self, device: str) -> str:
        return f"{self.root}/d/{device}/down"

    def renewal(self, device: str) -> str:
        return f"{self.root}/d/{device}/renew"

    def claim(self, key: str) -> str:
        return f"{self.root}/claim/{key}/up"

    def claimant_of(self, topic: str) -> str:
        """Return the device or key that requests a certificate on this topic, or ""."""
        match = self._asks.fullmatch(topic)
        return (match[1] or match[2]) if match else ""

    def sender_of(self, topic: str) -> Address | None:
        """Return the party that access lists let publish here; None for a foreign topic."""
        if topic == self.cloud_in:
            return ProxyAddress(self.cell)
        if topic == self.cloud_out:
            return CloudAddress()
        if match := self._up.fullmatch(topic):
            return DeviceAddress(match[1])
        by_proxy = topic == self.all_down or self._to_devices.fullmatch(topic)
        return ProxyAddress(self.cell) if by_proxy else None

    def of_proxy(self, to: Address) -> str:
        if isinstance(to, AllDevices):
            return self.all_down
        if isinstance(to, BucketAddress):
            return self.bucket(to.level, to.index)
        return self.device_down(to.id) if isinstance(to, DeviceAddress) else self.cloud_in
