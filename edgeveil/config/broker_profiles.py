"""Limits of managed brokers per connection, with their sources and dates in docs/brokers.md.

None: not published, or no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

ProfileName = Literal["default", "aws_iot", "event_grid", "emqx_serverless", "hivemq_cloud"]


@dataclass(frozen=True)
class BrokerProfile:
    """Limits of one connection, for whole packets even if the service counts payloads."""

    publishes_per_s: int | None = None
    bytes_per_s: int | None = None
    in_flight_messages: int | None = None
    in_flight_bytes: int | None = None
    packet_bytes: int | None = None
    keepalive_s: tuple[int, int] = (5, 65535)
    subscriptions: int | None = None
    topics_per_subscribe: int | None = None
    topic_levels: int | None = None
    topic_bytes: int | None = None
    client_id_bytes: int | None = None
    stable_client_id: bool = False

    def misfits(self, packet_bytes: int, keepalive_s: int) -> Iterator[tuple[str, str]]:
        """Yield (key, text with the fix) for `packet_bytes` or `keepalive_s` beyond the limits."""
        most = self.largest_packet_bytes
        if most is not None and packet_bytes > most:
            yield "packet_bytes", f"{packet_bytes} bytes exceed its packets; set {most} or less"
        low, high = self.keepalive_s
        if not low <= keepalive_s <= high:
            yield (
                "keepalive_s",
                f"{keepalive_s} s is outside its range of keep-alive; set {low} to {high}",
            )

    @property
    def largest_packet_bytes(self) -> int | None:
        """The largest packet within all byte limits; None: any."""
        limits = (self.packet_bytes, self.in_flight_bytes, self.bytes_per_s)
        return min((limit for limit in limits if limit is not None), default=None)


PROFILES: dict[ProfileName, BrokerProfile] = {
    "default": BrokerProfile(),
    "aws_iot": BrokerProfile(
        publishes_per_s=100,
        bytes_per_s=512 * 1024,
        in_flight_messages=100,
        packet_bytes=128 * 1024,
        keepalive_s=(30, 1200),
        subscriptions=50,
        topics_per_subscribe=8,
        topic_levels=8,
        topic_bytes=256,
        client_id_bytes=128,
        stable_client_id=True,
    ),
    "event_grid": BrokerProfile(
        publishes_per_s=1000,
        bytes_per_s=1_000_000,
        in_flight_messages=1000,
        in_flight_bytes=64_000,
        packet_bytes=512_000,
        keepalive_s=(5, 1160),
        subscriptions=50,
        topics_per_subscribe=10,
        topic_levels=8,
        topic_bytes=256,
        stable_client_id=True,
    ),
    "emqx_serverless": BrokerProfile(
        publishes_per_s=10,
        packet_bytes=1_000_000,
        subscriptions=10,
        topic_levels=10,
        client_id_bytes=1024,
    ),
    "hivemq_cloud": BrokerProfile(in_flight_messages=10),
}
